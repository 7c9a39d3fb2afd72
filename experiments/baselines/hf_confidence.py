"""HFConfidence: Hugging Face's confidence threshold, at which an assistant stops drafting."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.experiments.baselines.awaited import Awaited, matching
from adaptive_spec.experiments.baselines.confidence import ConfidenceTable
from adaptive_spec.experiments.baselines.row_values import RowValues
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import Decision, FloatArray, IntArray, Outcome, StepView

SAMPLES = 5  # more than so many before the threshold adapts
MISS_COST = 3.0  # of a good draft not made, in bad drafts made


class HFConfidence(DepthPolicy):
    """Each sequence drafts until it made a draft of which the assistant was less sure than the threshold.

    That last draft is kept, so there is always one. The threshold starts at .4 and adapts to each sequence:
    after every step, the one that would have cost least on the drafts seen so far, where drafting a
    wrong token costs 1 (as a share of all wrong ones) and not drafting a right one 3 (as a share of all right ones).

    Hugging Face's assisted generation serves one sequence, so in a batch each has a threshold of its own.
    The adaptation needs scikit-learn there; releases before the one named below computed the threshold and
    did not use it. The confidence is the probability that the assistant gave its token. N-gram drafts have none:
    the stand-in is :class:`ConfidenceTable`, the same for all such peers.

    Source: transformers 5.24, ``src/transformers/generation/candidate_generator.py``
    (``AssistedCandidateGenerator.update_candidate_strategy``) and ``stopping_criteria.py`` (``ConfidenceCriteria``),
    settings ``assistant_confidence_threshold`` (0.4) and ``num_assistant_tokens`` (20), both the defaults.

    Parameters
    ----------
    confidence : ConfidenceTable
        The stand-in.
    threshold : float
        The threshold of a fresh sequence.
    num_assistant_tokens : int
        The most drafts of a step.
    """

    explores = False
    needs_cost = False

    def __init__(self, confidence: ConfidenceTable, threshold: float = 0.4, num_assistant_tokens: int = 20) -> None:
        self.confidence = confidence
        self.threshold = threshold
        self.num_assistant_tokens = num_assistant_tokens

    def reset(self, max_depth: int, seed: int) -> None:
        """Start anew; ValueError for parameters out of their range."""
        self.confidence.check(max_depth)
        if not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"threshold is {self.threshold}; it must be over 0 and at most 1")
        if self.num_assistant_tokens < 1:
            raise ValueError(f"num_assistant_tokens is {self.num_assistant_tokens}; it must be 1 or more")
        sure = self.confidence.acceptance[:, :max_depth]
        self.max_depth_ = max_depth
        self.values_ = np.unique(sure)[::-1]  # every confidence that there is, falling
        self._value = np.searchsorted(-self.values_, -sure)  # which of them each cell of the table has
        self.thresholds_ = RowValues(self.threshold)
        self._right = RowValues(0.0, len(self.values_))  # drafts seen, by confidence
        self._wrong = RowValues(0.0, len(self.values_))
        self._awaited: Awaited[tuple[IntArray, IntArray]] = Awaited()

    def add(self, row: int) -> None:
        """A fresh sequence starts at the initial threshold."""
        for kept in (self.thresholds_, self._right, self._wrong):
            kept.start(row)

    def decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Decision:
        """Choose, and remember the confidences until the drafts are judged."""
        decision = super().decide(view, acceptance, cost)
        self._awaited.keep(decision, (view.row, self.confidence.bins(view.evidence)))
        return decision

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        sure = self.confidence.confidence(view.evidence)[:, : self.max_depth_]
        sure_so_far = np.logical_and.accumulate(sure >= self.thresholds_.get(view.row), axis=1)
        depth = np.minimum(1 + sure_so_far.sum(axis=1), self.num_assistant_tokens)
        return Allocation(np.minimum(view.limit, depth).astype(np.int64))

    def observe(self, outcome: Outcome) -> HFConfidence:
        """Adapt the thresholds of the sequences that had drafts."""
        found = self._awaited.find(outcome.step)
        if found is None or outcome.row is None:
            return self
        row, bins = found[1]
        index, known = matching(row, outcome.row)
        known &= outcome.verified > 0
        rows, cell, accepted = outcome.row[known], bins[index[known]], outcome.accepted[known]
        judged = np.minimum(accepted + 1, outcome.verified[known])  # nothing is known of what follows a wrong draft
        sequence, position = np.nonzero(np.arange(self.max_depth_) < judged[:, None])
        value = self._value[cell[sequence], position]
        hit = position < accepted[sequence]
        right, wrong = self._right.get(rows), self._wrong.get(rows)
        np.add.at(right, (sequence[hit], value[hit]), 1.0)
        np.add.at(wrong, (sequence[~hit], value[~hit]), 1.0)
        self._right.set(rows, right)
        self._wrong.set(rows, wrong)
        hits, misses = right.sum(axis=1), wrong.sum(axis=1)
        enough = (hits + misses > SAMPLES) & (hits > 0) & (misses > 0)
        best = best_thresholds(self.values_, right[enough], wrong[enough])
        self.thresholds_.set(rows[enough], best[:, None])
        return self


def best_thresholds(values: FloatArray, right: FloatArray, wrong: FloatArray) -> FloatArray:
    """The confidence of least cost to draft from: share of wrong drafts made + 3 * share of right ones not made.

    A point of the ROC curve; of equal costs the highest confidence, as scikit-learn's ``roc_curve`` orders them.

    Parameters
    ----------
    values : float array, shape (V,)
        Confidences, falling.
    right, wrong : float array, shape (B, V)
        Drafts of each confidence that were accepted and rejected; some of both in each row.

    Returns
    -------
    float array, shape (B,)
    """
    made = right.cumsum(axis=1) / right.sum(axis=1, keepdims=True)
    false = wrong.cumsum(axis=1) / wrong.sum(axis=1, keepdims=True)
    return np.asarray(values[(false + MISS_COST * (1.0 - made)).argmin(axis=1)])
