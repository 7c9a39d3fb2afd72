"""Rotary position embedding in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


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
    at_cos, at_sin = cos[positions][:, None], sin[positions][:, None]  # [N, 1, D / 2]
    for part, norm in ((heads[:, :queries], q_norm), (heads[:, queries:], k_norm)):
        x = part.float()
        if norm is not None:
            x = F.rms_norm(x, (x.shape[-1],), norm, eps)
        a, b = x.chunk(2, -1)
        rotated = a * at_cos - b * at_sin, b * at_cos + a * at_sin  # before `part`, which may be `x`, is written
        for out, values in zip(part.chunk(2, -1), rotated, strict=True):
            out.copy_(values)
