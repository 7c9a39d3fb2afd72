"""What a step's acceptance teaches, summed on the device, and the survival of the next drafts.

The sums are those of :meth:`adaptive_spec.acceptance.AcceptanceModel.observe`: of each sequence, residual and
curvature of its judged drafts where its effect stands and averaged over its posterior; of each (position, cell) of
the population, count, residual and curvature. The Newton steps that they feed stay on the host. Every sum has one
order: equal inputs give equal bits, without atomics.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptive_spec.kernels import launch
from adaptive_spec.kernels.accept_sums import AcceptSums
from adaptive_spec.sequence_effect import NODE as NODE_SD
from adaptive_spec.sequence_effect import SHARE_LEAST as LEAST
from adaptive_spec.survival import SURVIVAL_FLOOR as FLOOR

NODE, SHARE_LEAST, SURVIVAL_FLOOR = tl.constexpr(NODE_SD), tl.constexpr(LEAST), tl.constexpr(FLOOR)
SHARE_REST = tl.constexpr(1.0 - LEAST)
SIXTH = tl.constexpr(1.0 / 6.0)


@triton.jit(do_not_specialize=["batch", "depths", "cells"])
def sequence_kernel(
    odds_ptr,
    cell_ptr,
    verified_ptr,
    accepted_ptr,
    mean_ptr,
    precision_ptr,
    residual_ptr,
    curvature_ptr,
    gradient_ptr,
    information_ptr,
    batch,
    depths,
    cells,
    sigma2,
    BLOCK: tl.constexpr,
    DEPTHS: tl.constexpr,
    EFFECT: tl.constexpr,
):
    """Work out each judged draft's residual and curvature, and their sums over each sequence.

    odds [K, C], exp(-beta); cell, verified, accepted, mean, precision [B]; residual, curvature [B, K] out; gradient,
    information [B, 2] out. DEPTHS covers K. Grid (cdiv(B, BLOCK),).
    """
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, DEPTHS)
    is_b = b < batch
    accepted = tl.load(accepted_ptr + b, mask=is_b, other=0)
    judged = tl.minimum(accepted + 1, tl.load(verified_ptr + b, mask=is_b, other=0))
    seen = is_b[:, None] & (k < depths)[None, :] & (k[None, :] < judged[:, None])
    cell = tl.load(cell_ptr + b, mask=is_b, other=0)
    odds = tl.load(odds_ptr + k[None, :] * cells + cell[:, None], mask=seen, other=1.0)
    success = accepted.to(tl.float32)
    if EFFECT:
        mean = tl.load(mean_ptr + b, mask=is_b, other=0.0)
        precision = tl.load(precision_ptr + b, mask=is_b, other=1.0)
        expected = 1.0 / (1.0 + odds * tl.exp(-mean)[:, None])
        gradient = success - tl.sum(tl.where(seen, expected, 0.0), axis=1)
        information = tl.sum(tl.where(seen, expected * (1.0 - expected), 0.0), axis=1)
        laplace = information + precision
        against = tl.exp(-(gradient / laplace + mean))
        step = tl.exp(1.0 / tl.sqrt(laplace) * NODE)
        at_low = 1.0 / (1.0 + odds * (against * step)[:, None])
        at_mean = 1.0 / (1.0 + odds * against[:, None])
        at_high = 1.0 / (1.0 + odds * (against / step)[:, None])
        average = (at_mean * 4.0 + at_low + at_high) * SIXTH
        squares = (at_mean * at_mean * 4.0 + at_low * at_low + at_high * at_high) * SIXTH
        averaged_gradient = success - tl.sum(tl.where(seen, average, 0.0), axis=1)
        averaged_information = tl.sum(tl.where(seen, average - squares, 0.0), axis=1)
        share = 1.0 / ((precision + averaged_information) * sigma2) * SHARE_REST + SHARE_LEAST
        curvature = average * (1.0 - average) * share[:, None]
    else:
        average = 1.0 / (1.0 + odds)
        curvature = average * (1.0 - average)
        gradient = success - tl.sum(tl.where(seen, average, 0.0), axis=1)
        information = tl.sum(tl.where(seen, curvature, 0.0), axis=1)
        averaged_gradient = gradient
        averaged_information = information
    hit = (k[None, :] < accepted[:, None]).to(tl.float32)
    at = b[:, None] * depths + k[None, :]
    within = is_b[:, None] & (k < depths)[None, :]
    tl.store(residual_ptr + at, tl.where(seen, hit - average, 0.0), mask=within)
    tl.store(curvature_ptr + at, tl.where(seen, curvature, 0.0), mask=within)
    tl.store(gradient_ptr + b * 2, gradient, mask=is_b)
    tl.store(gradient_ptr + b * 2 + 1, averaged_gradient, mask=is_b)
    tl.store(information_ptr + b * 2, information, mask=is_b)
    tl.store(information_ptr + b * 2 + 1, averaged_information, mask=is_b)


@triton.jit(do_not_specialize=["batch", "depths", "cells"])
def cell_kernel(
    cell_ptr,
    verified_ptr,
    accepted_ptr,
    residual_ptr,
    curvature_ptr,
    count_ptr,
    gradient_ptr,
    information_ptr,
    batch,
    depths,
    cells,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
):
    """Sum one position's residuals and curvatures over the sequences of some cells. Grid (K, cdiv(C, CELLS))."""
    k = tl.program_id(0)
    c = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    count = tl.zeros([CELLS], tl.int32)
    gradient = tl.zeros([CELLS], tl.float32)
    information = tl.zeros([CELLS], tl.float32)
    for start in range(0, batch, BLOCK):
        b = start + tl.arange(0, BLOCK)
        is_b = b < batch
        accepted = tl.load(accepted_ptr + b, mask=is_b, other=0)
        seen = is_b & (k < tl.minimum(accepted + 1, tl.load(verified_ptr + b, mask=is_b, other=0)))
        here = seen[:, None] & (tl.load(cell_ptr + b, mask=is_b, other=-1)[:, None] == c[None, :])
        residual = tl.load(residual_ptr + b * depths + k, mask=is_b, other=0.0)
        curvature = tl.load(curvature_ptr + b * depths + k, mask=is_b, other=0.0)
        count += tl.sum(here.to(tl.int32), axis=0)
        gradient += tl.sum(tl.where(here, residual[:, None], 0.0), axis=0)
        information += tl.sum(tl.where(here, curvature[:, None], 0.0), axis=0)
    at = k * cells + c
    tl.store(count_ptr + at, count, mask=c < cells)
    tl.store(gradient_ptr + at, gradient, mask=c < cells)
    tl.store(information_ptr + at, information, mask=c < cells)


@triton.jit(do_not_specialize=["batch", "depths", "cells"])
def survival_kernel(
    odds_ptr,
    cell_ptr,
    offset_ptr,
    sd_ptr,
    survival_ptr,
    batch,
    depths,
    cells,
    BLOCK: tl.constexpr,
    EFFECT: tl.constexpr,
):
    """Average the product of acceptances over three nodes of each sequence's effect.

    odds [K, C]; cell, offset, sd [B]; survival [B, K] out. Grid (cdiv(B, BLOCK),).
    """
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = b < batch
    cell = tl.load(cell_ptr + b, mask=mask, other=0)
    one = tl.full([BLOCK], 1.0, tl.float32)
    middle, step = one, one
    if EFFECT:
        middle = tl.exp(-tl.load(offset_ptr + b, mask=mask, other=0.0))
        step = tl.exp(tl.load(sd_ptr + b, mask=mask, other=0.0) * NODE)
    low, high = one, one
    mean = one
    for k in range(depths):
        odds = tl.load(odds_ptr + k * cells + cell, mask=mask, other=1.0)
        mean = mean / (1.0 + odds * middle)
        low = low / (1.0 + odds * (middle * step))
        high = high / (1.0 + odds * (middle / step))
        survival = (mean * 4.0 + low + high) * SIXTH
        tl.store(survival_ptr + b * depths + k, tl.maximum(survival, SURVIVAL_FLOOR), mask=mask)


def accept_stats(
    odds_against: Tensor,
    cell: Tensor,
    verified: Tensor,
    accepted: Tensor,
    mean: Tensor | None = None,
    precision: Tensor | None = None,
    sigma2: float = 1.0,
) -> AcceptSums:
    """Sum a step's residuals and curvatures; see :func:`adaptive_spec.kernels.ops.accept_stats`."""
    depths, cells = odds_against.shape
    batch, device = cell.shape[0], odds_against.device

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    sums = AcceptSums(
        torch.empty((depths, cells), dtype=torch.int32, device=device),
        floats(depths, cells),
        floats(depths, cells),
        floats(batch, 2),
        floats(batch, 2),
    )
    residual, curvature = floats(batch, depths), floats(batch, depths)
    block = 64
    if batch:
        sequence_kernel[(triton.cdiv(batch, block),)](
            odds_against,
            cell,
            verified,
            accepted,
            mean,
            precision,
            residual,
            curvature,
            sums.sequence_gradient,
            sums.sequence_information,
            batch,
            depths,
            cells,
            float(sigma2),
            BLOCK=block,
            DEPTHS=triton.next_power_of_2(depths),
            EFFECT=mean is not None,
            num_warps=4,
        )
    at_once = 64
    cell_kernel[(depths, triton.cdiv(cells, at_once))](
        cell,
        verified,
        accepted,
        residual,
        curvature,
        sums.judged,
        sums.gradient,
        sums.information,
        batch,
        depths,
        cells,
        BLOCK=block,
        CELLS=at_once,
        num_warps=4,
    )
    return sums


def survival(odds_against: Tensor, cell: Tensor, offset: Tensor | None = None, sd: Tensor | None = None) -> Tensor:
    """Return survival [B, K]; see :func:`adaptive_spec.kernels.ops.survival`."""
    depths, cells = odds_against.shape
    batch = cell.shape[0]
    result = torch.empty((batch, depths), dtype=torch.float32, device=odds_against.device)
    block = 512 if launch.interpreted() else 64
    if batch:
        survival_kernel[(triton.cdiv(batch, block),)](
            odds_against, cell, offset, sd, result, batch, depths, cells, BLOCK=block, EFFECT=offset is not None
        )
    return result
