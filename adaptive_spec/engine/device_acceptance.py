"""DeviceAcceptance: the acceptance model, its estimates and its sums worked out on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_spec.acceptance import MANY, AcceptanceModel
from adaptive_spec.engine.device_survival import DeviceSurvival
from adaptive_spec.engine.staging import Staging
from adaptive_spec.kernels import backend, ops
from adaptive_spec.kernels.accept_sums import AcceptSums
from adaptive_spec.step import FloatArray, IntArray


@dataclass(slots=True)
class Counted:
    """A step whose sums are on the device, and what they were worked out from."""

    row: IntArray
    mean: FloatArray | None  # of each sequence's effect, relaxed
    precision: FloatArray | None
    sums: AcceptSums | None  # None: nothing was judged


class DeviceAcceptance(AcceptanceModel):
    """An :class:`~adaptive_spec.acceptance.AcceptanceModel` for engines whose tensors lie on a GPU.

    Survival is worked out on the device from the levels that the host holds, and what a step's acceptance teaches is
    summed there. Every few steps the host takes the sums and makes the Newton steps: one of the population for all
    steps of the window, and one of each sequence for each step, its residuals moved along the tangent to where the
    sequence's effect stands by then. With a window of one step this is the base's own learning in float32.

    Parameters
    ----------
    plain : AcceptanceModel
        Its settings, and what it has learned, are taken over; it is used up.
    device : torch.device
    window_steps : int
        Steps between two Newton steps.
    """

    def __init__(self, plain: AcceptanceModel, device: torch.device, window_steps: int) -> None:
        if window_steps < 1:
            raise ValueError(f"window_steps is {window_steps}; it must be at least 1")
        vars(self).update(vars(plain))
        self.device = device
        self.window_steps = window_steps
        self._odds: Tensor | None = None  # exp(-beta) as the host holds it, on the device
        self._of_estimate, self._of_sums, self._of_levels = (Staging(device) for _ in range(3))
        self._window: list[Counted] = []

    def add(self, row: int) -> None:
        """A fresh sequence takes this row; what is still to be learned of the one before it is learned now."""
        if any((counted.row == row).any() for counted in self._window):
            self.learn()
        super().add(row)

    def estimate(self, row: IntArray, cell: IntArray) -> DeviceSurvival:
        """As the base's, on the device; not waited for."""
        offset: FloatArray | None = None
        sd: FloatArray | None = None
        if self.effect is None:
            (cells,) = self._of_estimate.put(cell.astype(np.int32))
            effect: tuple[Tensor, ...] = ()
        else:
            offset, sd = self.effect.posterior(row)
            cells, *words = self._of_estimate.put(cell.astype(np.int32), *_words(offset, sd))
            effect = tuple(word.view(torch.float32) for word in words)
        with backend.trusted():
            tensor = ops.survival(self._levels(), cells, *effect)
        return DeviceSurvival(tensor, self.population, cell, offset, sd)

    def observe(self, row: IntArray, cell: IntArray, verified: IntArray, accepted: IntArray) -> None:
        """As the base's: summed on the device, and learned once the window is full."""
        self._window.append(self.count(row, cell, verified, accepted))
        if len(self._window) >= self.window_steps:
            self.learn()

    def count(self, row: IntArray, cell: IntArray, verified: IntArray, accepted: IntArray) -> Counted:
        """Sum what a step teaches, on the device, and learn nothing yet; not waited for."""
        if not (len(row) and verified.any()):
            return Counted(row, None, None, None)
        mean, precision = (None, None) if self.effect is None else self.effect.relax(row)
        effect = _words(mean, precision) if mean is not None and precision is not None else []
        cells, judged, kept, *words = self._of_sums.put(
            cell.astype(np.int32), verified.astype(np.int32), accepted.astype(np.int32), *effect
        )
        there = [word.view(torch.float32) for word in words]
        with backend.trusted():
            if there:
                sums = ops.accept_stats(self._levels(), cells, judged, kept, there[0], there[1], self.sigma2)
            else:
                sums = ops.accept_stats(self._levels(), cells, judged, kept)
        return Counted(row, mean, precision, sums)

    def learn(self) -> None:
        """Take what was summed since the last time, and make the Newton steps; waits for the device."""
        window, self._window = self._window, []
        tables: list[tuple[NDArray[np.int64], FloatArray, FloatArray]] = []
        for number, counted in enumerate(window):
            if counted.sums is None:
                if self.effect is not None:
                    self.effect.idle(counted.row)
                continue
            sums = counted.sums.on_host()
            tables.append((sums.judged, sums.gradient, sums.information))
            if self.effect is not None:
                self._learn_effect(counted, sums.sequence_gradient, sums.sequence_information, number)
        if tables:
            self.population.observe_sums(len(window), *(np.stack(part) for part in zip(*tables, strict=True)))
        else:
            for _ in window:
                self.population.step += 1
                self.population.sweep_if_due()
        self._odds = None

    def _learn_effect(self, counted: Counted, gradients: FloatArray, informations: FloatArray, number: int) -> None:
        """Make the Newton steps of the sequences of one step, the window's number `number`."""
        effect, row = self.effect, counted.row
        assert effect is not None
        assert counted.mean is not None
        assert counted.precision is not None
        (gradient, averaged_gradient), (information, averaged_information) = gradients.T, informations.T
        summed_at = gradient / (information + counted.precision) + counted.mean
        mean, precision = effect.relax(row)  # steps of the same window may have moved it since
        moved = gradient - information * (mean - counted.mean)
        offset = moved / (information + precision) + mean
        averaged = averaged_gradient - averaged_information * (offset - summed_at)
        effect.settle(row, (mean, precision), offset, averaged, averaged_information)
        if len(row) < MANY or (self.population.step + number) % 4 == 0:
            effect.learn_variance(row, gradient + information * counted.mean, information)

    def _levels(self) -> Tensor:
        if self._odds is None:
            table = self.population.odds_against
            (words,) = self._of_levels.put(*_words(table.reshape(-1)))
            self._odds = words.view(torch.float32).view(table.shape)
        return self._odds

    def forget(self) -> None:
        """As the base's."""
        self.learn()
        super().forget()
        self._odds = None

    def state(self) -> dict[str, object]:
        """As the base's."""
        self.learn()
        return super().state()

    def restore(self, state: dict[str, object]) -> None:
        """As the base's; what was summed but not learned goes with what was learned."""
        super().restore(state)
        self._window.clear()
        self._odds = None


def _words(*values: FloatArray) -> list[NDArray[np.int32]]:
    """Numbers as float32, in the words that a staging carries."""
    return [value.astype(np.float32).view(np.int32) for value in values]
