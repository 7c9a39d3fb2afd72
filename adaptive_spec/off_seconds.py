"""OffSeconds: what a step takes without speculation, by load, as off-steps have shown it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.step import StepView

_LOADS_PER_DOUBLING = 2  # of positions
_SLOWEST = 0.05  # least that a new off-step counts for: a memory of some twenty
_SURPRISE = 3.0  # deviations that are no noise
_AGREEING = 3  # off-steps in a row that make a surprise a fact
_NEIGHBOUR = 0.5  # of what one load's seconds were corrected by, that the next load's are
_NOISE_RATE = 0.05
_NOISE_RANGE = (0.005, 0.25)

NO_DEPTH = np.zeros(1, dtype=np.int64)


@dataclass(slots=True)
class _Load:
    """What was measured at one load, and what it was: the cost model carries it from there to a step's own."""

    positions: int
    context: float
    sequences: int
    lag: int
    log_seconds: float
    count: int = 0
    recent: list[float] = field(default_factory=list)  # logs of the newest seconds, at this load

    @classmethod
    def of(cls, view: StepView, log_seconds: float) -> _Load:
        return cls(view.base_positions, view.total_context, view.sequences, view.lag, log_seconds)

    def modelled(self, cost: StepCost) -> float:
        """Log of the cost model's seconds at depth 0."""
        verify = float(cost.verify_range(self.positions, 1, self.context, self.sequences)[0])
        return math.log(verify + float(cost.draft(NO_DEPTH, self.sequences, self.lag)[0]))


class OffSeconds:
    """Seconds of a step at depth 0, by load.

    They are measured, and kept as they were measured: the cost model only says how two loads differ. What it
    believes of a load itself moves with every step that speculates, and where those fall off a cliff it takes the
    whole machine to be slower; speculation is not to be judged by that. Before the first off-step, the seconds are
    those that the model believed when the first step was planned.

    Attributes
    ----------
    steps : int
        Off-steps that were measured.
    noise : float
        Standard deviation of the log of an off-step's seconds.
    surprised : bool
        Whether the newest off-step was so far from what was expected that it should be measured again soon.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.noise = 0.05
        self.surprised = False
        self._loads: dict[int, _Load] = {}
        self._believed: _Load | None = None

    def knows(self, view: StepView) -> bool:
        """Whether an off-step was measured at this load."""
        return _bucket(view) in self._loads

    def believe(self, view: StepView, cost: StepCost) -> None:
        """Note what the cost model believes, before any step can mislead it; what is known already stands."""
        if not self._loads and self._believed is None:
            believed = _Load.of(view, 0.0)
            believed.log_seconds = believed.modelled(cost)
            self._believed = believed

    def at(self, view: StepView, cost: StepCost) -> float:
        """Seconds of this step at depth 0."""
        return math.exp(self._log_at(_Load.of(view, 0.0), cost))

    def observe(self, view: StepView, cost: StepCost, seconds: float) -> None:
        """Learn from an off-step."""
        bucket, now = _bucket(view), _Load.of(view, math.log(seconds))
        expected = self._log_at(now, cost)
        self.steps += 1
        load = self._loads.get(bucket)
        if load is None:
            now.count, now.recent = 1, [now.log_seconds]
            self._loads[bucket] = now
            self.surprised = self.steps > 1 and abs(now.log_seconds - expected) > self._surprise
            return
        moved = expected - load.log_seconds  # from where it was measured last to here
        recent = [*(value + moved for value in load.recent), now.log_seconds][-_AGREEING:]
        error = now.log_seconds - expected
        far = [value - expected for value in recent]
        if load.count < _AGREEING:
            correction = sorted(far)[len(far) // 2]
        elif len(far) == _AGREEING and (min(far) > self._surprise or max(far) < -self._surprise):
            correction = sorted(far)[len(far) // 2]
            recent = []
        else:
            bound = self._surprise  # one stalled step moves it no further
            correction = max(_SLOWEST, 1.0 / (load.count + 1)) * min(max(error, -bound), bound)
        self.surprised = abs(error) > self._surprise and bool(recent)
        if load.count >= _AGREEING:
            size = 1.25 * min(abs(error), 2 * self._surprise)  # of a Gaussian's mean absolute value, its deviation
            self.noise += _NOISE_RATE * (size - self.noise)
            self.noise = min(max(self.noise, _NOISE_RANGE[0]), _NOISE_RANGE[1])
            for other, neighbour in self._loads.items():
                if other != bucket:
                    neighbour.log_seconds += correction * _NEIGHBOUR ** abs(other - bucket)
        now.log_seconds = expected + correction
        now.count, now.recent = load.count + 1, recent
        self._loads[bucket] = now

    @property
    def _surprise(self) -> float:
        return _SURPRISE * max(self.noise, 0.01)

    def _log_at(self, now: _Load, cost: StepCost) -> float:
        if self._loads:
            bucket = _bucket_of(now.positions)
            known = self._loads.get(bucket) or self._loads[min(self._loads, key=lambda other: abs(other - bucket))]
        elif self._believed is None:
            return now.modelled(cost)
        else:
            known = self._believed
        if known.positions == now.positions and known.context == now.context and known.sequences == now.sequences:
            return known.log_seconds
        return known.log_seconds + now.modelled(cost) - known.modelled(cost)


def _bucket(view: StepView) -> int:
    return _bucket_of(view.base_positions)


def _bucket_of(positions: int) -> int:
    return round(_LOADS_PER_DOUBLING * math.log2(max(positions, 1)))
