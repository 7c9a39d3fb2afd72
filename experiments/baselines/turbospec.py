"""TurboSpec: one depth for the batch, of the largest predicted goodput, from one acceptance rate."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import FloatArray, Outcome, StepView

KEPT, NEW = 0.85, 0.15  # of the acceptance rate, per step


class TurboSpec(DepthPolicy):
    """Speculates as deep as makes (1 - a^(k+1)) / (1 - a) tokens a request per predicted second largest.

    `a` is one acceptance rate for everything: accepted over drafted tokens of each step, smoothed with
    .85 / .15. Requests that the drafter has nothing for yield one token. Depths are tried upwards from 0
    and the search ends at the first that is no better; with a draft model depth 0 counts for a tenth more than it
    is, for the overhead of speculating. The depth stands for 20 steps. It starts at 0, and as long as it is 0,
    nothing is learned.

    Paper and code: the paper (SmartSpec in its first version, TurboSpec in its third) predicts a step's time by a
    linear model of batched and context tokens fitted offline; the code looks profiled times up, and falls back on the
    model. Here the step's cost curve is looked up, which can only help it. The code's path for n-gram drafters also
    never speculates for over 32 requests, with a comment that it is a first version; that is left out, in its favour.
    That path (``get_verify_len``) counts depth 0 for what it is, so for traces of an n-gram drafter
    :func:`~adaptive_spec.experiments.baselines.baselines` sets `off_factor` to 1. A later code
    (``vllm/v1/spec_decode/auto_tuner.py``) averages the rate over a window and starts at .8. The paper's text could not
    be read in full; the code decides.

    Source: Liu et al., "TurboSpec: Closed-loop Speculation Control System for Optimizing LLM Serving Goodput"
    (arXiv 2406.14066); repository LiuXiaoxuanPKU/vllm, ``vllm/spec_decode/dsd.py`` (``get_draft_propose_len``,
    ``_get_accepted_len``, ``set_token_acceptance_rate``) and ``spec_decode_worker.py``.

    Parameters
    ----------
    initial_rate : float
        The acceptance rate before any was seen.
    update_interval : int
        Steps between two choices.
    off_factor : float
        What depth 0 counts for: 1.1 in ``get_draft_propose_len``, 1 in ``get_verify_len``.
    """

    explores = False

    def __init__(self, initial_rate: float = 0.7, update_interval: int = 20, off_factor: float = 1.1) -> None:
        self.initial_rate = initial_rate
        self.update_interval = update_interval
        self.off_factor = off_factor

    def reset(self, max_depth: int, seed: int) -> None:
        """Start anew; ValueError for parameters out of their range."""
        if not 0.0 <= self.initial_rate < 1.0:
            raise ValueError(f"initial_rate is {self.initial_rate}; it must be at least 0 and below 1")
        if self.update_interval < 1:
            raise ValueError(f"update_interval is {self.update_interval}; it must be 1 step or more")
        if not self.off_factor > 0.0:
            raise ValueError(f"off_factor is {self.off_factor}; it must be over 0")
        self.max_depth_ = max_depth
        self.rate_ = self.initial_rate
        self.depth_ = 0
        self._steps = 0

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        assert cost is not None  # decide() saw to it
        self._steps += 1
        if self._steps % self.update_interval == 0:
            depths = np.arange(self.max_depth_ + 1)
            drafting = int(np.count_nonzero(view.limit))
            positions = view.base_positions + drafting * depths
            seconds = cost.verify(positions, view.total_context, view.sequences)
            seconds = seconds + cost.draft(depths, view.sequences, view.lag)
            self.depth_ = self._best(seconds, drafting, view.sequences - drafting + view.sampling_prefills)
        return Allocation(np.minimum(view.limit, self.depth_))

    def _best(self, seconds: FloatArray, drafting: int, others: int) -> int:
        """The depth of the largest goodput, by the seconds of each, for so many requests that draft and that don't."""
        best, most = 0, -1.0
        for depth, time in enumerate(seconds.tolist()):
            goodput = (drafting * generated(self.rate_, depth) + others) / time
            if depth == 0:
                goodput *= self.off_factor
            if goodput <= most:
                break
            best, most = depth, goodput
        return best

    def observe(self, outcome: Outcome) -> TurboSpec:
        """Smooth the acceptance rate; a step without drafts says nothing."""
        drafted = int(outcome.verified.sum())
        if drafted:
            self.rate_ = KEPT * self.rate_ + NEW * int(outcome.accepted.sum()) / drafted
        return self


def generated(rate: float, depth: int) -> float:
    """Expected tokens of a request at `depth`, each draft accepted with chance `rate`, the bonus token included."""
    return float(depth + 1) if rate >= 1.0 else (1.0 - rate ** (depth + 1)) / (1.0 - rate)
