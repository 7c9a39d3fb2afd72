"""Ratio-mode verification of sampled drafts in Triton, without softmax: Leviathan et al. (2023), Chen et al. (2023).

A draft x drawn from q is accepted with chance min(1, p(x) / q(x)); the first one refused is replaced by a draw from
max(0, p - q), and a sequence whose drafts are all accepted gains a draw from p. Probabilities are never written: a
first kernel leaves maximum and sum of every row's exponentials, for target and draft; a second accepts, from these
and the drafts' own logits alone; a third draws for the one row of each sequence that emits a token of the target's,
by Gumbel-max over log(p - q). The noise is that of :mod:`adaptive_spec.kernels.noise`, in streams of their own.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive_spec.kernels import launch, noise
from adaptive_spec.kernels.float_order import NEG_INF, NEG_INF_KEY, NOTHING, TOKEN_MOST, clean, pack, unpack_token
from adaptive_spec.kernels.triton_noise import (
    gumbel,
    gumbel_bound,
    high_word,
    inverse_temperature,
    low_word,
    row_key,
    uniform,
)
from adaptive_spec.kernels.truncation import thresholds
from adaptive_spec.kernels.verify import argmax_of_tiles, rows_of

ACCEPT_STREAM = tl.constexpr(noise.ACCEPT_STREAM)
RESIDUAL_STREAM = tl.constexpr(noise.RESIDUAL_STREAM)
FLOAT_MOST = tl.constexpr(3.4028234663852886e38)
LEAST_NORMAL = tl.constexpr(2.0**-126)


@triton.jit
def scaled(row_ptr, v, mask, inverse, threshold):
    """Return scaled logits, finite or minus infinity; those under the threshold are minus infinity."""
    x = tl.minimum(clean(tl.load(row_ptr + v, mask=mask, other=NEG_INF)) * inverse, FLOAT_MOST)
    return tl.where(x >= threshold, x, NEG_INF)


@triton.jit(do_not_specialize=["width", "tiles"])
def row_stats_kernel(
    logits_ptr,
    row_stride,
    vocabulary,
    cu_ptr,
    temperature_ptr,
    threshold_ptr,
    top_ptr,
    total_ptr,
    packed_ptr,
    width,
    tiles,
    DRAFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Leave maximum and sum of exponentials of each split of each row; of greedy rows the best token instead.

    logits [N, V] or, with DRAFT, [N - B, V]; cu [B + 1]; temperature [B]; threshold [N] (target only); top, total
    [rows, S] float32 out; packed [N, S] int64 out (target only). Grid (B * width, S).
    """
    b = tl.program_id(0) // width
    j = tl.program_id(0) % width
    split = tl.program_id(1)
    first_row = tl.load(cu_ptr + b)
    rows = tl.load(cu_ptr + b + 1) - first_row
    if DRAFT:
        rows -= 1
        first_row -= b
    if j >= rows:
        return
    row = (first_row + j).to(tl.int64)
    inverse = inverse_temperature(tl.load(temperature_ptr + b))
    first = split * tiles
    last = tl.minimum(first + tiles, tl.cdiv(vocabulary, BLOCK))
    at = row * tl.num_programs(1) + split
    row_ptr = logits_ptr + row * row_stride
    if inverse == 0.0:
        if not DRAFT:
            best, token = argmax_of_tiles(row_ptr, vocabulary, first, last, BLOCK)
            tl.store(packed_ptr + at, pack(best, token))
    else:
        threshold = tl.full((), NEG_INF, tl.float32)
        if not DRAFT:
            threshold = tl.minimum(tl.load(threshold_ptr + row), FLOAT_MOST)
        top = tl.full([BLOCK], NEG_INF, tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for tile in range(first, last):
            v = tile * BLOCK + tl.arange(0, BLOCK)
            x = scaled(row_ptr, v, v < vocabulary, inverse, threshold)
            new_top = tl.maximum(top, x)
            finite = tl.where(new_top == NEG_INF, 0.0, new_top)
            total = total * tl.exp(top - finite) + tl.exp(x - finite)
            top = new_top
        peak = tl.max(top, axis=0)
        finite_peak = tl.where(peak == NEG_INF, 0.0, peak)
        tl.store(top_ptr + at, peak)
        tl.store(total_ptr + at, tl.sum(total * tl.exp(top - finite_peak), axis=0))


@triton.jit
def log_sum(top_ptr, total_ptr, row, splits, mask, SPLITS: tl.constexpr):
    """Return log-sum-exp of some rows from their splits; 0 where a row has no mass."""
    s = tl.arange(0, SPLITS)
    at = row.to(tl.int64)[:, None] * splits + s[None, :]
    here = mask[:, None] & (s < splits)[None, :]
    top = tl.load(top_ptr + at, mask=here, other=NEG_INF)
    total = tl.load(total_ptr + at, mask=here, other=0.0)
    peak = tl.max(top, axis=1)
    peak = tl.where(peak == NEG_INF, 0.0, peak)
    mass = tl.sum(total * tl.exp(top - peak[:, None]), axis=1)
    return tl.where(mass > 0.0, peak + tl.log(tl.maximum(mass, LEAST_NORMAL)), 0.0)


@triton.jit(do_not_specialize=["splits", "width"])
def ratio_accept_kernel(
    logits_ptr,
    row_stride,
    draft_logits_ptr,
    draft_stride,
    vocabulary,
    cu_ptr,
    draft_ptr,
    temperature_ptr,
    threshold_ptr,
    seed_ptr,
    sample_index_ptr,
    position_ptr,
    top_ptr,
    total_ptr,
    draft_top_ptr,
    draft_total_ptr,
    packed_ptr,
    splits,
    tokens_ptr,
    count_ptr,
    log_p_ptr,
    log_q_ptr,
    width,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Accept each sequence's drafts up to the first refused.

    Pointers as in :func:`row_stats_kernel`; draft [N - B]; tokens [B, width] out: accepted drafts, of a greedy
    sequence its own token too, padded with -1; count [B] out; log_p, log_q [B] out: log-sum-exp of the row that
    the residual is drawn for, and of its draft. Grid (B,).
    """
    b = tl.program_id(0)
    first = tl.load(cu_ptr + b)
    depth = tl.load(cu_ptr + b + 1) - first - 1
    inverse = inverse_temperature(tl.load(temperature_ptr + b))
    j = tl.arange(0, WIDTH)
    is_row = (j <= depth) & (j < width)
    is_draft = (j < depth) & (j < width)
    token = tl.load(draft_ptr + first - b + j, mask=is_draft, other=-1)
    known = is_draft & (token >= 0) & (token < vocabulary)
    accepted_own = tl.zeros([WIDTH], tl.int32) - 1
    log_p = tl.zeros([WIDTH], tl.float32)
    log_q = tl.zeros([WIDTH], tl.float32)
    if inverse == 0.0:
        s = tl.arange(0, SPLITS)
        packed = tl.load(
            packed_ptr + (first + j).to(tl.int64)[:, None] * splits + s[None, :],
            mask=is_row[:, None] & (s < splits)[None, :],
            other=NOTHING,
        )
        accepted_own = unpack_token(tl.max(packed, axis=1))
        accept = is_draft & (token == accepted_own)
    else:
        log_p = log_sum(top_ptr, total_ptr, first + j, splits, is_row, SPLITS)
        log_q = log_sum(draft_top_ptr, draft_total_ptr, first - b + j, splits, is_draft, SPLITS)
        threshold = tl.minimum(tl.load(threshold_ptr + first + j, mask=is_row, other=NEG_INF), FLOAT_MOST)
        at = logits_ptr + (first + j).to(tl.int64) * row_stride
        p = tl.exp(scaled(at, token, known, inverse, threshold) - log_p)
        at = draft_logits_ptr + (first - b + j).to(tl.int64) * draft_stride
        q = tl.exp(scaled(at, token, known, inverse, NEG_INF) - log_q)
        k0, k1 = row_key(
            tl.load(seed_ptr + b), tl.load(sample_index_ptr + b), tl.load(position_ptr + b) + j, ACCEPT_STREAM
        )
        high = high_word(k0, k1, tl.zeros([WIDTH], tl.int32))
        accept = known & (p > 0.0) & (uniform(high, low_word(k0, high)) * q <= p)
    accepted = tl.min(tl.where(accept, WIDTH, j), axis=0)
    emitted = tl.where(j < accepted, token, tl.where(j == accepted, accepted_own, -1))
    tl.store(tokens_ptr + b * width + j, emitted, mask=j < width)
    tl.store(count_ptr + b, accepted + 1)
    tl.store(log_p_ptr + b, tl.sum(tl.where(j == accepted, log_p, 0.0), axis=0))
    tl.store(log_q_ptr + b, tl.sum(tl.where(j == accepted, log_q, 0.0), axis=0))


@triton.jit(do_not_specialize=["tiles"])
def residual_kernel(
    logits_ptr,
    row_stride,
    draft_logits_ptr,
    draft_stride,
    vocabulary,
    cu_ptr,
    temperature_ptr,
    threshold_ptr,
    seed_ptr,
    sample_index_ptr,
    position_ptr,
    count_ptr,
    log_p_ptr,
    log_q_ptr,
    packed_ptr,
    tiles,
    BLOCK: tl.constexpr,
):
    """Draw from max(0, p - q), or from p where all drafts were accepted, for one row of each sequence.

    Pointers as in :func:`ratio_accept_kernel`; packed [B, S, 2] int64 out: each split's best of the residual, and
    of p, which serves where rounding left no residual. Nothing for greedy sequences. Grid (B, S).
    """
    b = tl.program_id(0)
    split = tl.program_id(1)
    inverse = inverse_temperature(tl.load(temperature_ptr + b))
    if inverse == 0.0:
        return
    first_row = tl.load(cu_ptr + b)
    depth = tl.load(cu_ptr + b + 1) - first_row - 1
    accepted = tl.load(count_ptr + b) - 1
    row = (first_row + accepted).to(tl.int64)
    refused = accepted < depth
    row_ptr = logits_ptr + row * row_stride
    draft_row_ptr = draft_logits_ptr + (row - b) * draft_stride
    threshold = tl.minimum(tl.load(threshold_ptr + row), FLOAT_MOST)
    log_p = tl.load(log_p_ptr + b)
    log_q = tl.load(log_q_ptr + b)
    k0, k1 = row_key(
        tl.load(seed_ptr + b), tl.load(sample_index_ptr + b), tl.load(position_ptr + b) + accepted, RESIDUAL_STREAM
    )
    lane = tl.arange(0, BLOCK)
    best = tl.full((), NEG_INF, tl.float32)
    token = tl.full((), 0, tl.int32)
    spare = tl.full((), NEG_INF, tl.float32)
    spare_token = tl.full((), 0, tl.int32)
    first = split * tiles
    last = tl.minimum(first + tiles, tl.cdiv(vocabulary, BLOCK))
    for tile in range(first, last):
        v = tile * BLOCK + lane
        mask = v < vocabulary
        x = scaled(row_ptr, v, mask, inverse, threshold) - log_p
        high = high_word(k0, k1, v)
        # The residual is at most p, so its score is within p's bound.
        if tl.max(x + gumbel_bound(high), axis=0) >= best:
            g = gumbel(k0, high)
            score = x + g
            top = tl.max(score, axis=0)
            if top > spare:
                spare = top
                spare_token = tl.min(tl.where(score == top, v, TOKEN_MOST), axis=0)
            if refused:
                q = tl.exp(scaled(draft_row_ptr, v, mask, inverse, NEG_INF) - log_q)
                left = tl.exp(x) - q
                score = tl.where(left > 0.0, tl.log(tl.maximum(left, LEAST_NORMAL)) + g, NEG_INF)
                top = tl.max(score, axis=0)
            if top > best:
                best = top
                token = tl.min(tl.where(score == top, v, TOKEN_MOST), axis=0)
    at = (b * tl.num_programs(1) + split) * 2
    tl.store(packed_ptr + at, pack(best, token))
    tl.store(packed_ptr + at + 1, pack(spare, spare_token))


@triton.jit(do_not_specialize=["splits", "width"])
def emit_kernel(packed_ptr, splits, temperature_ptr, count_ptr, tokens_ptr, width, SPLITS: tl.constexpr):
    """Write the token drawn after each sequence's accepted drafts; packed as in :func:`residual_kernel`. Grid (B,)."""
    b = tl.program_id(0)
    if inverse_temperature(tl.load(temperature_ptr + b)) == 0.0:
        return
    s = tl.arange(0, SPLITS)
    at = (b * splits + s) * 2
    best = tl.max(tl.load(packed_ptr + at, mask=s < splits, other=NOTHING), axis=0)
    spare = tl.max(tl.load(packed_ptr + at + 1, mask=s < splits, other=NOTHING), axis=0)
    token = unpack_token(tl.where((best >> 32) <= NEG_INF_KEY, spare, best))
    tl.store(tokens_ptr + b * width + tl.load(count_ptr + b) - 1, token)


def verify_ratio(
    logits: Tensor,
    cu: Tensor,
    draft: Tensor,
    max_depth: int,
    *,
    draft_logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """Verify sampled drafts; see :func:`adaptive_spec.kernels.ops.verify_ratio`."""
    rows, vocabulary = logits.shape
    batch, width, device = cu.shape[0] - 1, max_depth + 1, logits.device
    tokens = torch.empty((batch, width), dtype=torch.int32, device=device)
    count = torch.empty(batch, dtype=torch.int32, device=device)
    if not batch:
        return tokens, count
    logits, draft_logits = rows_of(logits), rows_of(draft_logits)
    cut = launch.tiling(rows, vocabulary, device, launch.BUSY_BLOCK)

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    top, total = floats(rows, cut.splits), floats(rows, cut.splits)
    draft_top, draft_total = floats(len(draft), cut.splits), floats(len(draft), cut.splits)
    packed = torch.empty((rows, cut.splits), dtype=torch.int64, device=device)
    log_p, log_q = floats(batch), floats(batch)
    threshold = thresholds(logits, cu, temperature, top_k, top_p, width)
    tiled = {"num_warps": launch.WARPS, **launch.EXACT}
    for x, x_top, x_total, is_draft in ((logits, top, total, False), (draft_logits, draft_top, draft_total, True)):
        if len(x):
            row_stats_kernel[(batch * width, cut.splits)](
                x,
                x.stride(0),
                vocabulary,
                cu,
                temperature,
                threshold,
                x_top,
                x_total,
                packed,
                width,
                cut.tiles,
                DRAFT=is_draft,
                BLOCK=cut.block,
                **tiled,
            )
    ratio_accept_kernel[(batch,)](
        logits,
        logits.stride(0),
        draft_logits,
        draft_logits.stride(0),
        vocabulary,
        cu,
        draft,
        temperature,
        threshold,
        seed,
        sample_index,
        position,
        top,
        total,
        draft_top,
        draft_total,
        packed,
        cut.splits,
        tokens,
        count,
        log_p,
        log_q,
        width,
        WIDTH=triton.next_power_of_2(width),
        SPLITS=launch.SPLITS_MOST,
        num_warps=1,
        **launch.EXACT,
    )
    cut = launch.tiling(batch, vocabulary, device, launch.BUSY_BLOCK)
    drawn = torch.empty((batch, cut.splits, 2), dtype=torch.int64, device=device)
    residual_kernel[(batch, cut.splits)](
        logits,
        logits.stride(0),
        draft_logits,
        draft_logits.stride(0),
        vocabulary,
        cu,
        temperature,
        threshold,
        seed,
        sample_index,
        position,
        count,
        log_p,
        log_q,
        drawn,
        cut.tiles,
        BLOCK=cut.block,
        **tiled,
    )
    emit_kernel[(batch,)](drawn, cut.splits, temperature, count, tokens, width, SPLITS=launch.SPLITS_MOST, num_warps=1)
    return tokens, count
