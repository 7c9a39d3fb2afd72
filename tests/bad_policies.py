"""A policy for every way in which a policy can be bad."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adaptive_spec.policy import Allocation, DepthPolicy
from adaptive_spec.step import Outcome, StepView


def _raise(error: BaseException) -> Allocation:
    raise error


def _scribble(view: StepView) -> Allocation:
    view.limit[:] = 100
    return Allocation(view.limit)


BAD: dict[str, Callable[[StepView], object]] = {
    "raises": lambda view: _raise(RuntimeError("no")),
    "raises-key-error": lambda view: _raise(KeyError("no")),
    "recursion": lambda view: BAD["recursion"](view),
    "none": lambda view: None,
    "bare-array": lambda view: view.limit,
    "list": lambda view: Allocation([1] * view.sequences),  # type: ignore[arg-type]
    "scalar": lambda view: Allocation(np.int64(1)),  # type: ignore[arg-type]
    "nan": lambda view: Allocation(np.full(view.sequences, np.nan)),  # type: ignore[arg-type]
    "float": lambda view: Allocation(np.ones(view.sequences)),  # type: ignore[arg-type]
    "bool": lambda view: Allocation(np.ones(view.sequences, dtype=bool)),  # type: ignore[arg-type]
    "object": lambda view: Allocation(np.array([None] * view.sequences)),
    "too-few": lambda view: Allocation(np.zeros(view.sequences - 1, dtype=np.int64)),
    "matrix": lambda view: Allocation(np.zeros((view.sequences, 2), dtype=np.int64)),
    "negative": lambda view: Allocation(np.full(view.sequences, -1)),
    "over-limit": lambda view: Allocation(view.limit + 1),
    "shallow-draft": lambda view: Allocation(np.ones(view.sequences, dtype=np.int64), draft_depth=0),
    "nan-draft": lambda view: Allocation(np.ones(view.sequences, dtype=np.int64), draft_depth=float("nan")),  # type: ignore[arg-type]
    "deep-draft": lambda view: Allocation(np.ones(view.sequences, dtype=np.int64), draft_depth=10**9),
    "expects-none": lambda view: Allocation(np.ones(view.sequences, dtype=np.int64), expected_tokens=None),  # type: ignore[arg-type]
    "expects-text": lambda view: Allocation(np.ones(view.sequences, dtype=np.int64), expected_seconds="1"),  # type: ignore[arg-type]
    "scribbles": _scribble,
    "slow": lambda view: Allocation(np.zeros(view.sequences, dtype=np.int64)),
    "observe": lambda view: Allocation(np.minimum(view.limit, 1)),
}


class BadPolicy(DepthPolicy):
    """Behaves, but for every `every`-th decision, in which it is bad in its own way."""

    needs_cost = False
    explores = False

    def __init__(self, kind: str, every: int = 2) -> None:
        self.kind = kind
        self.every = every
        self.asked = 0
        self.clock: object = None

    def _decide(self, view: StepView, acceptance: object, cost: object) -> Allocation:
        self.asked += 1
        if self.asked % self.every:
            return Allocation(np.minimum(view.limit, 1))
        if self.kind == "slow" and hasattr(self.clock, "now"):
            self.clock.now += 1.0
        if self.kind == "interrupts":
            raise KeyboardInterrupt
        return BAD[self.kind](view)  # type: ignore[return-value]

    def observe(self, outcome: Outcome) -> DepthPolicy:
        if self.kind == "observe" and self.asked % self.every == 0:
            raise RuntimeError("can't learn")
        return self
