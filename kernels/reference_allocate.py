"""Allocation by the core's own function, on the host: what the device's must equal."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adaptive_spec.allocate import allocate as allocate_on_host


class DeviceAllocation(NamedTuple):
    """What is verified in the next step, where the kernels that follow can read it.

    Attributes
    ----------
    depth : int32 tensor, shape (B,)
        Drafts of each sequence.
    cu : int32 tensor, shape (B + 1,)
        Offsets of ``depth + 1`` rows a sequence.
    draft_depth : int32 tensor, shape (1,)
        What the drafter is asked for: the largest depth, or one beyond that costs less.
    objective : float64 tensor, shape (1,)
        The goodput that the depths are expected to reach; with a price, the worth less the price of the seconds.
    """

    depth: Tensor
    cu: Tensor
    draft_depth: Tensor
    objective: Tensor


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
    """Choose depths on the host; see :func:`adaptive_spec.kernels.ops.allocate`."""
    device = survival.device

    def array(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return tensor.detach().cpu().numpy().astype(np.float64)

    # The transpose of a contiguous [K, B] array, which the core's function likes best.
    of_position = np.ascontiguousarray(array(survival).T)
    chosen = allocate_on_host(
        of_position.T,
        array(weight),
        np.maximum(limit.cpu().numpy().astype(np.int64), 0),
        float(base_tokens),
        array(verify_seconds),
        array(draft_seconds),
        price=price,
    )
    cu = np.zeros(len(chosen.depth) + 1, dtype=np.int32)
    np.cumsum(chosen.depth + 1, out=cu[1:])
    tokens, seconds = chosen.expected_tokens, chosen.expected_seconds
    if tokens is None or seconds is None:
        raise AssertionError("the core's allocation says what it expects")
    value = tokens / seconds if price is None else tokens - price * seconds
    return DeviceAllocation(
        torch.from_numpy(chosen.depth.astype(np.int32)).to(device),
        torch.from_numpy(cu).to(device),
        torch.tensor([chosen.draft_depth], dtype=torch.int32, device=device),
        torch.tensor([value], dtype=torch.float64, device=device),
    )
