"""The split of a step's budget over (sequence, position) slots on the device, without asking the host.

The optimum of :func:`adaptive_spec.allocate.allocate`, in three launches. Slots are ranked by worth, position and
sequence: each counts those before it (B K squared comparisons spread over the grid; no sort, no shared memory, any
size). For every cap on depth one program runs down the ranking, adds up what is within the cap, and divides by the
cost: every number of slots is priced, so that curves may have steps, dips and cliffs. The last program takes the
best cap and writes the depths. Sums and quotients are float64, inputs float32.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive_spec.kernels import launch
from adaptive_spec.kernels.reference_allocate import DeviceAllocation

NEG_INF = tl.constexpr(float("-inf"))
INT_MOST = tl.constexpr(0x7FFFFFFF)


@triton.jit
def worth_of(survival_ptr, weight_ptr, limit_ptr, b, k, depths, mask):
    """Return the worth of slots (b, k), at least 0, and -1 where none is on offer."""
    survival = tl.load(survival_ptr + b * depths + k, mask=mask, other=0.0)
    worth = survival * tl.load(weight_ptr + b, mask=mask, other=0.0)
    worth = tl.where(worth > 0.0, worth, 0.0)  # NaN too
    return tl.where(k < tl.load(limit_ptr + b, mask=mask, other=0), worth, -1.0)


@triton.jit(do_not_specialize=["batch", "depths"])
def rank_kernel(
    survival_ptr,
    weight_ptr,
    limit_ptr,
    rank_ptr,
    ranked_worth_ptr,
    ranked_depth_ptr,
    batch,
    depths,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Rank slots by falling worth, then position, then sequence.

    survival [B, K]; weight, limit [B]; rank [B, K] int32 out; ranked_worth [B K] float32 and ranked_depth [B K]
    int32 (1..K) out, in the order of ranks. Grid (cdiv(B K, BLOCK),).
    """
    slots = batch * depths
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # position-major, so that e breaks ties
    mask = e < slots
    b, k = e % batch, e // batch
    worth = worth_of(survival_ptr, weight_ptr, limit_ptr, b, k, depths, mask)
    rank = tl.zeros([BLOCK], tl.int32)
    for start in range(0, slots, TILE):
        f = start + tl.arange(0, TILE)
        other = worth_of(survival_ptr, weight_ptr, limit_ptr, f % batch, f // batch, depths, f < slots)
        other = tl.where(f < slots, other, -2.0)
        before = (other[None, :] > worth[:, None]) | ((other[None, :] == worth[:, None]) & (f[None, :] < e[:, None]))
        rank += tl.sum(before.to(tl.int32), axis=1)
    tl.store(rank_ptr + b * depths + k, rank, mask=mask)
    tl.store(ranked_worth_ptr + rank, worth, mask=mask)
    tl.store(ranked_depth_ptr + rank, k + 1, mask=mask)


@triton.jit
def objective_of(tokens, seconds, price, PRICED: tl.constexpr):
    """Return the goodput, or with a price the worth less the price of the seconds."""
    if PRICED:
        value = tokens - seconds * price
    else:
        value = tokens / seconds
    return value


@triton.jit
def cheapest_draft(draft_seconds_ptr, depth, depths, DEPTHS: tl.constexpr):
    """Return the least seconds of drafting to `depth` or deeper, and the shallowest depth that takes no more."""
    d = tl.arange(0, DEPTHS)
    seconds = tl.load(draft_seconds_ptr + d, mask=d <= depths, other=float("inf")).to(tl.float64)
    seconds = tl.where((d >= depth) & (d <= depths), seconds, float("inf"))
    least = tl.min(seconds, axis=0)
    return least, tl.min(tl.where(seconds == least, d, INT_MOST), axis=0)


@triton.jit(do_not_specialize=["batch", "depths"])
def price_kernel(
    ranked_worth_ptr,
    ranked_depth_ptr,
    verify_seconds_ptr,
    draft_seconds_ptr,
    value_ptr,
    slots_ptr,
    last_ptr,
    batch,
    depths,
    base_tokens,
    price,
    DEPTHS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRICED: tl.constexpr,
):
    """Find the best number of slots under one cap on depth, program_id(0) + 1.

    verify_seconds [>= B K + 1]; draft_seconds [K + 1]; value [K] float64 out, slots [K] int32 out (how many), last
    [K] int32 out (rank of the last one bought). DEPTHS covers K + 1. Grid (K,).
    """
    cap = tl.program_id(0) + 1
    draft, _ = cheapest_draft(draft_seconds_ptr, cap, depths, DEPTHS)
    base = tl.full((), 0.0, tl.float64) + base_tokens
    best = tl.full((), NEG_INF, tl.float64)
    best_slots = tl.full((), 0, tl.int32)
    last = tl.full((), -1, tl.int32)
    taken = tl.full((), 0, tl.int32)
    gained = tl.full((), 0.0, tl.float64)
    slots = batch * depths
    for start in range(0, slots, CHUNK):
        i = start + tl.arange(0, CHUNK)
        worth = tl.load(ranked_worth_ptr + i, mask=i < slots, other=-1.0)
        depth = tl.load(ranked_depth_ptr + i, mask=i < slots, other=0)
        kept = (worth >= 0.0) & (depth <= cap)
        count = taken + tl.cumsum(kept.to(tl.int32), axis=0)
        gain = tl.where(kept, worth, 0.0).to(tl.float64)
        tokens = base + gained + tl.cumsum(gain, axis=0)
        seconds = tl.load(verify_seconds_ptr + count, mask=kept, other=1.0).to(tl.float64) + draft
        value = tl.where(kept, objective_of(tokens, seconds, price, PRICED), NEG_INF)
        top = tl.max(value, axis=0)
        if top > best:
            best = top
            last = tl.min(tl.where(value == top, i, INT_MOST), axis=0)
            best_slots = tl.sum(tl.where(i == last, count, 0), axis=0)
        taken += tl.sum(kept.to(tl.int32), axis=0)
        gained += tl.sum(gain, axis=0)
    tl.store(value_ptr + tl.program_id(0), best)
    tl.store(slots_ptr + tl.program_id(0), best_slots)
    tl.store(last_ptr + tl.program_id(0), last)


@triton.jit(do_not_specialize=["batch", "depths"])
def choose_kernel(
    rank_ptr,
    verify_seconds_ptr,
    draft_seconds_ptr,
    value_ptr,
    slots_ptr,
    last_ptr,
    depth_ptr,
    cu_ptr,
    draft_depth_ptr,
    objective_ptr,
    batch,
    depths,
    base_tokens,
    price,
    DEPTHS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRICED: tl.constexpr,
):
    """Take the best cap and write depths and offsets; pointers as in :func:`price_kernel`. Grid (1,)."""
    c = tl.arange(0, DEPTHS)
    value = tl.load(value_ptr + c, mask=c < depths, other=NEG_INF)
    count = tl.load(slots_ptr + c, mask=c < depths, other=INT_MOST)
    best = tl.max(value, axis=0)
    fewest = tl.min(tl.where(value == best, count, INT_MOST), axis=0)
    cap = tl.min(tl.where((value == best) & (count == fewest), c, INT_MOST), axis=0)
    last = tl.load(last_ptr + cap)
    draft, _ = cheapest_draft(draft_seconds_ptr, 0, depths, DEPTHS)
    base = tl.full((), 0.0, tl.float64) + base_tokens
    idle = objective_of(base, tl.load(verify_seconds_ptr).to(tl.float64) + draft, price, PRICED)
    if (best > idle) == 0:
        best = idle
        last = tl.full((), -1, tl.int32)
    deepest = tl.full((), 0, tl.int32)
    rows = tl.full((), 0, tl.int32)
    tl.store(cu_ptr, 0)
    for start in range(0, batch, CHUNK):
        b = start + tl.arange(0, CHUNK)
        rank = tl.load(
            rank_ptr + b[:, None] * depths + c[None, :],
            mask=(b < batch)[:, None] & (c < depths)[None, :],
            other=INT_MOST,
        )
        depth = tl.sum(((rank <= last) & (c[None, :] <= cap)).to(tl.int32), axis=1)
        tl.store(depth_ptr + b, depth, mask=b < batch)
        width = tl.where(b < batch, depth + 1, 0)
        tl.store(cu_ptr + b + 1, rows + tl.cumsum(width, axis=0), mask=b < batch)
        rows += tl.sum(width, axis=0)
        deepest = tl.maximum(deepest, tl.max(depth, axis=0))
    _, asked = cheapest_draft(draft_seconds_ptr, deepest, depths, DEPTHS)
    tl.store(draft_depth_ptr, asked)
    tl.store(objective_ptr, best)


def allocate(
    survival: Tensor,
    weight: Tensor,
    limit: Tensor,
    base_tokens: float,
    verify_seconds: Tensor,
    draft_seconds: Tensor,
    *,
    price: float | None = None,
) -> DeviceAllocation:
    """Choose depths on the device; see :func:`adaptive_spec.kernels.ops.allocate`."""
    batch, depths = survival.shape
    device = survival.device
    chosen = DeviceAllocation(
        torch.zeros(batch, dtype=torch.int32, device=device),
        torch.zeros(batch + 1, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        torch.empty(1, dtype=torch.float64, device=device),
    )
    slots = batch * depths
    rank = torch.empty(slots, dtype=torch.int32, device=device)
    ranked_worth = torch.empty(slots, dtype=torch.float32, device=device)
    ranked_depth = torch.empty(slots, dtype=torch.int32, device=device)
    value = torch.empty(depths, dtype=torch.float64, device=device)
    count = torch.empty(depths, dtype=torch.int32, device=device)
    last = torch.empty(depths, dtype=torch.int32, device=device)
    interpreted = launch.interpreted()  # fewer and larger programs
    block, tile = (256, 4096) if interpreted else (32, 128)
    if slots:
        rank_kernel[(triton.cdiv(slots, block),)](
            survival.contiguous(),
            weight,
            limit,
            rank,
            ranked_worth,
            ranked_depth,
            batch,
            depths,
            BLOCK=block,
            TILE=tile,
            num_warps=4,
        )
    common = {"DEPTHS": triton.next_power_of_2(depths + 1), "PRICED": price is not None, **launch.EXACT}
    tokens, each = float(base_tokens), 0.0 if price is None else float(price)
    price_kernel[(depths,)](
        ranked_worth,
        ranked_depth,
        verify_seconds,
        draft_seconds,
        value,
        count,
        last,
        batch,
        depths,
        tokens,
        each,
        CHUNK=1024,
        num_warps=8,
        **common,
    )
    choose_kernel[(1,)](
        rank,
        verify_seconds,
        draft_seconds,
        value,
        count,
        last,
        *chosen,
        batch,
        depths,
        tokens,
        each,
        CHUNK=128,
        num_warps=8,
        **common,
    )
    return chosen
