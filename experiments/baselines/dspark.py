"""DSparkEarlyStop: DSpark's hardware-aware prefix scheduler, literally."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.experiments.baselines.confidence import ConfidenceTable
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import FloatArray, IntArray, StepView


class DSparkEarlyStop(DepthPolicy):
    """Admits drafts by falling survival while expected throughput rises, and stops at its first fall.

    Throughput is (requests + sum of admitted survivals) * steps per second at that many positions, from a
    curve profiled once. The stop keeps the paper's drafts lossless, and it finds the best throughput if
    and only if throughput has a single peak, as the paper says itself: on a stair of the curve it stops
    at once. Every draft is made whatever is verified, so drafting costs the same each step.

    The paper's own deployment (its section 5.2) drops the stop and sizes the budget from confidences of
    two steps earlier; that is nearly :class:`AdaptiveVerification`. This is Algorithm 1.

    The confidence head there is calibrated by temperature scaling. N-gram drafts have none: the stand-in
    is :class:`ConfidenceTable`, the same for all such peers. Request weights are unknown to the algorithm.
    Prefills, which the paper doesn't treat, add their positions and their tokens.

    Source: DeepSeek-AI and Peking University, "DSpark: Confidence-Scheduled Speculative Decoding with
    Semi-Autoregressive Generation" (2026, arXiv 2607.05147), Algorithm 1 and section 3.2.2; the paper is
    ``DSpark_paper.pdf`` in the repository deepseek-ai/DeepSpec, which has no scheduler.

    Parameters
    ----------
    confidence : ConfidenceTable
        The stand-in.
    """

    explores = False

    def __init__(self, confidence: ConfidenceTable) -> None:
        self.confidence = confidence

    def reset(self, max_depth: int, seed: int) -> None:
        """ValueError if the confidence table is too short."""
        self.confidence.check(max_depth)
        self.max_depth_ = max_depth

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        assert cost is not None  # decide() saw to it
        survival = np.multiply.accumulate(self.confidence.confidence(view.evidence)[:, : self.max_depth_], axis=1)
        slots = int(view.limit.sum())
        seconds = cost.verify_range(view.base_positions, slots + 1, view.total_context, view.sequences)
        seconds = seconds + float(cost.draft(np.array([self.max_depth_]), view.sequences, view.lag)[0])
        base = float(view.sequences + view.sampling_prefills)
        return Allocation(admit(survival, view.limit, base, 1.0 / seconds), draft_depth=self.max_depth_)


def admit(survival: FloatArray, limit: IntArray, base_tokens: float, steps_per_second: FloatArray) -> IntArray:
    """Algorithm 1: verification lengths, shape (B,).

    Parameters
    ----------
    survival : float array, shape (B, K)
        Chance that draft j and all before it are accepted.
    limit : int array, shape (B,)
        Drafts that there are.
    base_tokens : float
        Tokens of the step without drafts.
    steps_per_second : float array, shape (sum(limit) + 1,)
        By drafts admitted.
    """
    sequences, depths = survival.shape
    offered = (np.arange(depths) < limit[:, None]) & (survival > 0.0)
    order = np.argsort(-np.where(offered, survival, -1.0), axis=None, kind="stable")[: int(offered.sum())]
    tokens = np.cumsum(np.concatenate(([base_tokens], survival.reshape(-1)[order])))
    throughput = tokens * steps_per_second[: len(tokens)]
    falls = np.flatnonzero(np.diff(throughput) <= 0.0)
    admitted = int(falls[0]) if len(falls) else len(order)
    return np.bincount(order[:admitted] // depths, minlength=sequences).astype(np.int64)
