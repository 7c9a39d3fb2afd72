"""The loops that split a step's budget, and check how it was split."""

from __future__ import annotations

import numpy as np

from adaptive_spec.compiled import REAL, WHOLE, compiled
from adaptive_spec.step import FloatArray, IntArray

OCTAVES = 32  # halvings of the largest worth that are told apart; the last bucket takes what is less
FINE, COARSE = 47, 50  # low bits of a worth that its bucket leaves out: 32 buckets to a halving, or 4
FEW_SLOTS = 256  # up to which coarse buckets are quicker


@compiled(f"int64[::1]({WHOLE}, {WHOLE}, int64[::1], int64)")
def limits(limit: IntArray, row: IntArray, cap: IntArray, max_depth: int) -> IntArray:
    """Limits of shape (B,) within 0 and what is allowed at most: in all, and by the caps of these rows."""
    if len(limit) != len(row):
        raise ValueError("each row must have one limit")
    kept = np.empty(len(limit), dtype=np.int64)
    for i in range(len(limit)):
        if not 0 <= row[i] < len(cap):
            raise ValueError("a row is outside the table")
        kept[i] = max(min(limit[i], max_depth, cap[row[i]]), 0)
    return kept


@compiled(f"boolean({WHOLE}, {WHOLE}, int64)")
def within(depth: IntArray, limit: IntArray, drafts: int) -> bool:
    """Whether depths lie between 0 and their limits, both of shape (B,), and none over the drafts asked for."""
    right = len(depth) == len(limit)
    for i in range(len(depth) if right else 0):
        right &= 0 <= depth[i] <= min(limit[i], drafts)
    return right


@compiled(inline="always")
def _key(worth: float, slot: int, mask: int) -> np.int64:
    # Sorts by falling worth, then by rising index: the bits of a non-negative double, read as an integer, rise with
    # its value; their complement falls, and holds the index in the place of the low ones.
    return (np.float64(worth).view(np.int64) | mask) ^ ~slot


@compiled(inline="always")
def _value(tokens: float, seconds: float, price: float) -> float:
    return tokens / seconds if price != price else tokens - price * seconds


@compiled(inline="always")
def _most(key: np.int64) -> np.float64:
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
    "Tuple((int64, float64, float64))"
    f"(float64[:,::1], int64[::1], int64, float64, {REAL}, float64, float64, int64[::1])",
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

    Slots are thrown into buckets by their worth, so many for each halving of it. What is bought ends between two
    buckets, or inside one in which the objective might be larger still if all of its slots had the largest worth that
    it can hold: only those are sorted. Worths that differ in the bits that an index takes up only count as equal there.

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
                place = int(_key(worth[k, i], 0, mask) >> bits) - int(first)
                bucket = min(max(place, 0), num_buckets - 1)
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
