"""Online: a cost model, corrected by what steps really take."""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.cost.factor import LOCAL_DEVIATION, CurveFactor, ScalarFactor, numbers
from adaptive_spec.cost.surprise import NOISE_RANGE
from adaptive_spec.step import FloatArray, IntArray, StepTime

_LEAST_LARGEST = 16


class Online(StepCost):
    """Seconds of `base`, times a factor by positions that is learned from observed steps.

    See :class:`~adaptive_spec.cost.factor.CurveFactor` for what is learned where, and
    :class:`~adaptive_spec.cost.surprise.Surprises` for why an outlier moves nothing: an observation more
    than three standard deviations off waits until three in a row at that place agree. Drafting has two
    factors of its own: one for depth 0, one for every other depth.

    Parameters
    ----------
    base : StepCost
        What is believed before the first step.
    largest_positions : int
        Above it, the factor is level.
    noise : float
        Relative noise of a step's seconds to begin with; it is learned.
    memory_steps : float
        Steps over which the curve may change by its noise; more is steadier, less follows faster.
    local_deviation : float
        How far the base's knee and slope may be off, in logs: by a factor of 3 where it is a computed curve;
        less where it was measured. Where it is small, a phase in which the whole machine is slow is not
        taken for a fact about the one number of positions that was visited then.

    Notes
    -----
    A uniform factor changes no decision; a wrong knee and a wrong slope above it do. A base whose draft
    costs 0 seconds stays so, whatever the factor: give it the drafter's measured cost.
    """

    def __init__(
        self,
        base: StepCost,
        largest_positions: int = 16384,
        noise: float = 0.05,
        memory_steps: float = 100.0,
        local_deviation: float = LOCAL_DEVIATION,
    ) -> None:
        if not (math.isfinite(local_deviation) and local_deviation > 0):
            raise ValueError(f"local_deviation is {local_deviation}; it must be finite and over 0")
        if largest_positions < _LEAST_LARGEST:
            raise ValueError(f"largest_positions is {largest_positions}; it must be at least {_LEAST_LARGEST}")
        if not NOISE_RANGE[0] <= noise <= NOISE_RANGE[1]:
            raise ValueError(f"noise is {noise}; it must lie in {NOISE_RANGE[0]}..{NOISE_RANGE[1]}")
        if not (math.isfinite(memory_steps) and memory_steps >= 1):
            raise ValueError(f"memory_steps is {memory_steps}; it must be finite and at least 1")
        self.base = base
        self.largest_positions = largest_positions
        self.noise = noise
        self.memory_steps = memory_steps
        self.local_deviation = local_deviation
        self._curve = CurveFactor(largest_positions, noise, memory_steps, local_deviation)
        self._idle = ScalarFactor(noise, memory_steps)  # drafting at depth 0
        self._deeper = ScalarFactor(noise, memory_steps)

    @property
    def observed(self) -> int:
        """Target passes that it has learned from."""
        return self._curve.observed

    @property
    def held(self) -> int:
        """Target passes held back: outliers, and the first two of every new fact."""
        return self._curve.surprises.held

    def factor(self, positions: IntArray) -> FloatArray:
        """What `base` is multiplied with at each of `positions`."""
        return self._curve.at(positions)

    def deviation(self, positions: IntArray) -> FloatArray:
        """Standard deviation of the log of the factor at each of `positions`: how little is known there."""
        return self._curve.deviation(positions)

    def verify(self, positions: IntArray, context: float, sequences: int) -> FloatArray:
        """Corrected seconds of one target pass; see :meth:`StepCost.verify`."""
        return np.asarray(self.base.verify(positions, context, sequences) * self._curve.at(positions))

    def verify_range(self, first: int, count: int, context: float, sequences: int) -> FloatArray:
        """Corrected seconds at `count` consecutive positions; see :meth:`StepCost.verify_range`."""
        seconds = self.base.verify_range(first, count, context, sequences)
        if not self._curve.observed:
            return seconds
        return self._curve.scale(seconds, first)

    def draft(self, depth: IntArray, sequences: int, lag: int = 0) -> FloatArray:
        """Corrected seconds of drafting; see :meth:`StepCost.draft`."""
        seconds = self.base.draft(depth, sequences, lag)
        idle, deeper = self._idle.value, self._deeper.value
        if idle == deeper == 1.0:
            return seconds
        return seconds * np.where(np.asarray(depth) == 0, idle, deeper)

    def observe(self, time: StepTime) -> None:
        """Learn from one step: from its verify seconds, or else from the step's less the draft's.

        Times that are missing, not positive or not finite teach nothing.
        """
        drafted, seconds = float(time.draft_seconds), float(time.verify_seconds)
        timed = 0.0 < drafted < math.inf
        if timed or math.isnan(seconds):
            factor = self._deeper if time.draft_depth > 0 else self._idle
            believed = float(self.base.draft(np.array([time.draft_depth]), time.sequences, time.lag)[0])
            believed *= factor.value
            if math.isnan(seconds):
                seconds = float(time.step_seconds) - (believed if math.isnan(drafted) else drafted)
            if timed and believed > 0.0:
                factor.learn(math.log(drafted / believed))
        if time.positions >= 1 and 0.0 < seconds < math.inf:
            base = self.base.verify_range(time.positions, 1, time.context, time.sequences)
            self._curve.learn(time.positions, math.log(seconds / float(base[0])))

    def state(self) -> dict[str, object]:
        """What was learned, and the base's own state."""
        return {
            "curve": self._curve.state(),
            "draft_idle": self._idle.state(),
            "draft_deeper": self._deeper.state(),
            "base": self.base.state(),
        }

    def restore(self, state: dict[str, object]) -> None:
        """Take over what :meth:`state` returned, or nothing of it: ValueError says what doesn't fit."""
        if sorted(state) != sorted(self.state()):
            raise ValueError(f"an online cost is saved as {sorted(self.state())}, not as {sorted(state)}")
        curve, base = state["curve"], state["base"]
        if not isinstance(curve, dict) or not isinstance(base, dict):
            raise ValueError("'curve' and 'base' of the saved cost must be mappings")
        idle, deeper = numbers(state, "draft_idle", (3,)), numbers(state, "draft_deeper", (3,))
        fresh = CurveFactor(self.largest_positions, self.noise, self.memory_steps, self.local_deviation)
        fresh.restore(curve)
        self.base.restore(base)
        self._curve = fresh
        self._idle.restore(idle)
        self._deeper.restore(deeper)

    def __repr__(self) -> str:
        return f"Online({self.base!r}, {self.observed} passes learned from, {self.held} held back)"
