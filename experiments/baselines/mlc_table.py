"""MLCTable: the fixed table of MLC-LLM's automatic speculation."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import StepView

TABLE = ((10, 4), (20, 3), (30, 2))  # fewer than so many requests: so many drafts


class MLCTable(DepthPolicy):
    """4 drafts for fewer than 10 running requests, 3 for fewer than 20, 2 for fewer than 30, else none.

    None, too, where the batch of a step, drafts and bonus tokens included, would exceed the engine's limit.
    The numbers are fixed in the source. Running requests that are still in their prefill count there; a
    view tells only of those that end in the step, so these are counted.

    Source: MLC-LLM, ``cpp/serve/engine_actions/auto_spec_decode.cc`` (``CalculateDraftLength``), used where
    ``spec_draft_length`` is 0.

    Parameters
    ----------
    max_num_sequence : int
        The engine's limit. 128 never binds in the table.
    """

    explores = False
    needs_cost = False

    def __init__(self, max_num_sequence: int = 128) -> None:
        self.max_num_sequence = max_num_sequence

    def reset(self, max_depth: int, seed: int) -> None:
        """ValueError for a limit below 1."""
        if self.max_num_sequence < 1:
            raise ValueError(f"max_num_sequence is {self.max_num_sequence}; it must be 1 or more")

    def lookup(self, batch: int) -> int:
        """The draft length for so many running requests."""
        length = next((length for below, length in TABLE if batch < below), 0)
        return 0 if batch * (length + 1) > self.max_num_sequence else length

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        return Allocation(np.minimum(view.limit, self.lookup(view.sequences + view.sampling_prefills)))
