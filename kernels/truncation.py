"""Top-k and top-p in Triton: the least scaled logit that they keep, in two passes over a row, more only at need.

One program a row. The first pass takes the maximum and the softmax mass of every *lane* (the tokens that share a
place in their tiles). A lower bound of the threshold follows from these: the k-th largest of the lanes' maxima for
top-k, since k lanes hold a token that large; and for top-p the logit under which all tokens together have less than
``1 - top_p`` of the mass. The second pass collects the tokens above the bound, usually a few hundred, and the
threshold is found among them by bisection over the floats' bits. Where more than a block of tokens lie above the
bound (nearly flat rows) the bisection reads the row itself: at most 32 passes for each of top-k and top-p.

Rows that are not truncated end at once.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive_spec.kernels import launch
from adaptive_spec.kernels.float_order import LOWEST_KEY, NEG_INF, NEG_INF_KEY, clean, key_of, value_of
from adaptive_spec.kernels.triton_noise import inverse_temperature

POS_INF = tl.constexpr(float("inf"))
FLOOR_MARGIN = tl.constexpr(1e-3)  # in logits, for the rounding of the masses


@triton.jit
def scaled(row_ptr, v, vocabulary, inverse):
    """Return scaled logits of tokens v; NaN and what lies outside the vocabulary are minus infinity."""
    return clean(tl.load(row_ptr + v, mask=v < vocabulary, other=NEG_INF)) * inverse


@triton.jit
def middle(low, high):
    """Return the integer half-way, rounded down, without overflow."""
    return (low & high) + ((low ^ high) >> 1)


@triton.jit
def kth_largest(key, peak_key, k):
    """Return the k-th largest of a block of keys; there are at least k, none above `peak_key`."""
    low = tl.full((), LOWEST_KEY, tl.int32)
    high = peak_key + 1
    while low + 1 < high:
        pivot = middle(low, high)
        enough = tl.sum((key >= pivot).to(tl.int32), axis=0) >= k
        low = tl.where(enough, pivot, low)
        high = tl.where(enough, high, pivot)
    return low


@triton.jit
def nucleus(key, mass, peak_key, target):
    """Return the least key above which less than `target` of the block's mass lies."""
    low = tl.full((), NEG_INF_KEY - 1, tl.int32)
    high = peak_key
    while low + 1 < high:
        pivot = middle(low, high)
        within = tl.sum(tl.where(key > pivot, mass, 0.0), axis=0) < target
        high = tl.where(within, pivot, high)
        low = tl.where(within, low, pivot)
    return high


@triton.jit
def count_of_row(row_ptr, vocabulary, inverse, key, BLOCK: tl.constexpr):
    """Count a row's tokens of at least `key`."""
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        v = start + tl.arange(0, BLOCK)
        above = (key_of(scaled(row_ptr, v, vocabulary, inverse)) >= key) & (v < vocabulary)
        count += above.to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def mass_of_row(row_ptr, vocabulary, inverse, peak, key, BLOCK: tl.constexpr):
    """Return the mass of a row's tokens above `key`."""
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        x = scaled(row_ptr, start + tl.arange(0, BLOCK), vocabulary, inverse)
        mass += tl.where(key_of(x) > key, tl.exp(x - peak), 0.0)
    return tl.sum(mass, axis=0)


@triton.jit
def kth_largest_of_row(row_ptr, vocabulary, inverse, peak_key, k, BLOCK: tl.constexpr):
    """Do as :func:`kth_largest`, reading the row at each step."""
    low = tl.full((), LOWEST_KEY, tl.int32)
    high = peak_key + 1
    while low + 1 < high:
        pivot = middle(low, high)
        enough = count_of_row(row_ptr, vocabulary, inverse, pivot, BLOCK) >= k
        low = tl.where(enough, pivot, low)
        high = tl.where(enough, high, pivot)
    return low


@triton.jit
def nucleus_of_row(row_ptr, vocabulary, inverse, peak, peak_key, target, BLOCK: tl.constexpr):
    """Do as :func:`nucleus`, reading the row at each step."""
    low = tl.full((), NEG_INF_KEY - 1, tl.int32)
    high = peak_key
    while low + 1 < high:
        pivot = middle(low, high)
        within = mass_of_row(row_ptr, vocabulary, inverse, peak, pivot, BLOCK) < target
        high = tl.where(within, pivot, high)
        low = tl.where(within, low, pivot)
    return high


@triton.jit(do_not_specialize=["width"])
def threshold_kernel(
    logits_ptr,
    row_stride,
    vocabulary,
    cu_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    candidate_ptr,
    threshold_ptr,
    width,
    BLOCK: tl.constexpr,
):
    """Find the least scaled logit that top-k, and top-p on what is left, keep.

    logits [N, V], rows `row_stride` apart; cu [B + 1]; temperature, top_k, top_p [B]; candidate [N, BLOCK] float32
    scratch; threshold [N] float32 out, minus infinity where nothing is cut. Grid (B * width,).
    """
    b = tl.program_id(0) // width
    row = (tl.load(cu_ptr + b) + tl.program_id(0) % width).to(tl.int64)
    if row >= tl.load(cu_ptr + b + 1):
        return
    tl.store(threshold_ptr + row, NEG_INF)
    inverse = inverse_temperature(tl.load(temperature_ptr + b))
    k = tl.load(top_k_ptr + b)
    p = tl.load(top_p_ptr + b)
    cut_k = (k > 0) & (k < vocabulary)
    cut_p = p < 1.0
    if (inverse == 0.0) | ((cut_k | cut_p) == 0):
        return
    row_ptr = logits_ptr + row * row_stride
    lane = tl.arange(0, BLOCK)
    lane_max = tl.full([BLOCK], NEG_INF, tl.float32)
    lane_mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        x = scaled(row_ptr, start + lane, vocabulary, inverse)
        top = tl.maximum(lane_max, x)
        least = tl.where(top == NEG_INF, 0.0, top)
        lane_mass = lane_mass * tl.exp(lane_max - least) + tl.exp(x - least)
        lane_max = top
    peak = tl.max(lane_max, axis=0)
    if (peak == NEG_INF) | (peak == POS_INF):  # nothing can be drawn, or nothing finite beside the peak
        tl.store(threshold_ptr + row, peak)
        return
    total = tl.sum(lane_mass * tl.exp(lane_max - peak), axis=0)
    peak_key = key_of(peak)

    bound = tl.full((), NEG_INF, tl.float32)
    if cut_k:
        if k <= BLOCK:
            bound = value_of(kth_largest(key_of(lane_max), peak_key, k))
    else:
        share = tl.maximum((1.0 - p) * total / vocabulary, 1e-37)
        bound = peak + tl.log(share) - FLOOR_MARGIN

    count = tl.full((), 0, tl.int32)
    for start in range(0, vocabulary, BLOCK):
        x = scaled(row_ptr, start + lane, vocabulary, inverse)
        if tl.max(x, axis=0) >= bound:
            wanted = (x >= bound) & (x > NEG_INF)
            place = count + tl.cumsum(wanted.to(tl.int32), axis=0) - 1
            tl.store(candidate_ptr + row * BLOCK + place, x, mask=wanted & (place < BLOCK))
            count += tl.sum(wanted.to(tl.int32), axis=0)

    k_key = tl.full((), NEG_INF_KEY, tl.int32)
    p_key = tl.full((), NEG_INF_KEY, tl.int32)
    if count <= BLOCK:
        tl.debug_barrier()  # what other threads have stored is read next
        x = tl.load(candidate_ptr + row * BLOCK + lane, mask=lane < count, other=NEG_INF)
        key = key_of(x)
        if cut_k & (count >= k):  # where fewer than k are finite all of them are kept
            k_key = kth_largest(key, peak_key, k)
        if cut_p:
            mass = tl.where(key >= k_key, tl.exp(x - peak), 0.0)
            if cut_k:
                total = tl.sum(mass, axis=0)
            p_key = nucleus(key, mass, peak_key, p * total)
    else:
        if cut_k:
            k_key = kth_largest_of_row(row_ptr, vocabulary, inverse, peak_key, k, BLOCK)
        if cut_p:
            if cut_k:
                total = mass_of_row(row_ptr, vocabulary, inverse, peak, k_key - 1, BLOCK)
            # Above the k-th largest all tokens count, and below it the mass no longer rises: the same bisection.
            p_key = tl.maximum(nucleus_of_row(row_ptr, vocabulary, inverse, peak, peak_key, p * total, BLOCK), k_key)
    tl.store(threshold_ptr + row, value_of(tl.maximum(k_key, p_key)))


def thresholds(logits: Tensor, cu: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, width: int) -> Tensor:
    """Return the least scaled logit that each row keeps, float32 [N]; rows of `logits` are contiguous."""
    rows, vocabulary = logits.shape
    # Rows that aren't aligned are read token by token, each under its own predicate: with as many tokens in a tile,
    # Triton 3.6 keeps a few of these in memory.
    busy = launch.BUSY_BLOCK if logits.stride(0) % 16 == 0 else launch.BUSY_BLOCK // 2
    block = launch.tiling(rows, vocabulary, logits.device, busy).block
    candidate = torch.empty((rows, block), dtype=torch.float32, device=logits.device)
    threshold = torch.empty(rows, dtype=torch.float32, device=logits.device)
    threshold_kernel[((cu.shape[0] - 1) * width,)](
        logits,
        logits.stride(0),
        vocabulary,
        cu,
        temperature,
        top_k,
        top_p,
        candidate,
        threshold,
        width,
        BLOCK=block,
        num_warps=launch.WARPS,
        **launch.registers(128),
        **launch.EXACT,
    )
    return threshold
