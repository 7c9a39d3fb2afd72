"""DraftSplit: tells the target's seconds from the drafter's, where an engine only shows their sum."""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.step import FloatArray

_LARGEST = 16384  # positions; the last knot
_KNOTS = np.array([2.0**i for i in range(int(math.log2(_LARGEST)) + 1)])
_PRIOR_VARIANCE = 1.0  # of each factor on the believed seconds, whose mean is 1 times the scale
_NOISE = 0.1  # relative, of one step's seconds
_OUTLIER = 3.0  # in standard deviations; what lies beyond counts for less (Huber, 1964)
_EVERY_STEP = 100  # steps that are all learned from; later, to save time, one of
_LATER_EVERY = 8
_BELIEFS_KEPT = 1024


class DraftSplit:
    """A running regression of step seconds on what the target and the drafter did in the step.

    ::

        seconds = sum over knots j of a[j] V(knot j) hat_j(log positions)  +  b D(depth, sequences)

    V and D are what the cost model believed at the start, hat_j the linear interpolation between knots at
    powers of two; the factors a and b are learned by recursive least squares with forgetting, relative
    errors counting alike for short and long steps. In a step the target verifies one decision's drafts while
    the drafter works for the next, so positions and depth move apart even for a single sequence. What no
    step has shown yet stays at the belief times the scale on which the machine as a whole runs.

    Parameters
    ----------
    cost : StepCost
        The belief; it is asked in the constructor and for D afterwards, and must not be a cost that learns.
    memory_steps : float
        Steps after which an observation counts for 1/e.
    """

    def __init__(self, cost: StepCost, memory_steps: float = 500.0) -> None:
        if not memory_steps >= 1:
            raise ValueError(f"memory_steps is {memory_steps}; it must be at least 1")
        self._cost = cost
        self._target: FloatArray = np.asarray(cost.verify(_KNOTS.astype(np.int64), 0.0, 1), dtype=float)
        self._keep = math.exp(-1.0 / memory_steps)
        self._factor = np.ones(len(_KNOTS) + 1)
        # A square root of the factors' covariance (Potter, 1963). The covariance itself would lose its positivity:
        # forgetting lets what rounding took from it grow, a little at every step.
        self._root = np.eye(len(_KNOTS) + 1) * math.sqrt(_PRIOR_VARIANCE)
        self._widest = _PRIOR_VARIANCE
        self._believed: dict[tuple[int, int], float] = {}
        self.observed = 0

    @property
    def draft_factor(self) -> float:
        """What the believed seconds of drafting are multiplied with."""
        return float(max(self._factor[-1], 0.0))

    def believed_draft(self, depth: int, sequences: int) -> float:
        """Seconds of drafting as believed at the start; those of depth 0 are part of it."""
        seconds = self._believed.get((depth, sequences))
        if seconds is None:
            if len(self._believed) >= _BELIEFS_KEPT:
                self._believed.clear()
            seconds = float(self._cost.draft(np.array([depth]), max(sequences, 1))[0])
            self._believed[depth, sequences] = seconds
        return seconds

    def split(self, seconds: float, positions: int, draft_depth: int, sequences: int) -> tuple[float, float]:
        """Learn from a step and return the target's and the drafter's share of its seconds.

        Parameters
        ----------
        seconds : float
            What the step took, over 0.
        positions, sequences : int
            Tokens in the target's pass, and decoding sequences in it.
        draft_depth : int
            Depth that was drafted to within these seconds.
        """
        draft = self.believed_draft(draft_depth, sequences)
        self.observed += 1
        if self.observed <= _EVERY_STEP or self.observed % _LATER_EVERY == 0:
            self._learn(seconds, self._features(positions, draft))
        if draft <= 0.0:
            return seconds, 0.0
        drafted = min(draft * self.draft_factor, 0.95 * seconds)
        return seconds - drafted, drafted

    def _features(self, positions: int, draft: float) -> FloatArray:
        """Believed seconds of the knots around these positions, and of drafting."""
        features = np.zeros(len(_KNOTS) + 1)
        place = math.log2(min(max(positions, 1), _LARGEST))
        j = min(int(place), len(_KNOTS) - 2)
        part = place - j
        features[j], features[j + 1] = (1 - part) * self._target[j], part * self._target[j + 1]
        features[-1] = draft
        return features

    def _learn(self, seconds: float, features: FloatArray) -> None:
        """One step of recursive least squares on relative errors."""
        if self.observed == 1:  # the machine as a whole may run on another scale than believed
            scale = seconds / max(float(features.sum()), 1e-12)
            self._factor *= scale
            self._root *= scale
            self._widest = _PRIOR_VARIANCE * scale * scale
        features = features / seconds
        self._root /= math.sqrt(self._keep if self.observed <= _EVERY_STEP else self._keep**_LATER_EVERY)
        # What is never visited must not grow without bound: back to the prior at most.
        excess = np.square(self._root).sum(axis=1) / self._widest
        self._root /= np.sqrt(np.maximum(excess, 1.0))[:, None]
        error = 1.0 - float(features @ self._factor)
        seen = features @ self._root
        spread = self._root @ seen
        variance = float(seen @ seen)
        deviations = abs(error) / math.sqrt(variance + _NOISE * _NOISE)
        noise = _NOISE * _NOISE * max(1.0, deviations / _OUTLIER)
        total = variance + noise
        self._factor += spread * (error / total)
        self._root -= np.outer(spread, seen / (total + math.sqrt(noise * total)))

    def __repr__(self) -> str:
        return f"DraftSplit({self.observed} steps learned from, draft factor {self.draft_factor:.3g})"
