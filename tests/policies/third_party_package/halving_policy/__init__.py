"""Halving: each sequence drafts half of what it may."""

from __future__ import annotations

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import StepView


class Halving(DepthPolicy):
    """Drafts a part of each sequence's limit.

    Parameters
    ----------
    divisor : int
        Part of the limit.
    """

    needs_cost = False

    def __init__(self, divisor: int = 2) -> None:
        self.divisor = divisor

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        return Allocation(view.limit // self.divisor)
