"""The guard keeps speculation from being slower than off, and the watchdog sees a broken drafter."""

from __future__ import annotations

import numpy as np
import pytest
from world import World

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Online, Profile
from adaptive_spec.explore import Ledger
from adaptive_spec.guard import Guard, SequentialTest, Watchdog
from adaptive_spec.policy import Allocation, DepthPolicy, make_policy
from adaptive_spec.step import StepTime, StepView

K = 8
CPU = Profile([1, 8, 16, 32, 64, 128, 1152], [36, 41, 50, 67, 114, 199, 1633], interpolation="linear")
B300 = Profile(
    [1, 8, 16, 32, 64, 128, 256, 512, 1024], [5.1, 5.3, 5.6, 6.3, 7.9, 9.4, 11.3, 15.0, 21.4], interpolation="linear"
)
STEEP = Profile([1, 2, 1152], [1.0, 2.0, 1152.0], interpolation="linear")  # every position costs as much as the first


class Greedy(DepthPolicy):
    """Always as deep as allowed: what the guard is there for."""

    needs_cost = False

    def _decide(self, view, acceptance, cost):
        return Allocation(view.limit.copy())


def guarded(policy: DepthPolicy, world: World, model: Profile | None = None) -> Controller:
    ledger = Ledger()
    return Controller(
        policy,
        AcceptanceModel(K),
        cost=Online(model or world.cost),
        ledger=ledger,
        guard=Guard(ledger, clock=world.clock),
        watchdog=Watchdog(),
        clock=world.clock,
    )


def switched_off(world: World) -> Controller:
    """A controller that has found that speculation loses in this world."""
    controller = guarded(Greedy(), world)
    controller.watchdog = None
    world.run(controller, 2000)
    assert controller.guard is not None
    assert not controller.guard.on
    return controller


def off_goodput(world: World) -> float:
    seconds = float(world.cost.verify(np.array([world.sequences]), 0.0, world.sequences)[0])
    return world.sequences / seconds


@pytest.mark.parametrize("sequences", [1, 8, 64])
@pytest.mark.parametrize("acceptance", [0.05, 0.3])
def test_a_policy_that_loses_is_switched_off(sequences: int, acceptance: float) -> None:
    world = World(sequences, STEEP, np.full(K, acceptance))
    controller = guarded(Greedy(), world)
    world.run(controller, 100)
    world.tokens = world.seconds = 0.0
    world.run(controller, 3000)
    assert controller.guard is not None
    assert not controller.guard.on or controller.guard.switches
    assert world.goodput >= 0.97 * off_goodput(world)


def test_a_policy_that_wins_stays_on_and_pays_little_for_the_proof() -> None:
    world = World(4, CPU, np.full(K, 0.8))
    controller = guarded(Greedy(), world)
    decisions = world.run(controller, 3000)
    assert controller.guard is not None
    assert controller.guard.on
    assert controller.guard.switches == 0
    measured = sum(d.decided_by == "off-step" for d in decisions)
    assert 0 < measured < 60


def test_a_cost_model_that_is_wrong_about_off_is_found_out() -> None:
    """The model says that a pass at depth 0 costs three times what it does, so that speculation seems to win."""
    wrong = Profile([1, 2, 1152], [3.0, 3.01, 1152.0], interpolation="linear")
    world = World(1, STEEP, np.full(K, 0.3))
    ledger = Ledger()
    controller = Controller(
        Greedy(),
        AcceptanceModel(K),
        cost=wrong,
        ledger=ledger,
        guard=Guard(ledger, clock=world.clock),
        clock=world.clock,
    )
    world.run(controller, 1500)
    world.tokens = world.seconds = 0.0
    world.run(controller, 1500)
    assert world.goodput >= 0.97 * off_goodput(world)


def test_speculation_comes_back_when_it_pays_again() -> None:
    world = World(8, CPU, np.full(K, 0.02))
    controller = switched_off(world)
    assert controller.guard is not None
    world.acceptance = np.full(K, 0.9)
    world.run(controller, 4000)
    assert controller.guard.on


@pytest.mark.parametrize(("acceptance", "drafting"), [(0.9, (0.8, 1.0)), (0.02, (0.0, 0.05))])
def test_a_restart_asks_anew_whether_speculation_pays(acceptance: float, drafting: tuple[float, float]) -> None:
    """It was switched off in an hour in which it lost; what the next one is like, a few steps show."""
    first = switched_off(World(8, CPU, np.full(K, 0.02)))
    world = World(8, CPU, np.full(K, acceptance))
    controller = guarded(Greedy(), world)
    controller.watchdog = None
    controller.restore(first.state())
    decisions = world.run(controller, 1000)
    least, most = drafting
    assert least <= np.mean([d.depth.any() for d in decisions[:100]]) <= most + 0.1
    assert least <= np.mean([d.depth.any() for d in decisions[100:]]) <= most
    assert world.goodput >= 0.97 * off_goodput(world)


def test_the_policy_is_told_of_a_trial() -> None:
    """And of trials alone, whatever a view that comes in says."""
    seen: list[tuple[bool, bool]] = []

    class Watching(Greedy):
        def _decide(self, view, acceptance, cost):
            assert controller.guard is not None
            seen.append((view.trial, controller.guard.on))
            return super()._decide(view, acceptance, cost)

    world = World(8, STEEP, np.full(K, 0.1))
    controller = guarded(Watching(), world)
    controller.watchdog = None
    world.run(controller, 1000)
    assert {trial for trial, _ in seen} == {True, False}
    assert all(trial != on for trial, on in seen)


@pytest.mark.parametrize("pinned", [1, 3])
def test_pinned_sequences_do_not_stop_the_others(pinned: int) -> None:
    """Their drafts are there on off-steps too: those are off-steps all the same."""
    world = World(4, CPU, np.full(K, 0.8), pinned=pinned)
    controller = guarded(Greedy(), world)
    decisions = world.run(controller, 2000)
    assert controller.guard is not None
    assert controller.guard.on
    assert controller.guard.switches == 0
    off = [d for d in decisions if d.decided_by == "off-step"]
    assert 0 < len(off) < 60
    assert all((d.depth[pinned:] == 0).all() for d in off)
    assert np.mean([d.depth[pinned:].mean() for d in decisions]) > 4


def test_what_pinned_drafts_bring_is_no_gain_of_speculation() -> None:
    """Half of the sequences are pinned and accepted at .9, on a machine where every position has its price."""
    world = World(8, STEEP, np.full(K, 0.9), pinned=4)
    controller = guarded(Greedy(), world)
    world.run(controller, 300)
    world.acceptance = np.full(K, 0.2)  # for all; the pins stay
    decisions = world.run(controller, 3000)
    assert np.mean([d.depth[4:].any() for d in decisions[500:]]) < 0.1
    assert controller.ledger is not None
    assert controller.ledger.balance > -50


def test_trials_in_flight_are_each_paid_once() -> None:
    """Two steps are decided before the first one's time is known: the ledger pays what both really cost."""
    ledger = Ledger()
    guard = Guard(ledger, clock=lambda: 0.0)
    guard.on, guard._loss = False, 2.0
    ledger.balance = 100.0
    rows = np.arange(4)
    empty = np.zeros(4, dtype=np.int64)
    posed = [StepView(rows, empty + 8, empty, np.zeros((4, 0)), np.ones(4), trial=True) for _ in range(2)]
    for view in posed:
        verdict = guard.verdict(view, CPU, 100.0)
        assert verdict.speculate
        assert verdict.trial
    off = float(CPU.verify_range(4, 1, 0.0, 4)[0])
    for number, view in enumerate(posed):
        guard.observe(StepTime(number, 12, 4, 0, 2, tokens=8.0, step_seconds=3 * off), view, CPU, True)
    assert ledger.balance == pytest.approx(100.0 - 2 * (3 * 4.0 - 8.0))


def test_a_swinging_load_changes_the_state_at_most_six_times_a_minute() -> None:
    good = Profile([1, 1152], [0.05, 0.06], interpolation="linear")
    bad = Profile([1, 36, 1152], [0.05, 0.1, 2.0], interpolation="linear")
    world = World(4, good, np.full(K, 0.9))
    controller = guarded(Greedy(), world)
    controller.watchdog = None
    changes: list[float] = []
    on = True
    for block in range(60):
        world.acceptance, world.cost = (np.full(K, 0.02), bad) if block % 2 else (np.full(K, 0.9), good)
        for _ in range(200):
            world.run(controller, 1)
            assert controller.guard is not None
            if controller.guard.on != on:
                on = controller.guard.on
                changes.append(world.clock.now)
    assert len(changes) >= 6
    for at in changes:
        assert sum(at - 60.0 < other <= at for other in changes) <= 6


@pytest.mark.parametrize("seed", range(4))
def test_the_times_of_prompts_are_not_laid_to_the_drafts(seed: int) -> None:
    """Two prompts in a row now and then, whose seconds vary, most of them in steps that hold little else."""
    world = World(8, CPU, np.full(K, 0.7), prefill=[0] * 38 + [400] * 2, prefill_noise=0.3, seed=seed)
    controller = guarded(make_policy("roofline-budget"), world)
    world.run(controller, 3000)
    assert controller.guard is not None
    assert controller.guard.on
    assert controller.guard.switches == 0


@pytest.mark.parametrize("prompts", [8, 64, 256])
def test_a_loss_is_seen_when_every_step_carries_a_prompt(prompts: int) -> None:
    world = World(8, STEEP, np.full(K, 0.1), prefill=[prompts], prefill_noise=0.03)
    controller = guarded(Greedy(), world)
    controller.watchdog = None
    decisions = world.run(controller, 3000)
    assert controller.guard is not None
    assert controller.guard.switches
    assert sum(d.draft_depth > 0 for d in decisions[300:]) < 300


def test_the_sequential_test_keeps_its_error_rate() -> None:
    rng = np.random.default_rng(0)
    fired = 0
    for _ in range(200):
        test = SequentialTest(0.01)
        fired += any(test.add(float(y), 0.01) for y in rng.normal(-0.01, 0.1, 100))
    assert fired <= 10
    test = SequentialTest(0.01)
    assert any(test.add(float(y), 0.01) for y in rng.normal(0.3, 0.1, 6))


@pytest.mark.parametrize("sequences", [1, 8, 64])
def test_the_watchdog_trips_on_a_collapse_and_recovers(sequences: int) -> None:
    world = World(sequences, B300, np.full(K, 0.6))
    controller = guarded(make_policy("roofline-budget"), world)
    world.run(controller, 300)
    watchdog = controller.watchdog
    assert watchdog is not None
    assert watchdog.trips == 0
    world.acceptance = np.full(K, 1e-9)
    world.run(controller, 50 if sequences >= 8 else 100)
    assert watchdog.trips == 1
    world.acceptance = np.full(K, 0.6)
    world.run(controller, 100 if sequences >= 8 else 400)
    assert not watchdog.tripped
    late = world.run(controller, 30)
    assert np.mean([d.depth.mean() for d in late]) > 0.5


@pytest.mark.parametrize("seed", range(8))
def test_what_a_course_of_luck_and_loss_may_cost_is_bounded(seed: int) -> None:
    """Drafts do well for a while and badly for longer, so that it takes a test long to be sure of the loss."""

    class Four(Greedy):
        def _decide(self, view, acceptance, cost):
            return Allocation(np.minimum(view.limit, 4))

    world = World(8, Profile([1, 12, 1024], [36, 36, 1554], interpolation="linear"), np.full(K, 0.9), seed=seed)
    controller = guarded(Four(), world)
    controller.watchdog = None
    rng = np.random.default_rng(seed)
    course = [(0.0, 0.0)]
    for _ in range(1500):
        if rng.random() < 0.1:
            world.acceptance = np.full(K, 0.9 if rng.random() < 0.35 else 0.3)
        world.run(controller, 1)
        course.append((world.seconds * off_goodput(world), world.tokens))
    as_off, tokens = (np.array(course)[200:] - np.array(course)[:-200]).T
    assert (as_off / tokens).max() <= 1.11


def test_waiting_for_a_broken_drafter_costs_next_to_nothing() -> None:
    world = World(8, CPU, np.full(K, 0.6))
    controller = guarded(make_policy("roofline-budget"), world)
    world.run(controller, 300)
    world.acceptance = np.full(K, 1e-9)
    world.run(controller, 100)
    assert controller.watchdog is not None
    assert controller.watchdog.tripped
    world.tokens = world.seconds = 0.0
    waiting = world.run(controller, 4000)
    assert world.goodput >= 0.993 * off_goodput(world)
    assert {int(d.depth.max()) for d in waiting} == {0, 1}
    assert np.mean([d.depth.any() for d in waiting]) > 0.1  # a recovery would soon be seen


@pytest.mark.parametrize("acceptance", [0.15, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("sequences", [1, 8, 64])
def test_the_watchdog_lets_ordinary_drafters_be(acceptance: float, sequences: int) -> None:
    world = World(sequences, CPU, np.full(K, acceptance), spread=1.0, seed=2)
    controller = guarded(make_policy("roofline-budget"), world)
    world.run(controller, 3000 if sequences == 1 else 800)
    assert controller.watchdog is not None
    assert controller.watchdog.trips == 0


@pytest.mark.parametrize(
    "settings", [{"margin": 0.0}, {"error_rate": 1.0}, {"block_steps": 0}, {"max_switches_per_minute": 1}]
)
def test_guard_settings_out_of_range_are_errors(settings: dict) -> None:
    with pytest.raises(ValueError, match="must"):
        Guard(Ledger(), clock=lambda: 0.0, **settings)


@pytest.mark.parametrize("settings", [{"threshold": 0.0}, {"correlation": 2.0}, {"memory_drafts": 0}])
def test_watchdog_settings_out_of_range_are_errors(settings: dict) -> None:
    with pytest.raises(ValueError, match="must"):
        Watchdog(**settings)
