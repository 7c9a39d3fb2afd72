"""Every baseline keeps within its limits, never faults, and repeats itself with the same seed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from baseline_world import Replay, machine, random_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cost.profile import Profile
from adaptive_spec.experiments.baselines import Offline, baselines
from adaptive_spec.replay.arrivals import ClosedConcurrency
from adaptive_spec.replay.controllers import BareController
from adaptive_spec.replay.machine import Machine
from adaptive_spec.replay.simulator import simulate
from adaptive_spec.replay.synthetic import DSPARK_GLM_5_2, SyntheticAcceptance

MAX_DEPTH = 8
NAMES = sorted(baselines(MAX_DEPTH))


@cache
def offline() -> Offline:
    training, served = random_trace(3, texts=16).split(seed=1)
    return Offline(training, served, MAX_DEPTH)


def replay(name: str, sequences: int, seed: int, each: float = 0.0) -> Replay:
    return Replay(offline(), baselines(MAX_DEPTH)[name], Machine("test", machine(each)), sequences, seed)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=6)
@given(
    sequences=st.integers(1, 64),
    seed=st.integers(0, 2**31),
    each=st.sampled_from([0.0, 4e-4]),
)
def test_any_batch_is_served_within_its_limits(name: str, sequences: int, seed: int, each: float) -> None:
    world = replay(name, sequences, seed, each).run(40)
    assert not world.controller.fallback.faults
    assert {decision.decided_by for decision in world.decisions} <= {"policy", "limits"}
    again = replay(name, sequences, seed, each).run(40)
    assert [d.depth.tolist() for d in again.decisions] == [d.depth.tolist() for d in world.decisions]


@pytest.mark.parametrize("name", NAMES)
def test_baselines_run_without_guard_watchdog_and_exploration(name: str) -> None:
    assert not replay(name, 1, 0).policy.explores


def test_another_seed_changes_only_what_is_drawn() -> None:
    for name in NAMES:
        depths = []
        for policy_seed in (0, 1):
            world = replay(name, 4, seed=5)
            world.policy.reset(MAX_DEPTH, policy_seed)
            depths.append([d.depth.tolist() for d in world.run(60).decisions])
        assert (depths[0] != depths[1]) == (name == "banditspec-exp3")


def test_yardsticks_are_ordered() -> None:
    """Knowing more brings more: nothing and depth 8 for all < causal signals < the future."""
    goodput = {}
    for name in ("none", "fixed-8", "signal-ceiling", "clairvoyant"):
        worlds = [replay(name, 24, seed).run(300) for seed in range(3)]
        goodput[name] = sum(w.tokens for w in worlds) / sum(w.seconds for w in worlds)
    assert max(goodput["none"], goodput["fixed-8"]) * 1.02 < goodput["signal-ceiling"]
    assert goodput["signal-ceiling"] * 1.02 < goodput["clairvoyant"]


def test_the_confidence_stand_in_is_fitted_once_for_all_peers() -> None:
    peers = [replay(name, 1, 0).policy for name in ("adaptive-verification", "dspark-early-stop", "hf-confidence")]
    assert len({id(peer.get_params()["confidence"]) for peer in peers}) == 1
    assert np.isfinite(offline().confidence.acceptance).all()


def test_baselines_run_in_the_simulator() -> None:
    """The real one, prompts included. On a curve that only rises the clairvoyant wastes nothing."""
    rising = Machine("test", Profile([1, 64, 600], [5e-3, 8e-3, 60e-3], "linear"))
    goodput = {}
    for name, factory in baselines(MAX_DEPTH).items():
        controller = BareController(lambda setting, factory=factory: factory(offline(), setting), MAX_DEPTH)
        run = simulate(offline().served, controller, ClosedConcurrency(6), rising, steps=200, seed=1)
        assert not run.faults, name
        goodput[name] = run.metrics.goodput
        if name == "clairvoyant":
            assert run.metrics.wasted == 0
    assert max(goodput, key=lambda name: goodput[name]) == "clairvoyant"


def test_baselines_run_on_synthetic_acceptance_without_evidence() -> None:
    training, served = SyntheticAcceptance(DSPARK_GLM_5_2[:MAX_DEPTH], "test").trace(20, 40).split(seed=0)
    given = Offline(training, served, MAX_DEPTH)
    for name, factory in baselines(MAX_DEPTH).items():
        controller = BareController(lambda setting, factory=factory: factory(given, setting), MAX_DEPTH)
        run = simulate(served, controller, ClosedConcurrency(4), Machine("test", machine(2e-4)), steps=60, seed=1)
        assert not run.faults, name
