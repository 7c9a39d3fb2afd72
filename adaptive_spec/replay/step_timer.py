"""StepTimer: what a step of a replay takes, by a cost curve and noise, on a virtual clock."""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.replay.clock import VirtualClock
from adaptive_spec.serving.scheduler import ScheduledStep
from adaptive_spec.step import IntArray

_DRAWN_AT_ONCE = 1024


class StepTimer:
    """Charges every step to a virtual clock.

    The target pass takes the curve's seconds at the positions that it carried, drafting the draft cost's at
    the step's draft depth (a step that decodes nothing doesn't draft). Noise is log-normal with mean 1, one
    draw a step whatever the step carries, so that two policies meet the same luck at the same step.

    Parameters
    ----------
    cost : StepCost
        The truth about this machine. It may be exchanged between steps.
    clock : VirtualClock
    noise : float
        Standard deviation of the logarithm of a pass's seconds; 0 for none.
    seed : int
        Of the noise.
    """

    def __init__(self, cost: StepCost, clock: VirtualClock, noise: float = 0.0, seed: int = 0) -> None:
        if not (math.isfinite(noise) and 0.0 <= noise <= 1.0):
            raise ValueError(f"noise is {noise}; it must lie in 0..1 (the deviation of a pass's log seconds)")
        self.cost = cost
        self.clock = clock
        self.noise = noise
        self._rng = np.random.default_rng([seed, 7])
        self._drawn: list[float] = []

    def charge(self, step: ScheduledStep, drafted: IntArray) -> tuple[float, float]:
        """Move the clock by what a step takes.

        Parameters
        ----------
        step : ScheduledStep
            With its depths filled in, before its tokens are handed to the sequences.
        drafted : int array, shape (B,)
            Drafts that each decoding sequence brings into the pass.

        Returns
        -------
        verify_seconds, draft_seconds : float
        """
        sequences = len(step.decoding)
        positions = sequences + step.prefill_tokens + int(drafted.sum())
        context = sum([s.num_computed for s in step.decoding]) + sum([c.start for c in step.prefills])
        verify = float(self.cost.verify_range(positions, 1, context, sequences)[0])
        draft = 0.0
        if sequences:
            draft = float(self.cost.draft(np.array([step.draft_depth]), sequences)[0])
        if self.noise:
            verify *= self._luck()
        self.clock.advance(verify + draft)
        return verify, draft

    def _luck(self) -> float:
        if not self._drawn:
            shape = self._rng.standard_normal(_DRAWN_AT_ONCE)
            self._drawn = np.exp(self.noise * shape - 0.5 * self.noise**2)[::-1].tolist()
        return self._drawn.pop()
