"""The acceptance model's loops.

numba's cache looks at this file alone: touch it after a change to the constants from elsewhere.
"""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec.compiled import WHOLE, compiled
from adaptive_spec.population import LOGIT_LIMIT
from adaptive_spec.sequence_effect import NODE, OFFSET_LIMIT, SHARE_LEAST
from adaptive_spec.step import FloatArray, IntArray
from adaptive_spec.survival import SURVIVAL_FLOOR

SIXTH = 1.0 / 6.0


@compiled("int64[::1](Array(float64, 2, 'C', readonly=True), int64[::1], float64[::1], int64[::1])")
def sort_into_cells(evidence: FloatArray, column: IntArray, threshold: FloatArray, stride: IntArray) -> IntArray:
    """The evidence cell of each sequence, shape (B,), from evidence of shape (F, B): see ``EvidenceGrid``."""
    cell = np.zeros(evidence.shape[1], dtype=np.int64)
    for edge in range(len(column)):
        values = evidence[column[edge]]
        for i in range(len(cell)):
            if values[i] >= threshold[edge]:
                cell[i] += stride[edge]
    return cell


@compiled(f"float64[:,::1]({WHOLE}, float64[::1], float64[::1], float64)", error_model="numpy")
def posterior(row: IntArray, offset: FloatArray, precision: FloatArray, sigma2: float) -> FloatArray:
    """Mean and standard deviation of these rows' u, shape (2, B); offset and precision are of all rows."""
    found = np.empty((2, len(row)))
    for i in range(len(row)):
        if not 0 <= row[i] < len(offset):
            raise ValueError("a row is outside the tables")
        found[0, i] = offset[row[i]]
        found[1, i] = 1.0 / math.sqrt(max(precision[row[i]], 1.0 / sigma2))
    return found


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
    f" float64, {WHOLE}, {WHOLE}, {WHOLE}, {WHOLE}, float64[::1], float64[::1], float64[:,::1], float64, float64,"
    " boolean)",
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
