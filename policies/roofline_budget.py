"""RooflineBudget: buys draft slots while they bring more tokens than their share of the step's time costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from adaptive_spec.allocate import allocate
from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import FloatArray, IntArray, StepTime, StepView

KEEP = 0.98  # of the running goodput, per step: a memory of some fifty steps
OBJECTIVES = ("throughput",)
HORIZONS = ("step", "run")


class RooflineBudget(DepthPolicy):
    """Gives every sequence the depth that makes the whole step's goodput largest.

    A forward pass has a budget: up to the ridge of the machine's roofline more positions cost next to
    nothing, beyond it each one costs time. All sequences draw on that budget. So each possible draft token
    of each sequence is one slot, with a worth (the chance that it survives, times the weight of its
    sequence); slots are bought from the worthiest down, and the number bought is the one at which tokens
    per second are highest by the cost model, the drafter's own time included. A sequence that copies its
    prompt then gets many slots and one that writes a poem few, and with a full machine nobody gets many.

    What a prefill adds to a pass is not for the drafts to pay: it has to be done sooner or later whatever is
    decided. Counted in, it would make a second look worth less than it is in the steps that decode alone, and
    slots that lose there would be bought here. So a step's goodput is that of its decoding: the seconds that
    its prefill adds at depth 0 are left out, and so are the first tokens of prompts.

    Source: DSpark's Algorithm 1 (slots by descending confidence while throughput rises), without its early
    stop, which real cost curves with their stairs and dips mislead; the roofline is Williams, Waterman and
    Patterson's (2009). The long-run price is the marginal value theorem of foraging (Charnov, 1976).

    Parameters
    ----------
    horizon : {"step", "run"}
        ``step`` makes this step's own goodput largest. ``run`` buys whatever brings more than the running
        goodput of the last fifty steps or so: the optimum in the long run, which gains a little where
        steps differ much (bursts of prefills). A run's first step goes by ``step``.
    objective : {"throughput"}
        What to make large.
    depth_levels : sequence of int, optional
        Depths allowed besides 0, for engines with graphs captured for some depths only.
    uniform : bool
        The same depth for all sequences of a step (out of `depth_levels`, or any), as far as limits allow.
    """

    def __init__(
        self,
        horizon: Literal["step", "run"] = "step",
        objective: Literal["throughput"] = "throughput",
        depth_levels: Sequence[int] | None = None,
        uniform: bool = False,
    ) -> None:
        self.horizon = horizon
        self.objective = objective
        self.depth_levels = depth_levels
        self.uniform = uniform

    def reset(self, max_depth: int, seed: int) -> None:
        """Forget the running goodput; ValueError for an unknown objective or horizon, or levels outside 0..K."""
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective is {self.objective!r}; there is {' and '.join(map(repr, OBJECTIVES))}")
        if self.horizon not in HORIZONS:
            raise ValueError(f"horizon is {self.horizon!r}; there are {' and '.join(map(repr, HORIZONS))}")
        for level in self.depth_levels or ():
            if not 0 <= level <= max_depth:
                raise ValueError(f"depth_levels has {level}; this deployment drafts 0 to {max_depth} tokens")
        self.depths_ = np.arange(max_depth + 1)
        self.tokens_ = self.seconds_ = 0.0  # discounted sums over past steps
        self.measured_ = False

    @property
    def goodput_(self) -> float:
        """Running goodput in tokens per second, measured or else expected; NaN before the first step."""
        return self.tokens_ / self.seconds_ if self.seconds_ > 0 else float("nan")

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        choice = self._allocate(view, acceptance, cost)
        if not self.measured_ and self.horizon == "run":
            self._add(choice.expected_tokens, choice.expected_seconds)
        return choice

    def _revise(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        return self._allocate(view, acceptance, cost)

    def _allocate(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        assert cost is not None  # decide() saw to it
        sequences = view.sequences
        weight = np.ones(sequences) if view.weight is None else view.weight
        slots = int(np.add.reduce(view.limit))
        verify = cost.verify_range(view.base_positions, slots + 1, view.total_context, sequences)
        prefill_seconds, first_tokens = 0.0, 0
        if view.prefill_tokens and self.horizon == "step":
            prefill_seconds, first_tokens = float(verify[0]) * cost.prefill_share(view), view.sampling_prefills
        choice = self._split(
            acceptance,
            weight,
            view.limit,
            view.base_tokens - first_tokens,
            verify - prefill_seconds,
            cost.draft(self.depths_, sequences, view.lag),
        )
        choice.expected_tokens += first_tokens
        choice.expected_seconds += prefill_seconds
        return choice

    def _split(
        self,
        acceptance: SurvivalEstimate,
        weight: FloatArray,
        limit: IntArray,
        base_tokens: float,
        verify_seconds: FloatArray,
        draft_seconds: FloatArray,
    ) -> Allocation:
        """Split the budget of a step; arguments as in :func:`adaptive_spec.allocate.allocate`."""
        return allocate(
            acceptance.mean(),
            weight,
            limit,
            base_tokens,
            verify_seconds,
            draft_seconds,
            price=self._price(),
            levels=self.depth_levels,
            uniform=self.uniform,
        )

    def _price(self) -> float | None:
        """What a second must bring, where that is not the step's own affair."""
        return self.goodput_ if self.horizon == "run" and self.seconds_ > 0 else None

    def observe_time(self, time: StepTime) -> RooflineBudget:
        """Keep the running goodput, where the engine tells both tokens and seconds."""
        if self.horizon == "run" and time.tokens > 0 and time.step_seconds > 0:
            if not self.measured_:
                self.measured_ = True
                self.tokens_ = self.seconds_ = 0.0  # what was only expected
            self._add(time.tokens, time.step_seconds)
        return self

    def _add(self, tokens: float, seconds: float) -> None:
        self.tokens_ = KEEP * self.tokens_ + tokens
        self.seconds_ = KEEP * self.seconds_ + seconds

    def state(self) -> dict[str, object]:
        """The running goodput's two sums."""
        return {"tokens": self.tokens_, "seconds": self.seconds_, "measured": self.measured_}

    def restore(self, state: dict[str, object]) -> None:
        """Take over what :meth:`state` returned; ValueError when it doesn't fit."""
        tokens, seconds, measured = (state.get(name) for name in ("tokens", "seconds", "measured"))
        numbers = isinstance(tokens, (int, float)) and isinstance(seconds, (int, float))
        if not (numbers and isinstance(measured, (bool, np.bool_))):
            raise ValueError(f"RooflineBudget needs tokens, seconds and measured, not {sorted(state)}")
        self.tokens_, self.seconds_, self.measured_ = float(tokens), float(seconds), bool(measured)  # type: ignore[arg-type]
