"""AdaptiveVerification: vLLM's global allocation of draft slots, with its online acceptance estimator."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.experiments.baselines.awaited import Awaited, matching
from adaptive_spec.experiments.baselines.confidence import ConfidenceTable
from adaptive_spec.experiments.baselines.row_values import RowValues
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import BoolArray, Decision, FloatArray, IntArray, Outcome, StepView

FIRST_SLOPE, FIRST_INTERCEPT = 0.5, -0.2  # cold start, medians over five models
LARGEST_LOG_ODDS = 40.0
REFIT_STEPS = 100
DAMPING = 50.0  # observations of a round that move a parameter half a Newton step
RIDGE = 1e-3


class AcceptanceEstimator:
    """Logistic regression of acceptance on a draft's log-odds, refitted while it serves.

    The chance that draft k is accepted, all before it accepted, is ``sigmoid(slope * feature + intercept[k])``.
    Every 100 steps one damped Newton step is made on what these steps showed: accepted drafts, and the
    first rejected one. One slope is shared by all positions, so the system is an arrow: solved for the
    slope first. A step that would make the slope negative isn't made.

    Source: vLLM 0.33, ``vllm/v1/worker/gpu/spec_decode/acceptance_estimator.py``; pull request 52228.

    Parameters
    ----------
    max_depth : int
        K.
    """

    def __init__(self, max_depth: int) -> None:
        self.slope = FIRST_SLOPE
        self.intercept: FloatArray = np.full(max_depth, FIRST_INTERCEPT)
        self.refits = 0
        self._steps = 0
        self._clear()

    def _clear(self) -> None:
        depths = len(self.intercept)
        self._information = np.zeros((3, depths))  # of slope, slope with intercept, intercept
        self._gradient = np.zeros((2, depths))  # of slope, intercept
        self._count = np.zeros(depths)

    def predict(self, feature: FloatArray) -> FloatArray:
        """Conditional acceptance, shape (B, K), from log-odds of the same shape."""
        return 1.0 / (1.0 + np.exp(-(self.slope * feature + self.intercept)))

    def observe(self, feature: FloatArray, predicted: FloatArray, verified: IntArray, accepted: IntArray) -> None:
        """Grade the drafts of a step, and refit when a round of steps is full.

        Parameters
        ----------
        feature, predicted : float array, shape (B, K)
            As they were at the draft.
        verified, accepted : int array, shape (B,)
        """
        position = np.arange(len(self.intercept))
        observed = (position <= accepted[:, None]) & (position < verified[:, None])
        label = position < accepted[:, None]
        weight = np.where(observed, predicted * (1.0 - predicted), 0.0)
        residual = np.where(observed, label - predicted, 0.0)
        self._information += ((weight * feature * feature).sum(0), (weight * feature).sum(0), weight.sum(0))
        self._gradient += ((residual * feature).sum(0), residual.sum(0))
        self._count += observed.sum(0)
        self._steps += 1
        if self._steps % REFIT_STEPS == 0:
            self.refit()

    def refit(self) -> None:
        """Make one damped Newton step on the round's statistics, and begin the next round."""
        _, b, c = self._information
        c = c + RIDGE
        a = self._information[0].sum() + RIDGE
        g0, g1 = self._gradient[0].sum(), self._gradient[1]
        step = float((g0 - (b * g1 / c).sum()) / (a - (b * b / c).sum()))
        total = self._count.sum()
        step *= total / (total + DAMPING)
        if not (np.isfinite(step) and self.slope + step >= 0.0):
            step = 0.0
        self.slope += step
        self.intercept = self.intercept + (g1 - b * step) / c * (self._count / (self._count + DAMPING))
        self.refits += 1
        self._clear()


class AdaptiveVerification(DepthPolicy):
    """Verifies the globally best draft slots, as many as make expected tokens per profiled second largest.

    Every draft is made; only how much of it is verified is decided. Slots rank by survival, the running
    product of predicted acceptances. How many are bought is found over all counts, on a verification curve
    forced monotone (a running maximum) plus a draft cost that depends on the number of requests alone. That
    count is taken from the predictions of the step *before* (1 for a request without one), so that the GPU
    need not be waited for; which slots fill it, from the present ones. Nothing explores: positions that are
    never verified are never graded.

    Kept from vLLM: the order of things, the constants, float64 instead of float32. Not kept: the cap by
    the sampler's largest batch. Its profile is of one fixed context (8,192 tokens a request); here the
    curve knows the true one, which can only help it.

    The feature is the log-odds of the draft distribution's likeliest token there. N-gram drafts have none:
    it is the log-odds of the stand-in :class:`ConfidenceTable`, the same for all such peers.

    Source: vLLM 0.33, ``vllm/v1/worker/gpu/spec_decode/adaptive_verification.py``; pull requests 47808 and
    52228. The description of 47808 smooths confidences by a moving average; the merged code does not.

    Parameters
    ----------
    confidence : ConfidenceTable
        The stand-in.
    """

    explores = False

    def __init__(self, confidence: ConfidenceTable) -> None:
        self.confidence = confidence

    def reset(self, max_depth: int, seed: int) -> None:
        """Start cold; ValueError if the confidence table is too short."""
        self.confidence.check(max_depth)
        self.max_depth_ = max_depth
        self.estimator_ = AcceptanceEstimator(max_depth)
        self._stale = RowValues(1.0, max_depth)
        self._awaited: Awaited[tuple[IntArray, FloatArray, FloatArray]] = Awaited()
        self._graded: tuple[IntArray, FloatArray, FloatArray] | None = None

    def add(self, row: int) -> None:
        """A fresh request's drafts count as certain until one was made."""
        self._stale.start(row)

    def decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Decision:
        """Choose, and remember features and predictions until the drafts are graded."""
        decision = super().decide(view, acceptance, cost)
        if self._graded is not None:
            self._awaited.keep(decision, self._graded)
        return decision

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        assert cost is not None  # decide() saw to it
        sure = self.confidence.confidence(view.evidence)[:, : self.max_depth_]
        feature = np.clip(np.log(sure / (1.0 - sure)), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
        predicted = self.estimator_.predict(feature)
        offered = np.arange(self.max_depth_) < view.limit[:, None]
        budget = self._budget(view, cost, np.multiply.accumulate(self._stale.get(view.row), axis=1)[offered])
        depth = _best_slots(np.multiply.accumulate(predicted, axis=1), offered, budget)
        self._stale.set(view.row, predicted)
        self._graded = (view.row, feature, predicted)
        return Allocation(depth, draft_depth=self.max_depth_)

    def _budget(self, view: StepView, cost: StepCost, survival: FloatArray) -> int:
        """Slots to verify, from the survival of every scheduled draft as the step before saw it."""
        worth = np.sort(survival)[::-1]
        base = view.base_positions
        curve = cost.verify_range(1, base + len(worth), view.total_context, view.sequences)
        monotone = np.maximum.accumulate(curve)[base - 1 :]
        draft = float(cost.draft(np.array([self.max_depth_]), view.sequences, view.lag)[0])
        sampling = float(view.sequences + view.sampling_prefills)
        tokens = np.concatenate(([sampling], sampling + np.cumsum(worth)))
        return int((tokens / (draft + monotone)).argmax())

    def observe(self, outcome: Outcome) -> AdaptiveVerification:
        """Let the estimator grade the step's drafts."""
        found = self._awaited.take(outcome.step)
        if found is not None and outcome.row is not None:
            row, feature, predicted = found[1]
            index, known = matching(row, outcome.row)
            index = index[known]
            self.estimator_.observe(feature[index], predicted[index], outcome.verified[known], outcome.accepted[known])
        return self


def _best_slots(survival: FloatArray, offered: BoolArray, budget: int) -> IntArray:
    """Depths that take the `budget` best of the offered slots; equal ones by request, then by position."""
    if budget == 0:
        return np.zeros(len(survival), dtype=np.int64)
    best = np.argsort(-np.where(offered, survival, -np.inf), axis=None, kind="stable")[:budget]
    return np.bincount(best // survival.shape[1], minlength=len(survival)).astype(np.int64)
