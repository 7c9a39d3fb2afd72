"""AcceptSums: what one step's acceptance teaches, summed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]


class AcceptSums(NamedTuple):
    """One step's sums, float32 but for the counts.

    Attributes
    ----------
    judged : int32 tensor, shape (K, C)
        Drafts judged at each position and evidence cell.
    gradient, information : tensor, shape (K, C)
        Sums of their residuals and curvatures, each curvature times its sequence's share.
    sequence_gradient, sequence_information : tensor, shape (B, 2)
        The same of each sequence: at the effect's relaxed mean (first column), and averaged over the posterior to
        which the Laplace step from there leads. Without effect the columns are equal.
    """

    judged: Tensor
    gradient: Tensor
    information: Tensor
    sequence_gradient: Tensor
    sequence_information: Tensor

    def on_host(self) -> HostSums:
        """Read them back in one copy; counts are small, so that float32 holds them as they are."""
        parts = (self.judged.float(), *self[1:])
        flat = torch.cat([part.flatten() for part in parts]).cpu().numpy().astype(np.float64)
        ends = np.cumsum([part.numel() for part in parts])[:-1]
        judged, *sums = (values.reshape(part.shape) for values, part in zip(np.split(flat, ends), parts, strict=True))
        return HostSums(judged.astype(np.int64), *sums)


class HostSums(NamedTuple):
    """The fields of :class:`AcceptSums` as arrays."""

    judged: NDArray[np.int64]
    gradient: FloatArray
    information: FloatArray
    sequence_gradient: FloatArray
    sequence_information: FloatArray
