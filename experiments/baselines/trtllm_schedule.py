"""TensorRTSchedule: TensorRT-LLM's draft lengths by batch size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import StepView

DOCUMENTED = {4: 4, 8: 2, 32: 1}  # the example of TensorRT-LLM's documentation; it has no default


class TensorRTSchedule(DepthPolicy):
    """The draft length of the whole batch, by how many requests are active.

    A key is the last batch size that its length serves; above the largest key the length is the floor.
    With {4: 4, 8: 2, 32: 1}: 4 drafts for 1 to 4 requests, 2 up to 8, 1 up to 32, none from 33 on. Prefills
    are active requests; a view tells only of those that end in the step, so these are counted.

    Source: TensorRT-LLM, ``tensorrt_llm/_torch/speculative/utils.py`` (``get_draft_len_for_batch_size``),
    setting ``speculative_config.draft_len_schedule``; pull requests 8194 and 10860. Pull request 16888
    raises the floor to 1 for drafters inside the target engine, whose state must be kept in step; for
    n-gram drafters it is 0. ``max_concurrency`` is the schedule with that one key.

    Parameters
    ----------
    schedule : mapping of int to int
        Draft length by the last batch size that it serves.
    min_draft_len : int
        The floor, also of scheduled lengths.
    """

    explores = False
    needs_cost = False

    def __init__(self, schedule: Mapping[int, int] | None = None, min_draft_len: int = 0) -> None:
        self.schedule = schedule
        self.min_draft_len = min_draft_len

    def reset(self, max_depth: int, seed: int) -> None:
        """Sort the schedule; ValueError for sizes below 1 and lengths below 0."""
        schedule = DOCUMENTED if self.schedule is None else self.schedule
        for size, length in schedule.items():
            if size < 1 or length < 0:
                raise ValueError(f"schedule has {size}: {length}; batch sizes begin at 1 and draft lengths at 0")
        if self.min_draft_len < 0:
            raise ValueError(f"min_draft_len is {self.min_draft_len}; it must be 0 or more")
        self.sizes_ = sorted(schedule)
        self.lengths_ = [schedule[size] for size in self.sizes_]

    def lookup(self, batch: int) -> int:
        """The draft length for a batch of this size."""
        index = bisect_left(self.sizes_, batch)
        return max(self.lengths_[index] if index < len(self.sizes_) else 0, self.min_draft_len)

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        return Allocation(np.minimum(view.limit, self.lookup(view.sequences + view.sampling_prefills)))
