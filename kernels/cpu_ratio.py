"""Ratio-mode verification on CPU, compiled by numba: row by row, stopped at the first draft that is refused.

Only rows that are reached are read: the accepted drafts' (for the sums of their exponentials) and the one that emits
the target's token. There, tokens that no noise could lift over the best so far cost a hash and a comparison. As in
:mod:`adaptive_spec.kernels.cpu`, numba's cache looks at this file alone: touch it after a change there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adaptive_spec.compiled import compiled
from adaptive_spec.kernels import noise
from adaptive_spec.kernels.cpu import (
    TILE,
    _argmax,
    _bits_to_beat,
    _gumbel,
    _high_word,
    _mass,
    _mix32,
    _mix64,
    _threshold,
    _tile_max,
    _uniform,
)

_f32, _u32, _u64 = np.float32, np.uint32, np.uint64
_ACCEPT = _u64(noise.GOLDEN_64 * noise.ACCEPT_STREAM & (1 << 64) - 1)
_RESIDUAL = _u64(noise.GOLDEN_64 * noise.RESIDUAL_STREAM & (1 << 64) - 1)
_GOLDEN_32, _MASK = _u32(noise.GOLDEN_32), _u32(noise.MASK_32)
_ZERO, _ONE, _NEG_INF = _f32(0.0), _f32(1.0), _f32(-np.inf)
_MOST = np.finfo(np.float32).max


@compiled()
def _key(stream: Any, seed: Any, sample_index: Any, position: Any) -> Any:
    h = _mix64(_u64(seed) + stream)
    h = _mix64(_mix64(h ^ _u64(sample_index)) ^ _u64(position))
    return _u32(h & _u64(noise.MASK_32)), _u32(h >> _u64(32))


@compiled()
def _scaled(value: Any, inverse: Any, threshold: Any) -> Any:
    """Return a finite scaled logit, or minus infinity for NaN and what the threshold drops."""
    x = min(value * inverse, _MOST)
    return x if x >= threshold else _NEG_INF


@compiled()
def _maxima(row: Any, inverse: Any, tile_max: Any) -> Any:
    """Fill in each tile's largest scaled logit, and return the row's."""
    bits = row.view(np.int32)
    peak = _NEG_INF
    for t in range(tile_max.shape[0]):
        tile_max[t] = _tile_max(bits[t * TILE : (t + 1) * TILE]) * inverse
        peak = max(peak, tile_max[t])
    return peak


@compiled()
def _log_sum(row: Any, inverse: Any, tile_max: Any, peak: Any, threshold: Any) -> Any:
    """Return log-sum-exp of what the threshold keeps, in float64; 0 where there is nothing."""
    if peak == _NEG_INF:
        return 0.0
    if peak > _MOST:  # infinities: the largest floats, as many as there are
        count = 0
        for v in range(row.shape[0]):
            count += int(row[v] * inverse > _MOST)
        return np.float64(_MOST) + math.log(count)
    total = np.float64(0.0)
    for t in range(tile_max.shape[0]):
        if tile_max[t] >= threshold:
            tile = row[t * TILE : (t + 1) * TILE]
            greater, equal = _mass(tile, inverse, peak, threshold)
            total += np.float64(greater) + np.float64(equal)
    return np.float64(peak) + math.log(total)


@compiled()
def _draw(
    row: Any, inverse: Any, threshold: Any, log_p: float, draft_row: Any, log_q: float, refused: bool,
    k0: Any, k1: Any, tile_max: Any
) -> Any:  # fmt: skip
    """Return argmax of log(p - q) + noise, or of log p + noise where nothing was refused or no residual is left."""
    for residual in range(int(refused), -1, -1):
        best, token = _NEG_INF, -1
        for t in range(tile_max.shape[0]):
            if tile_max[t] < threshold or tile_max[t] == _NEG_INF:
                continue
            limit = _bits_to_beat(best, _f32(min(np.float64(tile_max[t]), np.float64(_MOST)) - log_p))
            for v in range(t * TILE, min((t + 1) * TILE, row.shape[0])):
                word = _high_word(k0, k1, v)
                if word > limit:  # the residual is at most p
                    continue
                x: Any = np.float64(_scaled(row[v], inverse, threshold)) - log_p
                if residual == 1:
                    q = math.exp(np.float64(_scaled(draft_row[v], inverse, _NEG_INF)) - log_q)
                    left = math.exp(x) - q
                    x = math.log(left) if left > 0.0 else -np.inf
                score = _f32(x + np.float64(_gumbel(k0, k1, word)))
                if score > best:
                    best, token = score, v
        if token >= 0:
            return token
    return 0


@compiled(
    "void(float32[:, ::1], int32[::1], int32[::1], float32[:, ::1], float32[::1], int32[::1], float32[::1],"
    " int64[::1], int64[::1], int64[::1], int32[:, ::1], int32[::1])"
)
def verify_ratio(
    logits: Any, cu: Any, draft: Any, draft_logits: Any, inverse: Any, top_k: Any, top_p: Any,
    seed: Any, sample_index: Any, position: Any, out: Any, count: Any
) -> None:  # fmt: skip
    """Fill `out` [B, max_depth + 1] and `count` [B]; `inverse` is 1/T, and 0 means greedy."""
    vocabulary = logits.shape[1]
    tile_max = np.empty((vocabulary + TILE - 1) // TILE, dtype=np.float32)
    draft_max = np.empty_like(tile_max)
    empty = np.empty(0, dtype=np.float32)
    for b in range(count.shape[0]):
        first = cu[b]
        depth = cu[b + 1] - first - 1
        for j in range(depth + 1):
            row = logits[first + j]
            x = draft[first - b + j] if j < depth else -1
            if inverse[b] == _ZERO:
                token = _argmax(row)
                accept = x == token
            else:
                peak = _maxima(row, inverse[b], tile_max)
                threshold = min(_threshold(row, inverse[b], tile_max, peak, top_k[b], top_p[b]), _MOST)
                log_p = _log_sum(row, inverse[b], tile_max, peak, threshold)
                draft_row, log_q = empty, 0.0
                accept = False
                if j < depth:
                    draft_row = draft_logits[first - b + j]
                    draft_peak = _maxima(draft_row, inverse[b], draft_max)
                    log_q = _log_sum(draft_row, inverse[b], draft_max, draft_peak, _NEG_INF)
                    if 0 <= x < vocabulary:
                        k0, k1 = _key(_ACCEPT, seed[b], sample_index[b], position[b] + j)
                        high = _high_word(k0, k1, 0)
                        u = _uniform(high, _mix32(_u32(_u32(high ^ k0) ^ _GOLDEN_32)))
                        p = math.exp(np.float64(_scaled(row[x], inverse[b], threshold)) - log_p)
                        q = math.exp(np.float64(_scaled(draft_row[x], inverse[b], _NEG_INF)) - log_q)
                        accept = p > 0.0 and np.float64(u) * q <= p
                token = x
                if not accept:
                    k0, k1 = _key(_RESIDUAL, seed[b], sample_index[b], position[b] + j)
                    token = _draw(
                        row, inverse[b], threshold, log_p, draft_row, log_q, j < depth, k0, k1, tile_max
                    )  # fmt: skip
            out[b, j] = token
            if not accept:
                count[b] = j + 1
                break
