"""Verification attention in Triton: ragged queries, 1 to K + 1 a sequence, over a paged cache, with split keys.

A launch mixes decoding sequences of any width and prefill chunks. The rows of a program are some consecutive queries
of one sequence times the query heads that share a key-value head, so that each key is read once for all of them.
Programs are laid out by an upper bound that shapes alone give, ``N // queries + B``, and find their sequence by
bisection of the offsets (as vLLM's unified Triton attention does): nothing is copied to the host.

Keys of narrow sequences are split over programs, flash-decoding style (Dao et al., 2023); each leaves its softmax's
maximum, sum and unscaled values, and a second kernel merges them. Wide ones (prefill chunks) fill the device by
their number and are not split. Arithmetic is float32 with operands of the cache's type; float32 operands are
multiplied in three TF32 parts on NVIDIA, whose plain float32 products do not fit the registers.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive_spec.kernels import launch

LOG2E = tl.constexpr(1.4426950408889634)
NEG_INF = tl.constexpr(float("-inf"))

NARROW = 32  # the widest sequence whose keys are split
SPLITS_MOST = 16
KEYS_LEAST = 256  # that a split should have
LEAST_DOT = 16  # a matrix product's least inner dimension


@triton.jit(do_not_specialize=["table_row", "batch"])
def attention_kernel(
    q_ptr,
    q_row,
    q_head,
    k_ptr,
    v_ptr,
    kv_page,
    kv_token,
    kv_head,
    table_ptr,
    table_row,
    cu_ptr,
    kv_len_ptr,
    batch,
    scale,
    out_ptr,
    part_ptr,
    top_ptr,
    total_ptr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    NARROW: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend for some queries of one sequence, over one split of its keys.

    q [N, HEADS, HEAD_DIM] with strides q_row, q_head; k, v [P, PAGE, HKV, HEAD_DIM] with strides kv_*; table
    [B, any]; cu [B + 1]; kv_len [B]. out [N, HEADS, HEAD_DIM], contiguous. With more than one split: part
    [B * NARROW, HEADS, SPLITS, HEAD_DIM], top and total [B * NARROW, HEADS, SPLITS], float32. ROWS covers QUERIES *
    GROUP, HEAD_WIDTH covers HEAD_DIM: powers of two. Query j of a sequence's w sees its first kv_len - w + j + 1
    keys. Grid (N // QUERIES + B, HKV, SPLITS); SPLIT says whether SPLITS is more than 1.
    """
    tile = tl.program_id(0)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    b = tl.full((), 0, tl.int32)
    beyond = b + batch
    while b + 1 < beyond:
        pivot = (b + beyond) // 2
        later = tl.load(cu_ptr + pivot) // QUERIES + pivot <= tile
        b = tl.where(later, pivot, b)
        beyond = tl.where(later, beyond, pivot)
    row = tl.load(cu_ptr + b)
    width = tl.load(cu_ptr + b + 1) - row
    first = (tile - row // QUERIES - b) * QUERIES
    if first >= width:
        return
    length = tl.load(kv_len_ptr + b)
    low = 0
    high = length - width + tl.minimum(first + QUERIES, width)  # what the last query sees
    narrow = width <= NARROW
    splits = tl.num_programs(2)
    if SPLIT:
        if narrow:
            each = tl.cdiv(tl.cdiv(high, KEYS), splits) * KEYS
            low = split * each
            high = tl.minimum(low + each, high)
        elif split > 0:
            return
    m = tl.arange(0, ROWS)
    query = first + m // GROUP
    head = kv * GROUP + m % GROUP
    is_row = (m < QUERIES * GROUP) & (query < width)
    d = tl.arange(0, HEAD_WIDTH)
    is_d = d < HEAD_DIM
    q_at = (row + query).to(tl.int64) * q_row + head * q_head
    q = tl.load(q_ptr + q_at[:, None] + d[None, :], mask=is_row[:, None] & is_d[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    last = length - width + query
    top = tl.full([ROWS], NEG_INF, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, HEAD_WIDTH], tl.float32)
    for start in range(low, high, KEYS):
        t = start + tl.arange(0, KEYS)
        is_key = t < high
        page = tl.load(table_ptr + b.to(tl.int64) * table_row + t // PAGE, mask=is_key, other=0).to(tl.int64)
        at = page * kv_page + (t % PAGE) * kv_token + kv * kv_head
        k = tl.load(k_ptr + at[None, :] + d[:, None], mask=is_key[None, :] & is_d[:, None], other=0.0)
        v = tl.load(v_ptr + at[:, None] + d[None, :], mask=is_key[:, None] & is_d[None, :], other=0.0)
        if UPCAST:
            k = k.to(tl.float32)
        x = tl.dot(q, k, input_precision=PRECISION) * (scale * LOG2E)
        x = tl.where(is_key[None, :] & (t[None, :] <= last[:, None]) & is_row[:, None], x, NEG_INF)
        new_top = tl.maximum(top, tl.max(x, axis=1))
        finite = tl.where(new_top == NEG_INF, 0.0, new_top)
        p = tl.exp2(x - finite[:, None])
        fade = tl.exp2(top - finite)
        total = total * fade + tl.sum(p, axis=1)
        weights = p.to(v.dtype)
        if UPCAST:
            weights = weights.to(tl.float32)
            v = v.to(tl.float32)
        sums = sums * fade[:, None] + tl.dot(weights, v, input_precision=PRECISION)
        top = new_top
    if SPLIT:  # noqa: SIM102 (known when compiled)
        if narrow:
            at = ((b * NARROW + query).to(tl.int64) * HEADS + head) * splits + split
            tl.store(top_ptr + at, top, mask=is_row)
            tl.store(total_ptr + at, total, mask=is_row)
            tl.store(part_ptr + at[:, None] * HEAD_DIM + d[None, :], sums, mask=is_row[:, None] & is_d[None, :])
            return
    at = ((row + query).to(tl.int64) * HEADS + head) * HEAD_DIM
    result = sums / tl.where(is_row, total, 1.0)[:, None]
    tl.store(
        out_ptr + at[:, None] + d[None, :],
        result.to(out_ptr.dtype.element_ty),
        mask=is_row[:, None] & is_d[None, :],
    )


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    part_ptr,
    top_ptr,
    total_ptr,
    cu_ptr,
    out_ptr,
    splits,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    NARROW: tl.constexpr,
):
    """Merge the splits of one query and head; pointers as in :func:`attention_kernel`. Grid (B * NARROW, HEADS)."""
    b = tl.program_id(0) // NARROW
    query = tl.program_id(0) % NARROW
    row = tl.load(cu_ptr + b)
    width = tl.load(cu_ptr + b + 1) - row
    if (query >= width) | (width > NARROW):
        return
    s = tl.arange(0, SPLITS)
    d = tl.arange(0, HEAD_WIDTH)
    at = (tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)) * splits + s
    is_split = s < splits
    top = tl.load(top_ptr + at, mask=is_split, other=NEG_INF)
    weight = tl.exp2(top - tl.max(top, axis=0))
    here = is_split[:, None] & (d < HEAD_DIM)[None, :]
    part = tl.load(part_ptr + at[:, None] * HEAD_DIM + d[None, :], mask=here, other=0.0)
    total = tl.load(total_ptr + at, mask=is_split, other=0.0)
    result = tl.sum(part * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    place = ((row + query).to(tl.int64) * HEADS + tl.program_id(1)) * HEAD_DIM + d
    tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


@triton.jit
def write_kv_kernel(
    k_ptr,
    v_ptr,
    kv_row,
    k_cache_ptr,
    v_cache_ptr,
    cache_token,
    slot_ptr,
    size,
    SIZE: tl.constexpr,
):
    """Copy one row's keys and values to its slot; a negative slot is none.

    k, v [N, size] with rows kv_row apart; caches [slots, size], slots cache_token apart; slot [N] int64. Grid (N,).
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row)
    if slot < 0:
        return
    i = tl.arange(0, SIZE)
    mask = i < size
    tl.store(k_cache_ptr + slot * cache_token + i, tl.load(k_ptr + row * kv_row + i, mask=mask), mask=mask)
    tl.store(v_cache_ptr + slot * cache_token + i, tl.load(v_ptr + row * kv_row + i, mask=mask), mask=mask)


class Tile(NamedTuple):
    """The shape of a program: rows and keys at once, its warps, and how many tiles of keys are on their way."""

    rows: int
    keys: int
    warps: int
    stages: int


def tile_of(group: int, max_width: int, head_width: int, itemsize: int) -> Tile:
    """Return a tile for the widest sequence that keeps to the registers.

    16 to 64 rows, fewer of float32, which is multiplied in three parts; and never fewer than the group.
    """
    most = 64 if itemsize == 2 else 32 if head_width <= 64 else 16
    rows = max(16, min(most, triton.next_power_of_2(max_width * group)), triton.next_power_of_2(group))
    if itemsize == 4:
        return Tile(rows, 32, 8, 1)
    keys = 32 if rows == 16 and head_width > 64 else 64
    return Tile(rows, keys, 8 if rows * head_width > 4096 else 4, 2)


def splits_of(batch: int, kv_heads: int, tokens: int, device: torch.device) -> int:
    """Return how often keys are split, a power of two, for sequences of at most so many tokens."""
    splits = 1
    while (
        splits < SPLITS_MOST
        and batch * kv_heads * splits < 2 * launch.processors(device)
        and tokens >= 2 * splits * KEYS_LEAST
    ):
        splits *= 2
    return splits


def verify_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu: Tensor,
    kv_len: Tensor,
    scale: float,
    *,
    max_width: int | None = None,
) -> Tensor:
    """Attend over the paged cache; see :func:`adaptive_spec.kernels.ops.verify_attention`."""
    rows, heads, head_dim = q.shape
    page, kv_heads = k_cache.shape[1], k_cache.shape[2]
    batch, group = kv_len.shape[0], heads // kv_heads
    out = torch.empty((rows, heads, head_dim), dtype=q.dtype, device=q.device)
    if not batch:
        return out
    head_width = max(LEAST_DOT, triton.next_power_of_2(head_dim))
    tile = tile_of(group, NARROW if max_width is None else max_width, head_width, q.dtype.itemsize)
    queries = tile.rows // group
    splits = splits_of(batch, kv_heads, block_table.shape[1] * page, q.device)
    places = batch * NARROW if splits > 1 else 0
    part = torch.empty((places, heads, splits, head_dim), dtype=torch.float32, device=q.device)
    top = torch.empty((places, heads, splits), dtype=torch.float32, device=q.device)
    total = torch.empty_like(top)
    attention_kernel[(rows // queries + batch, kv_heads, splits)](
        q,
        q.stride(0),
        q.stride(1),
        k_cache,
        v_cache,
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        block_table,
        block_table.stride(0),
        cu,
        kv_len,
        batch,
        scale,
        out,
        part,
        top,
        total,
        HEADS=heads,
        GROUP=group,
        QUERIES=queries,
        ROWS=tile.rows,
        HEAD_DIM=head_dim,
        HEAD_WIDTH=head_width,
        PAGE=page,
        KEYS=tile.keys,
        SPLIT=splits > 1,
        NARROW=NARROW,
        UPCAST=launch.interpreted(),  # its dot is wrong for bfloat16
        PRECISION=launch.dot_precision(),
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launch.registers(255),
    )
    if splits > 1:
        merge_kernel[(batch * NARROW, heads)](
            part,
            top,
            total,
            cu,
            out,
            splits,
            HEADS=heads,
            HEAD_DIM=head_dim,
            HEAD_WIDTH=head_width,
            SPLITS=SPLITS_MOST,
            NARROW=NARROW,
            num_warps=1,
        )
    return out


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write new keys and values into the paged cache; see :func:`adaptive_spec.kernels.ops.write_kv`."""
    rows, kv_heads, head_dim = k.shape
    if rows:
        size = kv_heads * head_dim
        write_kv_kernel[(rows,)](
            k,
            v,
            k.stride(0),
            k_cache,
            v_cache,
            k_cache.stride(1),
            slots,
            size,
            SIZE=triton.next_power_of_2(size),
            num_warps=4,
        )
