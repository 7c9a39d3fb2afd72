"""HFHeuristic: Hugging Face's +2 / -1 rule for the number of assistant tokens."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.experiments.baselines.row_values import RowValues
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import Outcome, StepView


class HFHeuristic(DepthPolicy):
    """Two drafts more after every draft of a step was right, one fewer, at least 1, after one was wrong.

    Hugging Face's assisted generation serves one sequence, so in a batch each has a count of its own,
    reset with it: the schedule ``heuristic_transient``. (``heuristic`` carries the count over to the next
    call of the same assistant; a batch has no next.) A deployment's largest depth K caps the count, which
    the original lets grow; otherwise it would take many wrong drafts to come down from a depth that was
    never drafted. A step without a draft, which an assistant model doesn't know, changes nothing.

    Source: transformers 5.24, ``src/transformers/generation/candidate_generator.py``
    (``AssistedCandidateGenerator.update_candidate_strategy``), settings ``num_assistant_tokens_schedule`` and
    ``num_assistant_tokens``. The rule was the default with 5 tokens; now the default is ``constant`` with 20.

    Parameters
    ----------
    num_assistant_tokens : int
        The count of a fresh sequence.
    """

    explores = False
    needs_cost = False

    def __init__(self, num_assistant_tokens: int = 5) -> None:
        self.num_assistant_tokens = num_assistant_tokens

    def reset(self, max_depth: int, seed: int) -> None:
        """Start anew; ValueError for a count below 1."""
        if self.num_assistant_tokens < 1:
            raise ValueError(f"num_assistant_tokens is {self.num_assistant_tokens}; it must be 1 or more")
        self.max_depth_ = max_depth
        self.counts_ = RowValues(float(min(self.num_assistant_tokens, max_depth)))

    def add(self, row: int) -> None:
        """A fresh sequence starts at the initial count."""
        self.counts_.start(row)

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        return Allocation(np.minimum(view.limit, self.counts_.get(view.row)[:, 0].astype(np.int64)))

    def observe(self, outcome: Outcome) -> HFHeuristic:
        """Move the counts of the sequences that had drafts."""
        assert outcome.row is not None  # the controller fills it in
        count = self.counts_.get(outcome.row)[:, 0]
        right = outcome.accepted == outcome.verified
        moved = np.where(right, np.minimum(count + 2, self.max_depth_), np.maximum(count - 1, 1))
        self.counts_.set(outcome.row, np.where(outcome.verified > 0, moved, count)[:, None])
        return self
