"""Depths and what they are chosen by: allocation, survival, sums of acceptance; sent to what serves the device."""

from __future__ import annotations

from torch import Tensor

from adaptive_spec.kernels import arguments, backend, reference_accept_stats, reference_allocate
from adaptive_spec.kernels.accept_sums import AcceptSums
from adaptive_spec.kernels.reference_allocate import DeviceAllocation


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
    """Choose the depths of a step where its tensors lie: :func:`adaptive_spec.allocate.allocate` for a device.

    Parameters
    ----------
    survival : float32 tensor, shape (B, K)
        Chance that draft k and all before it are accepted; never rises along k. On a GPU NaN counts as 0.
    weight : float32 tensor, shape (B,)
    limit : int32 tensor, shape (B,)
        The most drafts of each sequence; more than K counts as K, less than 0 as 0.
    base_tokens : float
        Worth that the pass yields at depth 0.
    verify_seconds : float32 tensor, shape (at least B * K + 1,)
        Seconds of a pass with n slots on top of the positions that it carries anyway; of any shape.
    draft_seconds : float32 tensor, shape (at least K + 1,)
        Seconds of drafting to each depth.
    price : float, optional
        Tokens that a second must bring; else the goodput of this step is maximised.

    Returns
    -------
    DeviceAllocation
        The objective is the optimum within 1e-6 relative.

    Raises
    ------
    ValueError
        Naming the argument whose shape, dtype or device is wrong.
    """
    arguments.check_allocation(survival, weight, limit, verify_seconds, draft_seconds)
    if backend.backend_of(survival) == "triton":
        from adaptive_spec.kernels.allocate import allocate as choose
    else:
        choose = reference_allocate.allocate
    return choose(survival, weight, limit, base_tokens, verify_seconds, draft_seconds, price=price)


def accept_stats(
    odds_against: Tensor,
    cell: Tensor,
    verified: Tensor,
    accepted: Tensor,
    mean: Tensor | None = None,
    precision: Tensor | None = None,
    sigma2: float = 1.0,
) -> AcceptSums:
    """Sum what a step's acceptance teaches, as :class:`adaptive_spec.acceptance.AcceptanceModel` needs it.

    Parameters
    ----------
    odds_against : float32 tensor, shape (K, C)
        exp(-beta) of each position and evidence cell.
    cell, verified, accepted : int32 tensor, shape (B,)
        Cell of each sequence at the decision, drafts judged, and drafts kept.
    mean, precision : float32 tensor, shape (B,), optional
        Of each sequence's effect after a step's forgetting (``SequenceEffect.relax``); without them there is none.
    sigma2 : float
        Variance of the effect over sequences.

    Raises
    ------
    ValueError
        Naming the argument whose shape, dtype, device or values are wrong.
    """
    arguments.check_cells(odds_against, cell)
    batch, device = cell.shape[0], odds_against.device
    arguments.check_counts(verified, accepted, odds_against.shape[0], batch, device)
    arguments.check_pair("mean", mean, "precision", precision, batch, device)
    if backend.backend_of(odds_against) == "triton":
        from adaptive_spec.kernels.accept_stats import accept_stats as add_up
    else:
        add_up = reference_accept_stats.accept_stats
    return add_up(odds_against, cell, verified, accepted, mean, precision, sigma2)


def survival(odds_against: Tensor, cell: Tensor, offset: Tensor | None = None, sd: Tensor | None = None) -> Tensor:
    """Return the survival of every slot, as ``AcceptanceModel.estimate(...).mean()`` does.

    Parameters
    ----------
    odds_against : float32 tensor, shape (K, C)
        exp(-beta) of each position and evidence cell.
    cell : int32 tensor, shape (B,)
    offset, sd : float32 tensor, shape (B,), optional
        Posterior mean and standard deviation of each sequence's effect; without them there is none.

    Returns
    -------
    float32 tensor, shape (B, K)
        Within (0, 1], never rising along k.

    Raises
    ------
    ValueError
        Naming the argument whose shape, dtype, device or values are wrong.
    """
    arguments.check_cells(odds_against, cell)
    arguments.check_pair("offset", offset, "sd", sd, cell.shape[0], odds_against.device)
    if backend.backend_of(odds_against) == "triton":
        from adaptive_spec.kernels.accept_stats import survival as survive
    else:
        survive = reference_accept_stats.survival
    return survive(odds_against, cell, offset, sd)
