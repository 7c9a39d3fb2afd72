"""Hindsight: the base of yardsticks that know more of the texts than an engine can."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adaptive_spec.allocate import allocate
from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy
from adaptive_spec.step import FloatArray, IntArray, StepView

Present = Callable[[], IntArray]  # something of each sequence of the step that is being decided, in the view's order


class Hindsight(DepthPolicy):
    """A yardstick, not a policy that could serve: a replay tells it what no engine knows."""

    explores = False

    def reset(self, max_depth: int, seed: int) -> None:
        """Take K."""
        self.depths_ = np.arange(max_depth + 1)

    def _split(self, survival: FloatArray, view: StepView, cost: StepCost | None) -> Allocation:
        """The exact one-step optimum for this survival, shape (B, K)."""
        assert cost is not None  # decide() saw to it
        return allocate(
            survival,
            np.ones(view.sequences) if view.weight is None else view.weight,
            view.limit,
            view.base_tokens,
            cost.verify_range(view.base_positions, int(view.limit.sum()) + 1, view.total_context, view.sequences),
            cost.draft(self.depths_, view.sequences, view.lag),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
