"""Greedy and match-mode verification in Triton: one pass over the logits, and no probabilities in memory.

Layout of the arguments as in :mod:`adaptive_spec.kernels.ops`. Program (b * (max_depth + 1) + j, s) looks at split s
of row ``cu[b] + j``; those beyond a sequence's rows end at once, so that the grid depends on shapes alone and the
launch can be captured in a CUDA graph. Each split leaves its best token, packed with its score into one integer; a
second kernel takes the best of the splits and compares it with the draft.

A token of scaled logit x and upper random word h can reach at most ``x - log(h / 2**32)``. A tile in which this
bound stays below the best score so far is done after the hash: no noise is worked out for it. The noise of a whole
tile is needed as often as a new best may appear, some log(tiles) times a row. The skip is exact.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive_spec.kernels import launch, noise
from adaptive_spec.kernels.float_order import NEG_INF, NOTHING, TOKEN_MOST, clean, pack, unpack_token
from adaptive_spec.kernels.triton_noise import gumbel, gumbel_bound, high_word, inverse_temperature, row_key
from adaptive_spec.kernels.truncation import thresholds

MATCH_STREAM = tl.constexpr(noise.MATCH_STREAM)


@triton.jit
def argmax_of_tiles(row_ptr, vocabulary, first, last, BLOCK: tl.constexpr):
    """Return the largest logit of tiles first..last-1 and the lowest token that has it; lanes meet only at the end."""
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], NEG_INF, tl.float32)
    token = tl.zeros([BLOCK], tl.int32)
    for tile in range(first, last):
        v = tile * BLOCK + lane
        x = clean(tl.load(row_ptr + v, mask=v < vocabulary, other=NEG_INF))
        better = x > best
        best = tl.where(better, x, best)
        token = tl.where(better, v, token)
    top = tl.max(best, axis=0)
    return top, tl.min(tl.where(best == top, token, TOKEN_MOST), axis=0)


@triton.jit
def sample_of_tiles(row_ptr, vocabulary, first, last, inverse, threshold, k0, k1, BLOCK: tl.constexpr):
    """Return the best logit * inverse + noise of tiles first..last-1 among those kept, and its token."""
    lane = tl.arange(0, BLOCK)
    best = tl.full((), NEG_INF, tl.float32)
    token = tl.full((), 0, tl.int32)
    for tile in range(first, last):
        v = tile * BLOCK + lane
        x = clean(tl.load(row_ptr + v, mask=v < vocabulary, other=NEG_INF)) * inverse
        x = tl.where(x >= threshold, x, NEG_INF)
        high = high_word(k0, k1, v)
        if tl.max(x + gumbel_bound(high), axis=0) >= best:
            score = x + gumbel(k0, high)
            top = tl.max(score, axis=0)
            if top > best:  # of equal ones the earlier tile's token is the lower
                best = top
                token = tl.min(tl.where(score == top, v, TOKEN_MOST), axis=0)
    return best, token


@triton.jit(do_not_specialize=["width", "tiles"])
def greedy_kernel(logits_ptr, row_stride, vocabulary, cu_ptr, packed_ptr, width, tiles, BLOCK: tl.constexpr):
    """Find the best token of each split of each row.

    logits [N, V], rows `row_stride` apart; cu [B + 1]; packed [N, S] int64 out. Grid (B * width, S).
    """
    b = tl.program_id(0) // width
    split = tl.program_id(1)
    row = (tl.load(cu_ptr + b) + tl.program_id(0) % width).to(tl.int64)
    if row >= tl.load(cu_ptr + b + 1):
        return
    first = split * tiles
    last = tl.minimum(first + tiles, tl.cdiv(vocabulary, BLOCK))
    best, token = argmax_of_tiles(logits_ptr + row * row_stride, vocabulary, first, last, BLOCK)
    tl.store(packed_ptr + row * tl.num_programs(1) + split, pack(best, token))


@triton.jit(do_not_specialize=["width", "tiles"])
def match_kernel(
    logits_ptr,
    row_stride,
    vocabulary,
    cu_ptr,
    temperature_ptr,
    seed_ptr,
    sample_index_ptr,
    position_ptr,
    threshold_ptr,
    packed_ptr,
    width,
    tiles,
    BLOCK: tl.constexpr,
):
    """Draw a token for each split of each row: argmax of logit / T + noise over what the threshold keeps.

    As :func:`greedy_kernel`; temperature, seed, sample_index, position [B]; threshold [N] in scaled logits.
    """
    b = tl.program_id(0) // width
    j = tl.program_id(0) % width
    split = tl.program_id(1)
    row = (tl.load(cu_ptr + b) + j).to(tl.int64)
    if row >= tl.load(cu_ptr + b + 1):
        return
    inverse = inverse_temperature(tl.load(temperature_ptr + b))
    first = split * tiles
    last = tl.minimum(first + tiles, tl.cdiv(vocabulary, BLOCK))
    row_ptr = logits_ptr + row * row_stride
    if inverse == 0.0:
        best, token = argmax_of_tiles(row_ptr, vocabulary, first, last, BLOCK)
    else:
        k0, k1 = row_key(
            tl.load(seed_ptr + b), tl.load(sample_index_ptr + b), tl.load(position_ptr + b) + j, MATCH_STREAM
        )
        best, token = sample_of_tiles(
            row_ptr, vocabulary, first, last, inverse, tl.load(threshold_ptr + row), k0, k1, BLOCK
        )
    tl.store(packed_ptr + row * tl.num_programs(1) + split, pack(best, token))


@triton.jit(do_not_specialize=["splits", "width"])
def accept_kernel(
    packed_ptr, splits, cu_ptr, draft_ptr, tokens_ptr, count_ptr, width, WIDTH: tl.constexpr, SPLITS: tl.constexpr
):
    """Keep each sequence's tokens up to the first that differs from its draft.

    packed [N, splits] int64; cu [B + 1]; draft [N - B]; tokens [B, width] out, padded with -1; count [B] out.
    Grid (B,); WIDTH and SPLITS are powers of two that cover width and splits.
    """
    b = tl.program_id(0)
    first = tl.load(cu_ptr + b)
    depth = tl.load(cu_ptr + b + 1) - first - 1
    j = tl.arange(0, WIDTH)
    s = tl.arange(0, SPLITS)
    is_row = (j <= depth) & (j < width)
    packed = tl.load(
        packed_ptr + (first + j).to(tl.int64)[:, None] * splits + s[None, :],
        mask=is_row[:, None] & (s < splits)[None, :],
        other=NOTHING,
    )
    token = unpack_token(tl.max(packed, axis=1))
    drafted = tl.load(draft_ptr + first - b + j, mask=j < depth, other=-1)
    accepted = tl.min(tl.where((j < depth) & (token == drafted), WIDTH, j), axis=0)
    tl.store(tokens_ptr + b * width + j, tl.where(is_row & (j <= accepted), token, -1), mask=j < width)
    tl.store(count_ptr + b, accepted + 1)


def verify_greedy(logits: Tensor, cu: Tensor, draft: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    """Verify drafts against the argmax of each row; see :func:`adaptive_spec.kernels.ops.verify_greedy`."""
    rows, vocabulary = logits.shape
    batch, width = cu.shape[0] - 1, max_depth + 1
    cut = launch.tiling(rows, vocabulary, logits.device)
    packed = torch.empty((rows, cut.splits), dtype=torch.int64, device=logits.device)
    logits = rows_of(logits)
    if batch:
        greedy_kernel[(batch * width, cut.splits)](
            logits,
            logits.stride(0),
            vocabulary,
            cu,
            packed,
            width,
            cut.tiles,
            BLOCK=cut.block,
            num_warps=launch.WARPS,
            **launch.EXACT,
        )
    return accept(packed, cu, draft, width)


def verify_match(
    logits: Tensor,
    cu: Tensor,
    draft: Tensor,
    max_depth: int,
    *,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """Verify drafts in match mode; see :func:`adaptive_spec.kernels.ops.verify_match`."""
    rows, vocabulary = logits.shape
    batch, width = cu.shape[0] - 1, max_depth + 1
    cut = launch.tiling(rows, vocabulary, logits.device, launch.BUSY_BLOCK)
    packed = torch.empty((rows, cut.splits), dtype=torch.int64, device=logits.device)
    logits = rows_of(logits)
    if batch:
        threshold = thresholds(logits, cu, temperature, top_k, top_p, width)
        match_kernel[(batch * width, cut.splits)](
            logits,
            logits.stride(0),
            vocabulary,
            cu,
            temperature,
            seed,
            sample_index,
            position,
            threshold,
            packed,
            width,
            cut.tiles,
            BLOCK=cut.block,
            num_warps=launch.WARPS,
            **launch.EXACT,
        )
    return accept(packed, cu, draft, width)


def accept(packed: Tensor, cu: Tensor, draft: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Launch :func:`accept_kernel`."""
    batch = cu.shape[0] - 1
    tokens = torch.empty((batch, width), dtype=torch.int32, device=cu.device)
    count = torch.empty(batch, dtype=torch.int32, device=cu.device)
    if batch:
        splits = packed.shape[1]
        accept_kernel[(batch,)](
            packed,
            splits,
            cu,
            draft,
            tokens,
            count,
            width,
            WIDTH=triton.next_power_of_2(width),
            SPLITS=launch.SPLITS_MOST,
            num_warps=1,
        )
    return tokens, count


def rows_of(logits: Tensor) -> Tensor:
    """Return logits whose rows are contiguous; only strided columns are copied."""
    return logits if logits.stride(1) == 1 or logits.shape[1] == 1 else logits.contiguous()
