"""Verification on CPU, compiled by numba: one lazy pass over a row, stopped at the first rejected draft.

Importing this module imports numba and compiles (or loads from numba's cache) the entry points; ``ops.py``
does so at the first call. All of it runs on the calling thread: rows are few and short beside the model's
pass, and a second pool of threads would disturb torch's.

How a row is sampled without a logarithm per token: a token of scaled logit x can beat the best score so far
only if its noise exceeds best - x, that is if the top 32 bits of its uniform are under exp(x - best) * 2**32.
So one pass takes the maximum of every tile; the tile of the row's maximum goes first; for every other one an
integer threshold follows from its maximum, hashes are compared with it, and the few survivors are evaluated.
The threshold has a margin for rounding, so the skip is exact.

The noise is :mod:`adaptive_spec.kernels.noise`, bit for bit. numba's cache looks at this file alone: touch it
after a change to the constants there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_spec.compiled import compiled
from adaptive_spec.kernels import noise

TILE = 128  # tokens; also the unit in which top-k bounds its candidates
_f32, _i32, _u32, _u64 = np.float32, np.int32, np.uint32, np.uint64

_MASK = _u32(noise.MASK_32)
_GOLDEN_32 = _u32(noise.GOLDEN_32)
_STREAM = _u64(noise.GOLDEN_64 * noise.MATCH_STREAM & (1 << 64) - 1)
(_A1, _F1), (_A2, _F2), (_A3, _F3) = ((_u32(s), _u32(f)) for s, f in noise.MIX_32)
(_B1, _G1), (_B2, _G2), (_B3, _G3) = ((_u64(s), _u64(f)) for s, f in noise.MIX_64)
_SERIES_BELOW = _u32(noise.SERIES_BELOW)
_SERIES = tuple(_f32(c) for c in noise.SERIES)
_LOG = tuple(_f32(c) for c in noise.LOG_POLYNOMIAL)
_LN2_HIGH, _LN2_LOW, _SQRT_HALF = _f32(noise.LN2_HIGH), _f32(noise.LN2_LOW), _f32(noise.SQRT_HALF)
_HALF, _ONE, _ZERO = _f32(0.5), _f32(1.0), _f32(0.0)
_UNIT_32, _UNIT_64 = _f32(2.0**-32), _f32(2.0**-64)
_INF, _NEG_INF, _LOWEST = _f32(np.inf), _f32(-np.inf), np.finfo(np.float32).min
_NEG_INF_KEY = _i32(-0x7F800001)
_GUMBEL_MAX = _f32(noise.GUMBEL_MAX)

# exp on [-87, 0]: 2**n * P(r), as in Cephes' expf.
_LOG2E = _f32(1.44269504088896341)
_EXP = tuple(_f32(c) for c in (1.98756915e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5))
_EXP_MIN = _f32(-87.0)


@compiled(inline="always")
def _mix32(h: Any) -> Any:
    # numba widens every uint32 operation to uint64: cast back each time, and LLVM narrows it again.
    h = _u32(_u32(h ^ _u32(h >> _A1)) * _F1)
    h = _u32(_u32(h ^ _u32(h >> _A2)) * _F2)
    return _u32(_u32(h ^ _u32(h >> _A3)) * _F3)


@compiled()
def _mix64(h: Any) -> Any:
    h = (h ^ (h >> _B1)) * _G1
    h = (h ^ (h >> _B2)) * _G2
    return (h ^ (h >> _B3)) * _G3


@compiled()
def _row_key(seed: Any, sample_index: Any, position: Any) -> Any:
    h = _mix64(_u64(seed) + _STREAM)
    h = _mix64(_mix64(h ^ _u64(sample_index)) ^ _u64(position))
    return _u32(h & _u64(noise.MASK_32)), _u32(h >> _u64(32))


@compiled(inline="always")
def _high_word(k0: Any, k1: Any, token: Any) -> Any:
    return _mix32(_u32(_mix32(_u32(_u32(token) ^ k0)) ^ k1))


@compiled()
def _log(x: Any) -> Any:
    bits = np.float32(x).view(np.int32)
    exponent = _i32(bits >> _i32(23)) - _i32(126)
    m = np.int32((bits & _i32(0x007FFFFF)) | _i32(0x3F000000)).view(np.float32)
    if m < _SQRT_HALF:
        exponent -= 1
        m = m + m
    e = _f32(exponent)
    m = m - _ONE
    z = m * m
    p = _LOG[0]
    for i in range(1, 9):
        p = p * m + _LOG[i]
    y = p * m * z
    y = y + e * _LN2_LOW
    y = y - z * _HALF
    return (m + y) + e * _LN2_HIGH


@compiled()
def _uniform(high: Any, low: Any) -> Any:
    return _f32(high) * _UNIT_32 + (_f32(low) + _HALF) * _UNIT_64


@compiled()
def _gumbel(k0: Any, k1: Any, high: Any) -> Any:
    """Return the noise of the token whose high word is known already."""
    low = _mix32(_u32(_u32(high ^ k0) ^ _GOLDEN_32))
    if high < _SERIES_BELOW:
        u = _uniform(high, low)
        exponential = ((((_SERIES[0] * u + _SERIES[1]) * u + _SERIES[2]) * u + _SERIES[3]) * u + _SERIES[4]) * u
    else:
        exponential = -_log(_uniform(_u32(high ^ _MASK), _u32(low ^ _MASK)))
    return -_log(exponential)


@compiled("float32[::1](int64, int64, int64, int64)")
def gumbel_row(seed: int, sample_index: int, position: int, vocabulary: int) -> NDArray[np.float32]:
    """Return the noise of every token of one row: the numba twin of :func:`noise.gumbel`."""
    k0, k1 = _row_key(seed, sample_index, position)
    out = np.empty(vocabulary, dtype=np.float32)
    for v in range(vocabulary):
        out[v] = _gumbel(k0, k1, _high_word(k0, k1, v))
    return out


@compiled()
def _tile_max(bits: Any) -> Any:
    """Return the largest logit of a tile (minus infinity for all NaN).

    The maximum is that of integers of the floats' order, NaN below everything, and runs from 0 over a slice,
    with no index to wrap: so LLVM vectorises it.
    """
    best = _NEG_INF_KEY
    for i in range(bits.shape[0]):
        b = bits[i]
        key = _i32(b ^ _i32(_i32(b >> _i32(31)) & _i32(0x7FFFFFFF)))
        best = max(best, _NEG_INF_KEY if _i32(b & _i32(0x7FFFFFFF)) > _i32(0x7F800000) else key)
    return np.int32(best ^ _i32(_i32(best >> _i32(31)) & _i32(0x7FFFFFFF))).view(np.float32)


@compiled()
def _argmax(row: Any) -> Any:
    """Return the lowest token with the largest logit; 0 where every logit is NaN or minus infinity."""
    vocabulary = row.shape[0]
    bits = row.view(np.int32)
    best, tile = _NEG_INF, -1
    for low in range(0, vocabulary, TILE):
        value = _tile_max(bits[low : low + TILE])
        if value > best:
            best, tile = value, low
    if tile >= 0:
        for v in range(tile, vocabulary):
            if row[v] == best:
                return v
    return 0


@compiled(inline="always")
def _exp(d: Any) -> Any:
    """Return exp(d) for d <= 0 in float32; 0 below -87 and for NaN."""
    c = d if d > _EXP_MIN else _EXP_MIN
    n = _f32(np.floor(c * _LOG2E + _HALF))
    r = c - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = ((((_EXP[0] * r + _EXP[1]) * r + _EXP[2]) * r + _EXP[3]) * r + _EXP[4]) * r + _EXP[5]
    p = p * r * r + r + _ONE
    scale = np.int32(_i32(_i32(n) + _i32(127)) << _i32(23)).view(np.float32)
    return p * scale if d > _EXP_MIN else _ZERO


@compiled()
def _pivot(value: Any, count: int) -> Any:
    a, b, c = value[0], value[count >> 1], value[count - 1]
    return max(min(a, b), min(max(a, b), c))


@compiled()
def _keep_between(value: Any, count: int, low: Any, high: Any) -> Any:
    """Move the values strictly between to the front and count them; without a branch to mispredict."""
    kept = 0
    for i in range(count):
        x = value[i]
        value[kept] = x
        kept += int((x > low) & (x < high))
    return kept


@compiled()
def _kth_largest(value: Any, count: int, k: int) -> Any:
    """Return the k-th largest finite value of the first `count` by quickselect (which reorders them)."""
    while count > 0:
        pivot = _pivot(value, count)
        greater = equal = 0
        for i in range(count):
            greater += int(value[i] > pivot)
            equal += int(value[i] == pivot)
        if greater >= k:
            count = _keep_between(value, count, pivot, _INF)
        elif greater + equal >= k:
            return pivot
        else:
            k -= greater + equal
            count = _keep_between(value, count, _NEG_INF, pivot)
    return _NEG_INF  # there are fewer


@compiled(fastmath={"reassoc"})
def _mass(value: Any, inverse: Any, peak: Any, pivot: Any) -> Any:
    """Return the sums of exp(x - peak) over x = value * inverse greater than, and equal to, the pivot.

    The order of summation is the vectoriser's: right to some 1e-6, far less than the edges that tests tell apart.
    """
    greater = equal = _ZERO
    for i in range(value.shape[0]):
        x = value[i] * inverse
        e = _exp(x - peak)
        greater += e if x > pivot else _ZERO
        equal += e if x == pivot else _ZERO
    return greater, equal


@compiled()
def _nucleus(value: Any, count: int, peak: Any, target: float) -> Any:
    """Return the least value above which less than `target` of the mass lies, by weighted quickselect."""
    above = 0.0  # mass of what is known to be kept, all of it greater than the values that are left
    edge = peak
    while count > 0:
        pivot = _pivot(value, count)
        greater = equal = 0.0
        for i in range(0, count, TILE):
            sums = _mass(value[i : min(i + TILE, count)], _ONE, peak, pivot)
            greater += sums[0]
            equal += sums[1]
        if above + greater >= target:
            count = _keep_between(value, count, pivot, _INF)
        else:
            edge = pivot
            above += greater + equal
            if above >= target:
                break
            count = _keep_between(value, count, _NEG_INF, pivot)
    return edge


@compiled()
def _gather(row: Any, inverse: Any, tile_max: Any, bound: Any, value: Any) -> Any:
    """Collect the scaled logits of at least `bound`; tiles whose maximum is less are not read."""
    count = 0
    for t in range(tile_max.shape[0]):
        if tile_max[t] >= bound:
            tile = row[t * TILE : (t + 1) * TILE]
            for i in range(tile.shape[0]):
                x = tile[i] * inverse
                value[count] = x
                count += int(x >= bound)
    return count


@compiled()
def _threshold(row: Any, inverse: Any, tile_max: Any, peak: Any, top_k: int, top_p: Any) -> Any:
    """Return the least scaled logit that top-k, and top-p on what is left, keep."""
    vocabulary, tiles = row.shape[0], tile_max.shape[0]
    cut_k = 0 < top_k < vocabulary
    cut_p = top_p < _ONE
    threshold = _NEG_INF
    if not (cut_k or cut_p) or peak == _NEG_INF:
        return threshold
    if peak == _INF:
        return peak  # nothing finite can be drawn beside it
    value = np.empty(vocabulary + 1, dtype=np.float32)  # one to spare for the branchless writes
    if cut_k:
        bound = _LOWEST
        if top_k <= tiles:  # each of k tiles holds a token at least as large as the k-th largest maximum
            value[:tiles] = tile_max
            bound = max(bound, _kth_largest(value, tiles, top_k))
        count = _gather(row, inverse, tile_max, bound, value)
        if count >= top_k:  # NaN and minus infinity are not gathered
            threshold = _kth_largest(value, count, top_k)
    if cut_p:
        total = 0.0
        if cut_k:
            count = _gather(row, inverse, tile_max, max(threshold, _LOWEST), value)
            for i in range(0, count, TILE):
                total += _mass(value[i : min(i + TILE, count)], _ONE, peak, _NEG_INF)[0]
        else:
            for t in range(tiles):
                total += _mass(row[t * TILE : (t + 1) * TILE], inverse, peak, _NEG_INF)[0]
            # Tokens of less mass than this hold less than 1 - p together: all of the nucleus lies above.
            least = (1.0 - np.float64(top_p)) * total / vocabulary
            floor = peak + _f32(math.log(max(least, 1e-37)) - 1e-3)
            count = _gather(row, inverse, tile_max, floor, value)
        threshold = max(threshold, _nucleus(value, count, peak, np.float64(top_p) * total))
    return threshold


@compiled()
def _bits_to_beat(best: Any, x: Any) -> Any:
    """Return the largest high word with which a scaled logit of at most `x` could still reach `best`."""
    gap = np.float64(best) - np.float64(x)
    gap -= 1e-3 + 1e-6 * (abs(np.float64(best)) + abs(np.float64(x)))  # rounding of noise and sum, generously
    if not gap > 0.0:  # NaN from infinities too
        return _MASK
    return _u32(min(np.float64(_exp(-_f32(gap))) * 4294967296.0 + 1.0, 4294967295.0))


@compiled()
def _best_of_tile(
    row: Any, low: int, high: int, inverse: Any, threshold: Any, k0: Any, k1: Any, limit: Any, best: Any, token: int
) -> Any:
    """Return the better of (best, token) and the tile's best score; ties go to the lower token."""
    for v in range(low, high):
        word = _high_word(k0, k1, v)
        if word <= limit:
            x = row[v] * inverse
            if x >= threshold:
                score = x + _gumbel(k0, k1, word)
                if score > best or (score == best and v < token):
                    best, token = score, v
    return best, token


@compiled()
def _least_word(k0: Any, k1: Any, low: int, high: int) -> Any:
    least = _MASK
    for v in range(low, high):
        least = min(least, _high_word(k0, k1, v))
    return least


@compiled()
def _sample(row: Any, inverse: Any, top_k: int, top_p: Any, k0: Any, k1: Any, tile_max: Any) -> Any:
    """Return argmax of logit / T + noise over the top-k / top-p set."""
    vocabulary, tiles, bits = row.shape[0], tile_max.shape[0], row.view(np.int32)
    peak, first = _NEG_INF, 0
    for t in range(tiles):
        x = _tile_max(bits[t * TILE : (t + 1) * TILE]) * inverse
        tile_max[t] = x
        if x > peak:
            peak, first = x, t
    threshold = _threshold(row, inverse, tile_max, peak, top_k, top_p)
    low, high = first * TILE, min((first + 1) * TILE, vocabulary)
    best, token = _best_of_tile(row, low, high, inverse, threshold, k0, k1, _MASK, _NEG_INF, 0)
    for t in range(tiles):
        x = tile_max[t]
        if t == first or x < threshold or x + _GUMBEL_MAX < best or x == _NEG_INF:
            continue
        low, high = t * TILE, min((t + 1) * TILE, vocabulary)
        limit = _bits_to_beat(best, x)
        if _least_word(k0, k1, low, high) <= limit:
            best, token = _best_of_tile(row, low, high, inverse, threshold, k0, k1, limit, best, token)
    return token


@compiled("void(float32[:, ::1], int32[::1], int32[::1], int32[:, ::1], int32[::1])")
def verify_greedy(logits: Any, cu: Any, draft: Any, out: Any, count: Any) -> None:
    """Fill `out` [B, max_depth + 1] and `count` [B]."""
    for b in range(count.shape[0]):
        first = cu[b]
        depth = cu[b + 1] - first - 1
        for j in range(depth + 1):
            token = _argmax(logits[first + j])
            out[b, j] = token
            if j == depth or token != draft[first - b + j]:
                count[b] = j + 1
                break


@compiled(
    "void(float32[:, ::1], int32[::1], int32[::1], float32[::1], int32[::1], float32[::1],"
    " int64[::1], int64[::1], int64[::1], int32[:, ::1], int32[::1])"
)
def verify_match(
    logits: Any, cu: Any, draft: Any, inverse: Any, top_k: Any, top_p: Any,
    seed: Any, sample_index: Any, position: Any, out: Any, count: Any
) -> None:  # fmt: skip
    """Fill `out` [B, max_depth + 1] and `count` [B]; `inverse` is 1/T, and 0 means greedy."""
    tile_max = np.empty((logits.shape[1] + TILE - 1) // TILE, dtype=np.float32)
    for b in range(count.shape[0]):
        first = cu[b]
        depth = cu[b + 1] - first - 1
        for j in range(depth + 1):
            row = logits[first + j]
            if inverse[b] == _ZERO:
                token = _argmax(row)
            else:
                k0, k1 = _row_key(seed[b], sample_index[b], position[b] + j)
                token = _sample(row, inverse[b], top_k[b], top_p[b], k0, k1, tile_max)
            out[b, j] = token
            if j == depth or token != draft[first - b + j]:
                count[b] = j + 1
                break
