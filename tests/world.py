"""A simulated engine: sequences whose drafts are accepted by known chances, and a pass of known seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptive_spec.controller import Controller
from adaptive_spec.cost.base import StepCost
from adaptive_spec.step import Decision, Outcome, StepTime, StepView


class VirtualClock:
    """A clock that stands still until it is told how long something took."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """Runs a controller over endless sequences of `length` tokens.

    Parameters
    ----------
    sequences : int
        Kept in flight.
    cost : StepCost
        The true seconds of a pass.
    acceptance : float array, shape (K,)
        Conditional acceptance of each draft position.
    spread : float
        Standard deviation of a sequence's own level, in log-odds.
    first_acceptance : float, optional
        Acceptance of a sequence's very first step, where it differs.
    stagger : bool
        Whether sequences start at different places of their texts.
    pinned : int
        How many of the sequences are pinned to `pinned_depth`: the first.
    prefill : sequence of int
        Positions of prompts in the steps, over and over.
    prefill_noise : float
        Standard deviation of the log of the seconds that they add.
    """

    sequences: int
    cost: StepCost
    acceptance: np.ndarray
    spread: float = 0.0
    first_acceptance: float | None = None
    length: int = 200
    stagger: bool = True
    pinned: int = 0
    pinned_depth: int = 4
    prefill: Sequence[int] = (0,)
    prefill_noise: float = 0.0
    seed: int = 0
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self._next = 0
        self._steps = 0
        self.ids: list[int] = []
        self.age = np.zeros(self.sequences, dtype=np.int64)
        self.left = np.zeros(self.sequences, dtype=np.int64)
        self.level = np.zeros(self.sequences)
        self.tokens = self.seconds = 0.0

    def _begin(self, controller: Controller, i: int, *, mid: bool) -> None:
        if i < len(self.ids):
            controller.remove(self.ids[i])
            self.ids[i] = self._next
        else:
            self.ids.append(self._next)
        controller.add(self._next, pinned_depth=self.pinned_depth if i < self.pinned else None)
        self._next += 1
        self.age[i] = 0
        self.left[i] = self.rng.integers(1, self.length + 1) if mid else self.length
        self.level[i] = self.rng.normal(0.0, self.spread)

    def run(self, controller: Controller, steps: int) -> list[Decision]:
        """Run on for some steps; `tokens` and `seconds` add up over all runs."""
        decisions = []
        for i in range(len(self.ids), self.sequences):
            self._begin(controller, i, mid=self.stagger)
        features = len(controller.acceptance.evidence)
        depth_cap = controller.max_depth
        for _ in range(steps):
            limit = np.minimum(depth_cap, np.maximum(self.left - 1, 0))
            prompts = self.prefill[self._steps % len(self.prefill)]
            self._steps += 1
            view = StepView(
                controller.rows(self.ids), limit, self.age + 50, np.zeros((self.sequences, features)),
                prefill_tokens=prompts,
            )  # fmt: skip
            decision = controller.plan(view)
            accepted = self._accept(decision.depth)
            controller.observe(Outcome(decision.step, list(self.ids), decision.depth, decision.depth, accepted))
            positions = self.sequences + int(decision.depth.sum())
            verify, whole = map(
                float, self.cost.verify(np.array([positions, positions + prompts]), 0.0, self.sequences)
            )
            if prompts:
                verify += (whole - verify) * float(np.exp(self.rng.normal(0.0, self.prefill_noise)))
            draft = float(self.cost.draft(np.array([decision.draft_depth]), self.sequences)[0])
            self.clock.now += verify + draft
            emitted = accepted + 1
            self.tokens += emitted.sum()
            self.seconds += verify + draft
            controller.observe_time(
                StepTime(
                    decision.step, positions + prompts, self.sequences, int(view.context.sum()), decision.draft_depth,
                    tokens=float(emitted.sum()),
                    verify_seconds=verify, draft_seconds=draft, step_seconds=verify + draft,
                )
            )  # fmt: skip
            self.age += emitted
            self.left -= emitted
            for i in np.flatnonzero(self.left <= 0):
                self._begin(controller, int(i), mid=False)
            decisions.append(decision)
        return decisions

    def _accept(self, depth: np.ndarray) -> np.ndarray:
        chance = np.broadcast_to(self.acceptance[: depth.max(initial=0)], (len(depth), depth.max(initial=0)))
        odds = np.log(chance / (1 - chance)) + self.level[:, None]
        if self.first_acceptance is not None:
            first = np.log(self.first_acceptance / (1 - self.first_acceptance))
            odds = np.where((self.age == 0)[:, None], first, odds)
        kept = self.rng.random(odds.shape) < 1 / (1 + np.exp(-odds))
        return np.minimum(np.cumprod(kept, axis=1).sum(axis=1), depth).astype(np.int64)

    @property
    def goodput(self) -> float:
        """Tokens per second so far."""
        return self.tokens / self.seconds
