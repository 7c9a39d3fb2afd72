"""The loops over the sequences and positions of one step, compiled by numba.

A step of 256 sequences has some two thousand slots: too few for numpy, whose calls cost a microsecond or more each
whatever they work on, and too many for Python. Importing this module compiles them, or loads them from numba's cache;
that takes a moment, and numba must not be loaded in every process that reads a tuning file, so callers import it when
they need it. numba's cache looks at this file alone: touch it after a change to the constants from elsewhere.

What the loops mean stands where they are called. Arrays are C-contiguous and writable, whole numbers 64 bits wide.
"""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec.compiled import compiled
from adaptive_spec.population import LOGIT_LIMIT
from adaptive_spec.sequence_effect import NODE, OFFSET_LIMIT, SHARE_LEAST
from adaptive_spec.step import FloatArray, IntArray
from adaptive_spec.survival import SURVIVAL_FLOOR

SIXTH = 1.0 / 6.0

OCTAVES = 32  # halvings of the largest worth that are told apart; the last bucket takes what is less
FINE, COARSE = 47, 50  # low bits of a worth that its bucket leaves out: 32 buckets to a halving, or 4
FEW_SLOTS = 256  # up to which coarse buckets are quicker


# ---------------------------------------------------------------- the acceptance model


@compiled("int64[::1](float64[:,::1], int64[::1], float64[::1], int64[::1])")
def sort_into_cells(evidence: FloatArray, column: IntArray, threshold: FloatArray, stride: IntArray) -> IntArray:
    """The evidence cell of each sequence, shape (B,), from evidence of shape (F, B): see ``EvidenceGrid``."""
    cell = np.zeros(evidence.shape[1], dtype=np.int64)
    for edge in range(len(column)):
        values = evidence[column[edge]]
        for i in range(len(cell)):
            if values[i] >= threshold[edge]:
                cell[i] += stride[edge]
    return cell


@compiled("float64[:,::1](float64[:,::1], int64[::1], float64[::1], float64[::1])", error_model="numpy")
def mean_survival(odds_against: FloatArray, cell: IntArray, offset: FloatArray, sd: FloatArray) -> FloatArray:
    """Survival at each position, shape (K, B), averaged over three nodes of each sequence's u: see ``Survival``."""
    depths, cells = odds_against.shape
    sequences = len(cell)
    if len(offset) != sequences or len(sd) != sequences:
        raise ValueError("offset and sd must have one number for each sequence")
    for i in range(sequences):
        if not 0 <= cell[i] < cells:
            raise ValueError("an evidence cell is outside the table")
    survival = np.empty((depths, sequences))
    low, middle, high = np.empty(sequences), np.empty(sequences), np.empty(sequences)
    for i in range(sequences):
        against, spread = math.exp(-offset[i]), math.exp(NODE * sd[i])
        low[i], middle[i], high[i] = against * spread, against, against / spread
    a, b, c = np.full(sequences, SIXTH), np.full(sequences, 4.0 * SIXTH), np.full(sequences, SIXTH)
    for k in range(depths):
        for i in range(sequences):
            odds = odds_against[k, cell[i]]
            a[i] /= 1.0 + odds * low[i]
            b[i] /= 1.0 + odds * middle[i]
            c[i] /= 1.0 + odds * high[i]
            survival[k, i] = max(a[i] + b[i] + c[i], SURVIVAL_FLOOR)
    return survival


@compiled(
    "Tuple((int64, float64, float64))(float64[:,::1], float64[:,::1], float64[:,::1], int64[:,::1], int64, float64,"
    " float64, int64[::1], int64[::1], int64[::1], int64[::1], float64[::1], float64[::1], float64[:,::1], float64,"
    " float64, boolean)",
    error_model="numpy",
)
def learn_step(
    odds_against: FloatArray,
    beta: FloatArray,
    curvature: FloatArray,
    seen: IntArray,
    step: int,
    anchor_curvature: float,
    correlation: float,
    row: IntArray,
    cell: IntArray,
    verified: IntArray,
    accepted: IntArray,
    offset: FloatArray,
    precision: FloatArray,
    past: FloatArray,
    sigma2: float,
    forgetting: float,
    variance: bool,
) -> tuple[int, float, float]:
    """Take the Newton steps of one step's outcome, in place: see ``AcceptanceModel.observe``.

    Parameters
    ----------
    odds_against, beta, curvature, seen : array, shape (K, C)
    step, anchor_curvature, correlation
        Of the population; `step` is this one's number.
    row, cell, verified, accepted : int array, shape (B,)
    offset, precision : float array, shape (rows,)
        Of the sequence effect; empty where there is none.
    past : float array, shape (2, rows)
    sigma2, forgetting : float
    variance : bool
        Whether sigma^2 is to learn from the step.

    Raises
    ------
    ValueError
        If a number lies outside its range; nothing is learned then.

    Returns
    -------
    tuple
        Drafts judged; and for sigma^2 the sums of products of residuals, and of information, with the past's.
    """
    depths, cells = beta.shape
    sequences = len(row)
    has_effect = len(offset) > 0
    if len(cell) != sequences or len(verified) != sequences or len(accepted) != sequences:
        raise ValueError("row, cell, verified and accepted must have one number for each sequence")
    for i in range(sequences):
        if not 0 <= accepted[i] <= verified[i] <= depths:
            raise ValueError("a count breaks 0 <= accepted <= verified <= max_depth")
        if not 0 <= cell[i] < cells or (has_effect and not 0 <= row[i] < len(offset)):
            raise ValueError("a row or an evidence cell is outside the tables")
    counts = np.zeros(depths * cells, dtype=np.int64)
    gradients, informations = np.zeros(depths * cells), np.zeros(depths * cells)
    touched = np.empty(depths * min(cells, sequences), dtype=np.int64)
    num_touched = judged_in_all = 0
    averages = np.empty(depths)
    residuals, residual_informations = np.zeros(sequences), np.zeros(sequences)
    for i in range(sequences):
        judged, kept, e = min(accepted[i] + 1, verified[i]), float(accepted[i]), cell[i]
        judged_in_all += judged
        share = 1.0
        if has_effect:
            r = row[i]
            belief = max(precision[r], 1.0 / sigma2) * forgetting
            before = belief + (1.0 - forgetting) / sigma2  # precision once it was relaxed towards the prior
            mean = belief / before * offset[r]
            against = math.exp(-mean)
            expected = information = 0.0
            for k in range(judged):
                q = 1.0 / (1.0 + odds_against[k, e] * against)
                expected += q
                information += q - q * q
            gradient = kept - expected
            laplace = information + before
            led = gradient / laplace + mean
            middle, spread = math.exp(-led), math.exp(NODE / math.sqrt(laplace))
            low, high = middle * spread, middle / spread
            expected = averaged_information = 0.0
            for k in range(judged):
                odds = odds_against[k, e]
                a, b, c = 1.0 / (1.0 + odds * low), 1.0 / (1.0 + odds * middle), 1.0 / (1.0 + odds * high)
                average = (4.0 * b + a + c) * SIXTH
                averages[k] = average
                expected += average
                averaged_information += average - (4.0 * b * b + a * a + c * c) * SIXTH
            after = before + averaged_information
            corrected = (kept - expected - (led - mean) * before) / after + led
            offset[r] = min(max(corrected, -OFFSET_LIMIT), OFFSET_LIMIT)
            precision[r] = after
            share = SHARE_LEAST + (1.0 - SHARE_LEAST) / (after * sigma2)
            residuals[i], residual_informations[i] = gradient + information * mean, information
        else:
            for k in range(judged):
                averages[k] = 1.0 / (1.0 + odds_against[k, e])
        for k in range(judged):
            slot = k * cells + e
            if counts[slot] == 0:
                touched[num_touched] = slot
                num_touched += 1
            counts[slot] += 1
            gradients[slot] += (1.0 if k < accepted[i] else 0.0) - averages[k]
            informations[slot] += (averages[k] - averages[k] * averages[k]) * share
    for j in range(num_touched):
        slot = touched[j]
        k, e = slot // cells, slot % cells
        weight = 1.0 / (1.0 + (counts[slot] - 1) * correlation)
        n, gradient, information = counts[slot] * weight, gradients[slot] * weight, informations[slot] * weight
        halfway = 1.0 / (1.0 + odds_against[k, e]) + 0.5 * gradient / n
        braking = max(information, n * (halfway - halfway * halfway)) + curvature[k, e] + anchor_curvature
        level = min(max(beta[k, e] + gradient / braking, -LOGIT_LIMIT), LOGIT_LIMIT)
        beta[k, e], odds_against[k, e] = level, math.exp(-level)
        curvature[k, e] += information
        seen[k, e] = step
    products = squares = 0.0
    if variance and has_effect and judged_in_all:
        # What all sequences have in common is the population's error, not theirs.
        total = residual_informations.sum()
        common = residuals.sum() / total * (1.0 - 1.0 / sequences) if total > 0.0 else 0.0
        for i in range(sequences):
            r, information = row[i], residual_informations[i]
            residual = residuals[i] - common * information
            products += residual * past[0, r]
            squares += information * past[1, r]
            past[0, r] = (past[0, r] + residual) * forgetting
            past[1, r] = (past[1, r] + information) * forgetting
    return judged_in_all, products, squares


# ---------------------------------------------------------------- the allocation


@compiled(inline="always")
def _key(worth: float, slot: int, mask: int) -> np.int64:
    # Sorts by falling worth, then by rising index: the bits of a non-negative double, read as an integer, rise with
    # its value; their complement falls, and holds the index in the place of the low ones.
    return (np.float64(worth).view(np.int64) | mask) ^ ~slot


@compiled(inline="always")
def _value(tokens: float, seconds: float, price: float) -> float:
    return tokens / seconds if price != price else tokens - price * seconds


@compiled(inline="always")
def _most(key: int) -> np.float64:
    # The largest worth that a key may stand for.
    return np.int64(~key).view(np.float64)


@compiled("int64[::1](float64[:,::1], int64[::1], int64, int64[::1], int64, int64, int64)")
def _sorted_bucket(
    worth: FloatArray, offered: IntArray, cap: int, buckets: IntArray, bucket: int, count: int, mask: int
) -> IntArray:
    """The keys of a bucket's slots, sorted; `buckets` holds that of every slot on offer, in order."""
    sequences = worth.shape[1]
    keys = np.empty(count, dtype=np.int64)
    n = found = 0
    for k in range(cap):
        for i in range(sequences):
            if k < offered[i]:
                if buckets[n] == bucket:
                    keys[found] = _key(worth[k, i], k * sequences + i, mask)
                    found += 1
                n += 1
    keys.sort()
    return keys


@compiled(
    "Tuple((int64, float64, float64))(float64[:,::1], int64[::1], int64, float64, Array(float64, 1, 'C', readonly=True),"
    " float64, float64, int64[::1])",
    error_model="numpy",
)
def best_prefix(
    worth: FloatArray,
    offered: IntArray,
    cap: int,
    base_tokens: float,
    verify_seconds: FloatArray,
    draft_seconds: float,
    price: float,
    depth: IntArray,
) -> tuple[int, float, float]:
    """How many of the worthiest slots under a cap on depth are worth buying, the objective then, and the tokens.

    Slots are thrown into buckets by their worth, so many for each halving of it. What is bought ends between two buckets,
    or inside one where the objective might be larger even if all of its slots had the largest worth that it holds:
    only those are sorted. Worths that differ in the bits that an index takes up only count as equal there.

    Parameters
    ----------
    worth : float array, shape (K, B)
        Not negative; never rises along k.
    offered : int array, shape (B,)
        At most K.
    cap : int
        Deepest depth.
    base_tokens, verify_seconds, draft_seconds
        As in ``allocate``, of this cap.
    price : float
        As there; NaN: the ratio of tokens to seconds counts.
    depth : int array, shape (B,)
        Is filled with the depths bought.

    Returns
    -------
    tuple
        Ties go to fewer slots. An objective that is not finite says that a number was not.
    """
    depths, sequences = worth.shape
    mask = 1
    while mask < depths * sequences:
        mask *= 2
    mask -= 1
    slots, least = 0, np.int64(0)  # keys are negative
    for i in range(sequences):
        slots += min(max(offered[i], 0), cap)
        if offered[i] > 0:
            least = min(least, _key(worth[0, i], 0, mask))
    bits = FINE if slots > FEW_SLOTS else COARSE
    first, num_buckets = least >> bits, OCTAVES << (52 - bits)
    buckets = np.zeros(slots, dtype=np.int64)
    counts, gains = np.zeros(num_buckets, dtype=np.int64), np.zeros(num_buckets)
    n = 0
    for k in range(cap):
        for i in range(sequences):
            if k < offered[i]:
                bucket = min(max((_key(worth[k, i], 0, mask) >> bits) - first, 0), num_buckets - 1)
                counts[bucket] += 1
                gains[bucket] += worth[k, i]
                buckets[n] = bucket
                n += 1
    # Between the buckets.
    tokens = best_tokens = base_tokens
    best = _value(tokens, verify_seconds[0] + draft_seconds, price)
    bought, last_bucket, last = 0, -1, np.int64(0)
    n = 0
    for bucket in range(num_buckets):
        if counts[bucket]:
            n += counts[bucket]
            tokens += gains[bucket]
            value = _value(tokens, verify_seconds[n] + draft_seconds, price)
            if not value <= best:
                best, best_tokens, bought, last_bucket = value, tokens, n, bucket
                if value != value:
                    return bought, value, tokens
    # Inside those that may hold something better.
    tokens, n = base_tokens, 0
    for bucket in range(num_buckets):
        if counts[bucket] > 1:
            most = _most((bucket + first) << bits)
            may_be_best = False
            for j in range(1, counts[bucket]):
                value = _value(tokens + j * most, verify_seconds[n + j] + draft_seconds, price)
                may_be_best |= not value < best
            if may_be_best:
                inside = tokens
                keys = _sorted_bucket(worth, offered, cap, buckets, bucket, counts[bucket], mask)
                for j in range(len(keys) - 1):
                    slot = keys[j] & mask
                    inside += worth[slot // sequences, slot % sequences]
                    value = _value(inside, verify_seconds[n + j + 1] + draft_seconds, price)
                    if not value <= best or (value == best and n + j + 1 < bought):
                        best, best_tokens, bought, last_bucket, last = value, inside, n + j + 1, bucket, keys[j]
                        if value != value:
                            return bought, value, inside
        n += counts[bucket]
        tokens += gains[bucket]
    depth[:] = 0
    n = 0
    for k in range(cap if bought else 0):
        for i in range(sequences):
            if k < offered[i]:
                if buckets[n] < last_bucket or (
                    buckets[n] == last_bucket and _key(worth[k, i], k * sequences + i, mask) <= last
                ):
                    depth[i] += 1
                n += 1
    return bought, best, best_tokens


# ---------------------------------------------------------------- the cost model


@compiled(
    "float64[::1](Array(float64, 1, 'C', readonly=True), float64[::1], float64[::1], int64[::1], float64[::1], int64)"
)
def scaled_along(
    seconds: FloatArray, values: FloatArray, slopes: FloatArray, below: IntArray, beyond: FloatArray, first: int
) -> FloatArray:
    """Seconds at consecutive positions from `first` on, times a factor that is linear between nodes.

    Parameters
    ----------
    seconds : float array, shape (n,)
    values, slopes : float array, shape (nodes,)
        The factor at each node, and its slope above it.
    below, beyond : int and float array, over the positions
        The node below each, and how far beyond that it lies.
    first : int
    """
    scaled = np.empty(len(seconds))
    for i in range(len(seconds)):
        node = below[first + i]
        scaled[i] = seconds[i] * (slopes[node] * beyond[first + i] + values[node])
    return scaled


@compiled(
    "void(float64[::1], float64[:,::1], float64[::1], float64[::1], float64[::1], int64, float64, float64, float64)",
    error_model="numpy",
)
def learn_curve(
    log: FloatArray,
    covariance: FloatArray,
    nodes: FloatArray,
    values: FloatArray,
    slopes: FloatArray,
    node: int,
    share: float,
    error: float,
    total: float,
) -> None:
    """Move a normal belief over the log of a factor by one observation, in place: a Kalman filter's step.

    Parameters
    ----------
    log : float array, shape (n,)
        Means.
    covariance : float array, shape (n, n)
    nodes, values, slopes : float array, shape (n,)
        Where the nodes lie; are filled with the factor there, and its slope up to the next.
    node, share : int, float
        What was observed: the log at a node, with this share of the next one's.
    error : float
        How far off its mean the observation lies.
    total : float
        Variance of the observation.
    """
    gain = covariance[node] * (1.0 - share)
    if share > 0.0:
        gain += covariance[node + 1] * share
    scale = 1.0 / math.sqrt(total)
    for i in range(len(log)):
        log[i] += gain[i] * (error / total)
        values[i] = math.exp(log[i])
        if i:
            slopes[i - 1] = (values[i] - values[i - 1]) / (nodes[i] - nodes[i - 1])
        for j in range(len(log)):
            covariance[i, j] -= (gain[i] * scale) * (gain[j] * scale)
