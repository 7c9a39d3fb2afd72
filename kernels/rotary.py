"""Rotary position embedding in Triton, in place, with the heads' norm where a model has one.

Heads lie as the projection left them, queries before keys; one launch reads and writes each once.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

HEADS_AT_ONCE = 16


@triton.jit(do_not_specialize=["heads", "queries"])
def rotate_kernel(
    x_ptr,
    x_row,
    x_head,
    position_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    eps,
    heads,
    queries,
    HALF: tl.constexpr,
    HALF_WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Normalise (with NORM) and rotate BLOCK heads of one row.

    x [N, heads, 2 HALF], rows x_row and heads x_head apart; position [N] int64; cos, sin [L, HALF] float32; q_norm,
    k_norm [2 HALF] float32, of the heads before `queries` and of the others. HALF_WIDTH covers HALF. Grid (N,
    cdiv(heads, BLOCK)).
    """
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, HALF_WIDTH)
    mask = (h < heads)[:, None] & (d < HALF)[None, :]
    at = row * x_row + h[:, None] * x_head + d[None, :]
    a = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + at + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        scale = 1.0 / tl.sqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * HALF) + eps)
        is_query = (h < queries)[:, None]
        q_mask = mask & is_query
        k_mask = mask & (h >= queries)[:, None]
        weight = d[None, :] + tl.zeros([BLOCK, HALF_WIDTH], tl.int32)
        first = tl.load(q_norm_ptr + weight, mask=q_mask, other=0.0) + tl.load(
            k_norm_ptr + weight, mask=k_mask, other=0.0
        )
        second = tl.load(q_norm_ptr + HALF + weight, mask=q_mask, other=0.0) + tl.load(
            k_norm_ptr + HALF + weight, mask=k_mask, other=0.0
        )
        a = a * scale[:, None] * first
        b = b * scale[:, None] * second
    position = tl.load(position_ptr + row)
    cos = tl.load(cos_ptr + position * HALF + d, mask=d < HALF, other=0.0)[None, :]
    sin = tl.load(sin_ptr + position * HALF + d, mask=d < HALF, other=0.0)[None, :]
    tl.store(x_ptr + at, (a * cos - b * sin).to(x_ptr.dtype.element_ty), mask=mask)
    tl.store(x_ptr + at + HALF, (b * cos + a * sin).to(x_ptr.dtype.element_ty), mask=mask)


def rotate(
    heads: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    queries: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Rotate heads in place; see :func:`adaptive_spec.kernels.ops.rotate`."""
    rows, count, head_dim = heads.shape
    if not rows:
        return
    half = head_dim // 2
    rotate_kernel[(rows, triton.cdiv(count, HEADS_AT_ONCE))](
        heads,
        heads.stride(0),
        heads.stride(1),
        positions,
        cos,
        sin,
        q_norm,
        k_norm,
        float(eps),
        count,
        queries,
        HALF=half,
        HALF_WIDTH=triton.next_power_of_2(half),
        NORM=q_norm is not None,
        BLOCK=HEADS_AT_ONCE,
        num_warps=4,
    )
