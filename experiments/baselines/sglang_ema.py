"""SGLangEMA: SGLang's adaptive number of draft steps, from a moving average of the accepted length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import Outcome, StepView


@dataclass(frozen=True)
class Tiers:
    """The depths that one range of batch sizes may have, and how readily they change.

    Attributes
    ----------
    candidate_steps : tuple of int
        Depths.
    up_hysteresis, down_hysteresis : float
        Added to the accepted length at which the next tier is taken, upwards and downwards.
    """

    candidate_steps: tuple[int, ...]
    up_hysteresis: float = 0.0
    down_hysteresis: float = -0.25


FIRST_RELEASE: Mapping[int, Tiers] = {1: Tiers((1, 3, 7))}
BY_BATCH_SIZE: Mapping[int, Tiers] = {
    1: Tiers((1, 3, 5, 7)),
    8: Tiers((0, 1, 3), down_hysteresis=0.0),
    32: Tiers((0, 1), down_hysteresis=0.0),
    64: Tiers((0,), down_hysteresis=0.0),
}


class SGLangEMA(DepthPolicy):
    """One depth for the batch, out of a few tiers, that follows the average accepted length.

    The average over a batch is smoothed; after a warm-up, every few batches the tier is moved: down as long
    as the smoothed length is at most that of the tier below - 0.5 + the (negative) hysteresis, else up as
    long as it is over the present tier - 0.5 + the hysteresis. From depth 0 it tries the next tier at the
    next update, since depth 0 shows nothing.

    Two settings are known here. `FIRST_RELEASE` has one set of tiers, 1, 3, 7, for every batch size, as
    documented. `BY_BATCH_SIZE` is the newer default: other tiers from 8, 32 and 64 requests up, each with
    an average of its own, none drafting from 64 on. The `ceiling_coeff` (off by default), the rounding of
    batch sizes to captured graphs and the newer throughput-aware strategy are left out. SGLang's drafter
    always has drafts; here sequences without any don't enter the average, since they say nothing of it.

    Source: SGLang, ``python/sglang/srt/speculative/adaptive_spec_params.py`` and ``adaptive_step_router.py``;
    pull requests 21599 and 24055; documentation page "Adaptive Speculative Decoding".

    Parameters
    ----------
    tiers : mapping of int to Tiers
        By the smallest batch size that they serve; smaller batches get the first. None: `FIRST_RELEASE`.
    initial_steps : int
        Depth to start at, the middle tier if it isn't one.
    ema_alpha : float
        Weight of a new batch.
    update_interval, warmup_batches : int
        Batches between two updates, and before the first.
    """

    explores = False
    needs_cost = False

    def __init__(
        self,
        tiers: Mapping[int, Tiers] | None = None,
        initial_steps: int = 3,
        ema_alpha: float = 0.2,
        update_interval: int = 5,
        warmup_batches: int = 10,
    ) -> None:
        self.tiers = tiers
        self.initial_steps = initial_steps
        self.ema_alpha = ema_alpha
        self.update_interval = update_interval
        self.warmup_batches = warmup_batches

    def reset(self, max_depth: int, seed: int) -> None:
        """Start anew; ValueError for empty tiers or parameters out of their range. Deeper tiers than K stand at K."""
        tiers = FIRST_RELEASE if self.tiers is None else self.tiers
        if not tiers or any(not t.candidate_steps or min(t.candidate_steps) < 0 for t in tiers.values()):
            raise ValueError("tiers must have a range of batch sizes, and each range depths of 0 or more")
        if not 0.0 < self.ema_alpha <= 1.0:
            raise ValueError(f"ema_alpha is {self.ema_alpha}; it must be over 0 and at most 1")
        if self.update_interval < 1 or self.warmup_batches < 0:
            raise ValueError(
                f"update_interval is {self.update_interval} and warmup_batches {self.warmup_batches}; they must be "
                "at least 1 and at least 0"
            )
        self.slots_ = {size: _Slot(tiers[size], self.initial_steps, max_depth) for size in sorted(tiers)}

    def slot(self, batch: int) -> _Slot:
        """The tiers of a batch of this size."""
        sizes = list(self.slots_)
        return self.slots_[max((size for size in sizes if size <= batch), default=sizes[0])]

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        return Allocation(np.minimum(view.limit, self.slot(view.sequences).steps))

    def observe(self, outcome: Outcome) -> SGLangEMA:
        """Smooth the batch's accepted length, and move to another tier where it is time."""
        slot = self.slot(len(outcome.ids))
        if slot.steps > 0:
            drafting = outcome.verified > 0
            if not drafting.any():
                return self
            average = float(outcome.accepted[drafting].mean())
            slot.length = (1.0 - self.ema_alpha) * slot.length + self.ema_alpha * average
        slot.batches += 1
        since = slot.batches - self.warmup_batches
        if since > 0 and since % self.update_interval == 0:
            slot.move()
        return self


@dataclass
class _Slot:
    """The tier that one range of batch sizes is at, and why."""

    tiers: Tiers
    initial_steps: int
    max_depth: int
    candidates: list[int] = field(init=False)
    at: int = field(init=False)  # index of the present tier
    length: float = field(init=False)  # smoothed accepted length
    batches: int = 0

    def __post_init__(self) -> None:
        self.candidates = sorted({min(steps, self.max_depth) for steps in self.tiers.candidate_steps})
        initial = min(self.initial_steps, self.max_depth)
        self.at = self.candidates.index(initial) if initial in self.candidates else len(self.candidates) // 2
        self.length = float(self.steps - 1)

    @property
    def steps(self) -> int:
        """The present depth."""
        return self.candidates[self.at]

    def move(self) -> None:
        """Take the tier that the smoothed length asks for."""
        candidates, start = self.candidates, self.at
        if self.steps == 0:
            self.at = min(self.at + 1, len(candidates) - 1)
            if self.steps > 0 and self.length < 0:  # begun at 0, without any history
                self.length = float(self.steps - 1)
            return
        while self.at > 0:
            below = candidates[self.at - 1]
            if self.length > (0.5 if below == 0 else below - 0.5) + self.tiers.down_hysteresis:
                break
            self.at -= 1
        if self.at < start:
            return
        while self.at < len(candidates) - 1 and self.length > self.steps - 0.5 + self.tiers.up_hysteresis:
            self.at += 1
