"""Every kind of bad policy: caught, counted, logged once; the step goes on and the state stays whole."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from bad_policies import BAD, BadPolicy
from world import VirtualClock, World

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Profile
from adaptive_spec.explore import Ledger
from adaptive_spec.fallback import Fallback
from adaptive_spec.guard import Guard
from adaptive_spec.policy import Allocation, DepthPolicy
from adaptive_spec.step import StepView
from adaptive_spec.step_counts import StepCounts

K = 4
CURVE = Profile([1, 8, 64], [1.0, 1.1, 4.0], interpolation="linear")


def controller(policy: BadPolicy, clock: VirtualClock, **settings) -> Controller:
    fallback = Fallback(clock=clock, **{"depth": 2, "bench_after_faults": 3, "retry_after_steps": 10, **settings})
    policy.clock = clock
    return Controller(policy, AcceptanceModel(K), cost=CURVE, fallback=fallback, clock=clock)


class Exploring(BadPolicy):
    explores = True


@pytest.mark.parametrize("kind", sorted(BAD))
def test_a_bad_policy_is_explored_around(kind: str) -> None:
    """Probes, guard and counts work with what the fallback has let through."""
    world = World(5, CURVE, np.full(K, 0.7), length=20)
    policy = Exploring(kind, every=2)
    policy.clock = world.clock
    ledger = Ledger(share=0.2)
    controller = Controller(
        policy, AcceptanceModel(K), cost=CURVE, ledger=ledger, guard=Guard(ledger, clock=world.clock),
        fallback=Fallback(depth=2, bench_after_faults=1000, clock=world.clock), clock=world.clock,
    )  # fmt: skip
    counts = StepCounts(K)
    for decision in world.run(controller, 400):
        assert (decision.depth >= 0).all()
        assert decision.depth.max() <= decision.draft_depth <= K
        counts.count_decision(decision, 0.0)
    assert controller.fallback.faults.total() > 50


def test_depths_of_any_kind_of_integer_are_taken_over_as_a_copy() -> None:
    class Reusing(DepthPolicy):
        needs_cost = False

        def _decide(self, view, acceptance, cost):
            self.kept[:] = np.minimum(view.limit, self.depth)
            return Allocation(self.kept)

    for dtype in (np.uint64, np.int8, np.int64):
        policy = Reusing()
        policy.kept, policy.depth = np.zeros(3, dtype=dtype), 3
        controller = Controller(policy, AcceptanceModel(K), cost=CURVE)
        rows = np.array([controller.add(i) for i in range(3)])
        view = StepView(rows, np.full(3, K), rows, np.zeros((3, 0)))
        first = controller.plan(view)
        policy.depth = 1
        second = controller.plan(view)
        assert first.depth.tolist() == [3, 3, 3]
        assert second.depth.tolist() == [1, 1, 1]
        assert first.depth.dtype == np.int64
        assert not controller.fallback.faults


@pytest.mark.parametrize("kind", sorted(BAD))
def test_a_bad_policy_never_harms_a_step(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World(5, CURVE, np.full(K, 0.7))
    bad = controller(BadPolicy(kind, every=2), world.clock)
    with caplog.at_level(logging.WARNING):
        decisions = world.run(bad, 200)
    assert all((d.depth >= 0).all() and (d.depth <= K).all() and d.draft_depth >= d.depth.max() for d in decisions)
    assert bad.fallback.faults.total() > 50
    fallen = [d for d in decisions if d.decided_by == "fallback"]
    if kind != "observe":
        assert fallen
        assert all((d.depth <= 2).all() for d in fallen)
        assert all("BadPolicy" in d.reason for d in fallen)
    first = [r for r in caplog.records if "logged once" in r.message]
    assert len(first) == len(bad.fallback.faults)
    assert not bad.counts


def test_a_policy_that_always_fails_is_benched_and_tried_again() -> None:
    world = World(2, CURVE, np.full(K, 0.7))
    policy = BadPolicy("raises", every=1)
    bad = controller(policy, world.clock)
    world.run(bad, 3)
    assert bad.fallback.benched
    asked = policy.asked
    world.run(bad, 10)
    assert policy.asked == asked  # on the bench
    world.run(bad, 1)
    assert policy.asked == asked + 1
    policy.every = 10**9  # mended
    world.run(bad, 15)
    assert not bad.fallback.benched
    assert world.run(bad, 1)[0].decided_by == "policy"


def test_keyboard_interrupt_is_no_fault() -> None:
    bad = controller(BadPolicy("interrupts", every=1), VirtualClock())
    with pytest.raises(KeyboardInterrupt):
        World(1, CURVE, np.full(K, 0.7)).run(bad, 1)


@pytest.mark.parametrize(
    "settings",
    [{"depth": -1}, {"time_budget_seconds": 0.0}, {"bench_after_faults": 0}, {"retry_after_steps": 0}],
)
def test_settings_out_of_range_are_errors(settings: dict) -> None:
    with pytest.raises(ValueError, match="must be"):
        Fallback(clock=VirtualClock(), **settings)
