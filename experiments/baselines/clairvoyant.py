"""Clairvoyant: the best that any policy could do in each single step, knowing which drafts will be accepted."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.experiments.baselines.hindsight import Hindsight, Present
from adaptive_spec.policy import Allocation, SurvivalEstimate
from adaptive_spec.step import StepView


class Clairvoyant(Hindsight):
    """Splits each step's budget exactly, on a survival that is 1 for drafts that will be accepted and 0 beyond.

    It maximises the step's own goodput. Over a run that is nearly but not quite the optimum; at one sequence
    the true one is :func:`~adaptive_spec.experiments.baselines.shortest_path.shortest_path`.

    Parameters
    ----------
    present_runs : callable
        L[p] of each sequence of the step that is being decided, in the view's order, shape (B,): no further than the
        text goes on, since drafts beyond its end bring no token.
    """

    def __init__(self, present_runs: Present) -> None:
        self.present_runs = present_runs

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        run = self.present_runs()
        if run.shape != view.row.shape:
            raise ValueError(f"present_runs told of {run.shape} sequences; the step has {view.row.shape}")
        return self._split((self.depths_[:-1] < run[:, None]).astype(np.float64), view, cost)
