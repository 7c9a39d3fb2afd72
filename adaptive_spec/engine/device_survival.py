"""DeviceSurvival: what the drafts of a step are worth, worked out on a device and read back when it is asked for."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from adaptive_spec.population import PopulationLevel
from adaptive_spec.step import FloatArray, IntArray
from adaptive_spec.survival import Survival


class DeviceSurvival(Survival):
    """A :class:`~adaptive_spec.survival.Survival` whose mean lies on a device.

    Draws and optimism, which only exploration asks for, are worked out on the host as ever.

    Parameters
    ----------
    tensor : float32 Tensor, shape (B, K)
        The mean.
    population, cell, offset, sd
        As in the base.
    """

    __slots__ = ("tensor",)

    def __init__(
        self,
        tensor: Tensor,
        population: PopulationLevel,
        cell: IntArray,
        offset: FloatArray | None,
        sd: FloatArray | None,
    ) -> None:
        super().__init__(population, cell, offset, sd)
        self.tensor = tensor

    def mean(self) -> FloatArray:
        """The device's mean, on the host; waits for it unless it was handed over already."""
        if self._mean is None:
            self.hand_over(self.tensor.cpu().numpy())
        assert self._mean is not None
        return self._mean

    def hand_over(self, mean: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        """Keep what was read back along with something else."""
        self._mean = np.ascontiguousarray(mean.T, dtype=np.float64).T  # position-major inside, as everywhere
