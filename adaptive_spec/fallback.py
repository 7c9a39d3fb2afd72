"""Fallback: a faulty policy never harms a step."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import numpy as np

from adaptive_spec import loops
from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import DepthPolicy, SurvivalEstimate
from adaptive_spec.step import Decision, IntArray, Outcome, StepTime, StepView

logger = logging.getLogger(__name__)


class PolicyFault(Exception):
    """A policy broke its contract; the first argument says how, the second what kind of fault it was."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Fallback:
    """Stands between the controller and a policy, and puts a safe decision in the place of a bad one.

    A policy that raises, returns anything but a proper decision (None, NaN, a wrong shape or dtype, a
    negative depth or one over the limit), or takes longer than its time budget, is counted under the kind
    of its fault, logged once per kind with the reason, and the step goes on at the fallback depth. After
    `bench_after_faults` faults in a row the policy is benched for `retry_after_steps` steps.

    Parameters
    ----------
    depth : int
        Depth of a step whose policy failed, clipped to each sequence's limit.
    time_budget_seconds : float
        Longest that a decision may take by `clock`; a later one is a fault.
    bench_after_faults, retry_after_steps : int
        See above.
    clock : callable
        Seconds; the controller's own.
    """

    def __init__(
        self,
        depth: int = 0,
        time_budget_seconds: float = 0.02,
        bench_after_faults: int = 5,
        retry_after_steps: int = 1000,
        *,
        clock: Callable[[], float],
    ) -> None:
        if depth < 0:
            raise ValueError(f"fallback depth is {depth}; it must be 0 or more")
        if not time_budget_seconds > 0:
            raise ValueError(f"fallback time budget is {time_budget_seconds} s; it must be over 0")
        if bench_after_faults < 1 or retry_after_steps < 1:
            raise ValueError("bench_after_faults and retry_after_steps must be 1 or more")
        self.depth = depth
        self.time_budget_seconds = time_budget_seconds
        self.bench_after_faults = bench_after_faults
        self.retry_after_steps = retry_after_steps
        self.clock = clock
        self.faults: Counter[str] = Counter()
        self._in_a_row = 0
        self._benched_steps = 0

    @property
    def benched(self) -> bool:
        """Whether the policy is not being asked at present."""
        return self._benched_steps > 0

    def decide(
        self, policy: DepthPolicy, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None
    ) -> Decision:
        """Ask the policy; answer for it if it fails. `view`'s arrays should be read-only."""
        if self._benched_steps:
            self._benched_steps -= 1
            return self._decision(view, f"{type(policy).__name__} is benched after {self._in_a_row} faults in a row")
        return self._ask(policy, view, acceptance, lambda: policy.decide(view, acceptance, cost))

    def revise(
        self, policy: DepthPolicy, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None
    ) -> Decision:
        """Ask the policy to lower the depths in `view.limit`; they stand if it fails."""
        if self._benched_steps:
            return self._decision(view, f"{type(policy).__name__} is benched")
        return self._ask(policy, view, acceptance, lambda: policy.revise(view, acceptance, cost))

    def _ask(
        self, policy: DepthPolicy, view: StepView, acceptance: SurvivalEstimate, question: Callable[[], Decision]
    ) -> Decision:
        start = self.clock()
        try:
            decision = question()
            self._check(decision, view, acceptance.mean().shape[1])
            seconds = self.clock() - start
            if seconds > self.time_budget_seconds:
                raise PolicyFault(
                    f"took {seconds * 1e3:.1f} ms; its budget is {self.time_budget_seconds * 1e3:.1f} ms",
                    "slow",
                )
        except PolicyFault as fault:
            return self._decision(view, self._count(policy, fault.kind, str(fault)))
        except Exception as error:  # whatever a stranger's policy raises, the step goes on
            return self._decision(view, self._count(policy, "raised", f"raised {error!r}"))
        self._in_a_row = 0
        return decision

    def add(self, policy: DepthPolicy, row: int) -> None:
        """Tell the policy of a fresh sequence; one that fails at it is counted, nothing more."""
        try:
            policy.add(row)
        except Exception as error:
            self._count(policy, "add", f"raised {error!r} when a sequence was added")

    def inform(self, policy: DepthPolicy, record: Outcome | StepTime) -> None:
        """Hand the policy an outcome or a time; a policy that fails to learn is counted, nothing more."""
        try:
            if isinstance(record, Outcome):
                policy.observe(record)
            else:
                policy.observe_time(record)
        except Exception as error:
            self._count(policy, "observe", f"raised {error!r} in observing")

    def _check(self, decision: Decision, view: StepView, max_depth: int) -> None:
        if not isinstance(decision, Decision):
            raise PolicyFault(f"decided {decision!r}, not a Decision", "not a decision")
        depth = decision.depth
        if not isinstance(depth, np.ndarray):
            raise PolicyFault(f"chose depths of type {type(depth).__name__}, not a numpy array", "not an array")
        if depth.shape != view.row.shape:
            raise PolicyFault(f"chose depths of shape {depth.shape} for {view.row.shape}", "shape")
        if depth.dtype.kind not in "iu":
            raise PolicyFault(f"chose depths of dtype {depth.dtype}, not integers", "dtype")
        if not len(depth):
            return
        drafts = decision.draft_depth
        if not isinstance(drafts, (int, np.integer)):
            raise PolicyFault(f"asks for {drafts!r} drafts, not a whole number", "draft depth")
        chosen = depth.astype(np.int64)  # a copy: a policy may use its array again
        if drafts > max_depth or not loops.within(chosen, loops.whole(view.limit), int(drafts)):
            raise _beyond(depth, view.limit, int(drafts), max_depth)
        for expected in (decision.expected_tokens, decision.expected_seconds):
            if not isinstance(expected, (float, int, np.floating, np.integer)):
                raise PolicyFault(f"expects {expected!r} tokens or seconds, not a number", "expectation")
        decision.depth = chosen

    def _count(self, policy: DepthPolicy, kind: str, message: str) -> str:
        name = type(policy).__name__
        if not self.faults[kind]:
            logger.warning("policy %s %s; the step goes on at depth %d (logged once)", name, message, self.depth)
        self.faults[kind] += 1
        self._in_a_row += 1
        if self._in_a_row >= self.bench_after_faults and not self._benched_steps:
            self._benched_steps = self.retry_after_steps
            logger.warning(
                "policy %s is benched for %d steps after %d faults in a row",
                name, self.retry_after_steps, self._in_a_row,
            )  # fmt: skip
        return f"{name} {message}"

    def _decision(self, view: StepView, reason: str) -> Decision:
        depth = np.minimum(view.limit, self.depth)
        return Decision(
            step=0,
            row=view.row,
            depth=depth,
            draft_depth=int(depth.max()) if len(depth) else 0,
            decided_by="fallback",
            reason=reason,
        )


def _beyond(depth: IntArray, limit: IntArray, drafts: int, max_depth: int) -> PolicyFault:
    """Which of the bounds is broken."""
    if depth.min() < 0:
        return PolicyFault(f"chose a negative depth ({int(depth.min())})", "negative depth")
    if (depth > limit).any():
        i = int(np.argmax(depth > limit))
        return PolicyFault(f"chose depth {depth[i]} over the limit {limit[i]} of sequence {i}", "over limit")
    return PolicyFault(
        f"asks for {drafts} drafts (of at most {max_depth}) and means to verify {depth.max()}", "draft depth"
    )
