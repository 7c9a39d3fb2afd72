"""Acceptance sums and survival in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_spec.kernels.accept_sums import AcceptSums
from adaptive_spec.sequence_effect import NODE, SHARE_LEAST
from adaptive_spec.survival import SURVIVAL_FLOOR


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
    cell, accepted = cell.long(), accepted.long()
    k = torch.arange(depths, device=cell.device)
    seen = k < torch.minimum(accepted + 1, verified.long())[:, None]  # [B, K]
    hit = (k < accepted[:, None]).float()
    odds = odds_against.t()[cell]  # [B, K]
    success = accepted.float()

    def total(values: Tensor) -> Tensor:
        return torch.where(seen, values, 0.0).sum(1)

    if mean is None or precision is None:
        average = 1.0 / (1.0 + odds)
        curvature = average * (1.0 - average)
        gradient = averaged_gradient = success - total(average)
        information = averaged_information = total(curvature)
    else:
        expected = 1.0 / (1.0 + odds * torch.exp(-mean)[:, None])
        gradient, information = success - total(expected), total(expected * (1.0 - expected))
        laplace = information + precision
        against, step = torch.exp(-(gradient / laplace + mean)), torch.exp(NODE / laplace.sqrt())
        low, middle, high = (
            1.0 / (1.0 + odds * factor[:, None]) for factor in (against * step, against, against / step)
        )
        average = (middle * 4.0 + low + high) / 6.0
        squares = (middle * middle * 4.0 + low * low + high * high) / 6.0
        averaged_gradient, averaged_information = success - total(average), total(average - squares)
        share = SHARE_LEAST + (1.0 - SHARE_LEAST) / ((precision + averaged_information) * sigma2)
        curvature = average * (1.0 - average) * share[:, None]
    slot = (k * cells + cell[:, None])[seen]

    def by_cell(values: Tensor) -> Tensor:
        sums = torch.zeros(depths * cells, dtype=torch.float32, device=cell.device)
        return sums.index_add_(0, slot, values[seen].float()).view(depths, cells)

    return AcceptSums(
        torch.bincount(slot, minlength=depths * cells).view(depths, cells).int(),
        by_cell(hit - average),
        by_cell(curvature),
        torch.stack([gradient, averaged_gradient], 1),
        torch.stack([information, averaged_information], 1),
    )


def survival(odds_against: Tensor, cell: Tensor, offset: Tensor | None = None, sd: Tensor | None = None) -> Tensor:
    """Return survival [B, K]; see :func:`adaptive_spec.kernels.ops.survival`."""
    odds = odds_against.t()[cell.long()]  # [B, K]
    if offset is None or sd is None:
        product = (1.0 / (1.0 + odds)).cumprod(1)
    else:
        against, step = torch.exp(-offset), torch.exp(NODE * sd)
        low, middle, high = (
            (1.0 / (1.0 + odds * factor[:, None])).cumprod(1) for factor in (against * step, against, against / step)
        )
        product = (middle * 4.0 + low + high) / 6.0
    return product.clamp(min=SURVIVAL_FLOOR)
