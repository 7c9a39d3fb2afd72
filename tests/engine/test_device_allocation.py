"""Depths chosen on the device are the controller's own; what is learned there is what it learns."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import DraftCost, Profile
from adaptive_spec.deployment import make_controller, retune
from adaptive_spec.engine.device_controller import DeviceController, place_controller
from adaptive_spec.step import Outcome, StepTime, StepView

CPU = torch.device("cpu")  # the torch definitions serve there; the GPU's kernels are held to them elsewhere
DEPTH, EVIDENCE = 6, ("matched_length", "age")
DEVICES = [
    CPU,
    pytest.param(torch.device("cuda"), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def tuning(**policy) -> TuningConfig:
    """Nothing explores, and nothing looks at a clock."""
    return TuningConfig.model_validate(
        {
            "max_depth": DEPTH,
            "policy": {"name": "roofline-budget", **policy},
            "exploration": {"enabled": False},
            "guard": {"enabled": False},
            "watchdog": {"enabled": False},
            "fallback": {"time_budget_ms": 60000.0},
        }
    )


def controller(device: torch.device | None = None, window: int = 1, **policy) -> Controller:
    draft_cost = DraftCost((1,), idle=(0.0,), start=(4e-4,), each=(2e-4,)) if policy.pop("drafting", False) else None
    stairs = Profile([1, 8, 16, 24, 48, 200], [0.010, 0.0101, 0.0132, 0.013, 0.021, 0.08], draft_cost=draft_cost)
    made = make_controller(tuning(**policy), cost=stairs, evidence=EVIDENCE)
    return made if device is None else DeviceController(made, device, window)


class World:
    """Sequences that come and go, whose drafts are accepted by a chance of their own and their evidence's."""

    def __init__(self, seed: int, most: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.most = most
        self.live: dict[int, float] = {}
        self.number = 0

    def turn_over(self, controllers: list[Controller]) -> None:
        for id in [id for id in self.live if self.rng.random() < 0.05]:
            del self.live[id]
            for one in controllers:
                one.remove(id)
        while len(self.live) < self.most and (not self.live or self.rng.random() < 0.7):
            self.live[self.number] = self.rng.normal(0.0, 0.8)
            weight = float(self.rng.choice([1.0, 1.0, 3.0]))
            for one in controllers:
                one.add(self.number, weight=weight, pinned_depth=2 if self.number % 9 == 4 else None)
            self.number += 1

    def view(self, one: Controller, evidence, limit, prefill) -> StepView:
        ids = list(self.live)
        context = np.arange(len(ids), dtype=np.int64) * 10 + 5
        return StepView(
            one.rows(ids), limit, context, evidence, prefill_tokens=prefill, sampling_prefills=int(prefill > 0)
        )

    def step(self, controllers: list[Controller]) -> list[np.ndarray]:
        """One step of each controller, with the same luck; the depths that each chose."""
        self.turn_over(controllers)
        ids = list(self.live)
        evidence = np.column_stack((self.rng.integers(0, 20, len(ids)), self.rng.integers(0, 20, len(ids)))).astype(
            float
        )
        limit = self.rng.integers(0, DEPTH + 1, len(ids))
        prefill = int(self.rng.choice([0, 0, 5]))
        level = np.array(list(self.live.values())) + 0.1 * (evidence[:, 0] - 5)
        lucky = self.rng.random((len(ids), DEPTH)) < 1.0 / (1.0 + np.exp(-level))[:, None]
        length = np.where(lucky.all(axis=1), DEPTH, np.argmin(lucky, axis=1))
        chosen = []
        for one in controllers:
            decision = one.plan(self.view(one, evidence, limit, prefill))
            accepted = np.minimum(length, decision.depth)
            one.observe(Outcome(decision.step, ids, decision.depth, decision.depth, accepted, decision.row))
            one.observe_time(
                StepTime(
                    decision.step, len(ids) + prefill + int(decision.depth.sum()), len(ids), 100,
                    decision.draft_depth, step_seconds=0.01, verify_seconds=0.01, draft_seconds=0.0,
                )
            )  # fmt: skip
            chosen.append(decision)
        return chosen


POLICIES = {
    "throughput": {},
    "costly drafts": {"drafting": True},
    "in the long run": {"horizon": "run"},
}


@pytest.mark.parametrize("most", [1, 12])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("device", DEVICES)
def test_decisions_are_the_controllers(device, policy, most):
    """With exploration and guard off, step by step over coming and going sequences."""
    host, there = controller(**POLICIES[policy]), controller(device, **POLICIES[policy])
    world = World(7, most)
    drafted = 0
    for _ in range(120):
        mine, theirs = world.step([host, there])
        assert mine.depth.tolist() == theirs.depth.tolist()
        assert mine.draft_depth == theirs.draft_depth
        assert theirs.decided_by == mine.decided_by
        np.testing.assert_allclose(theirs.survival, mine.survival, rtol=2e-4)
        assert theirs.expected_tokens == pytest.approx(mine.expected_tokens, rel=1e-4)
        assert theirs.expected_seconds == pytest.approx(mine.expected_seconds, rel=1e-5)
        drafted += int(mine.depth.sum())
    assert drafted > 60
    assert not there.fallback.faults
    assert there.acceptance.sigma2 == pytest.approx(host.acceptance.sigma2, rel=1e-3)
    np.testing.assert_allclose(there.acceptance.population.beta, host.acceptance.population.beta, atol=1e-3)
    assert there.policy.goodput_ == pytest.approx(host.policy.goodput_, nan_ok=True)


def test_the_reason_is_the_same_sentence():
    host, there = controller(), controller(CPU)
    world = World(3, 8)
    for _ in range(10):
        mine, theirs = world.step([host, there])
        if mine.decided_by == "policy" and not mine.pinned:
            assert theirs.explain(0) == mine.explain(0)


def test_within_a_window_the_levels_stand_still():
    there = controller(CPU, window=4)
    betas = [there.acceptance.population.beta.copy()]
    settle(there, 12, betas)
    moved = [not np.array_equal(a, b) for a, b in pairwise(betas)]
    assert moved == 3 * [False, False, False, True]
    assert there.acceptance.population.step == 12


def settle(one: Controller, steps: int, betas: list[np.ndarray] | None = None) -> None:
    """Show a controller so many steps of the same four sequences."""
    rng = np.random.default_rng(0)
    rows = np.array([one.add(f"settled {i}") for i in range(4)])
    for _ in range(steps):
        verified = rng.integers(1, DEPTH + 1, 4)
        one.acceptance.observe(rows, rng.integers(0, 21, 4), verified, rng.integers(0, verified + 1))
        if betas is not None:
            betas.append(one.acceptance.population.beta.copy())


def follow(window: int, steps: int, seed: int = 5) -> tuple[Controller, Controller]:
    """A host's controller, and one on the device that sees the very same outcomes of the host's decisions."""
    host = controller()
    there = controller(CPU, window)
    world = World(seed, 16)
    for _ in range(steps):
        world.turn_over([host, there])
        ids = list(world.live)
        evidence = np.column_stack((world.rng.integers(0, 20, len(ids)), np.full(len(ids), 9))).astype(float)
        level = np.array(list(world.live.values())) + 0.1 * (evidence[:, 0] - 5)
        verified = world.rng.integers(0, DEPTH + 1, len(ids))
        lucky = world.rng.random((len(ids), DEPTH)) < 1.0 / (1.0 + np.exp(-level))[:, None]
        accepted = np.minimum(np.where(lucky.all(axis=1), DEPTH, np.argmin(lucky, axis=1)), verified)
        for one in (host, there):
            model, rows = one.acceptance, one.rows(ids)
            model.observe(rows, model.cells(evidence), verified, accepted)
    return host, there


@pytest.mark.parametrize("window", [1, 3, 4, 10])
def test_a_window_learns_what_single_steps_teach(window):
    host, there = follow(window, 300)
    there.acceptance.learn()
    mine, theirs = host.acceptance, there.acceptance
    assert theirs.population.step == mine.population.step == 300
    known = mine.population.curvature > 5.0
    assert known.sum() > 20
    rate = [1.0 / (1.0 + np.exp(-model.population.beta[known])) for model in (mine, theirs)]
    assert np.abs(rate[0] - rate[1]).max() < (1e-3 if window == 1 else 0.06)
    assert theirs.sigma2 == pytest.approx(mine.sigma2, rel=1e-3 if window == 1 else 0.25)


def test_a_row_that_is_used_again_is_not_taught_its_predecessors_past():
    there = controller(CPU, window=10)
    model = there.acceptance
    model.add(0)
    full = np.array([DEPTH])
    for _ in range(3):
        model.observe(np.array([0]), np.array([0]), full, full)
    model.remove(0)
    model.add(0)
    assert model.population.step == 3  # learned before the row was given away
    assert model.effect is not None
    assert model.effect.offset[0] == 0.0


def test_steps_without_drafts_only_pass():
    host, there = controller(), controller(CPU, window=2)
    for one in (host, there):
        row = np.array([one.add("a"), one.add("b")])
        zero = np.zeros(2, dtype=np.int64)
        for _ in range(4):
            one.acceptance.observe(row, zero, zero, zero)
    assert there.acceptance.population.step == host.acceptance.population.step == 4
    np.testing.assert_array_equal(there.acceptance.population.beta, host.acceptance.population.beta)


def test_learned_state_passes_between_host_and_device(tmp_path):
    host, there = follow(4, 50)
    assert isinstance(there.acceptance, AcceptanceModel)
    there.save(tmp_path / "state.npz")
    back = controller()
    back.load(tmp_path / "state.npz")
    np.testing.assert_allclose(back.acceptance.population.beta, there.acceptance.population.beta)
    assert back.acceptance.population.step == 50
    host.save(tmp_path / "host.npz")
    there = controller(CPU, 4)
    there.load(tmp_path / "host.npz")
    row, cell = np.array([there.add("x")]), np.array([2])
    twin = controller()
    twin.load(tmp_path / "host.npz")
    twin.add("x")
    np.testing.assert_allclose(
        there.acceptance.estimate(row, cell).mean(), twin.acceptance.estimate(row, cell).mean(), rtol=1e-5
    )


def test_an_edited_tuning_stays_on_the_device_and_keeps_what_was_learned():
    there = controller(CPU, window=4)
    settle(there, 42)
    assert there.acceptance.population.step == 40  # two steps are not learned yet
    retune(there, tuning(horizon="run"))
    assert type(there.policy).__name__ == "DeviceBudget"
    assert there.policy.horizon == "run"
    assert there.acceptance.population.step == 42
    World(2, 1).step([there])
    assert not there.fallback.faults


def test_what_cannot_be_allocated_there_is_refused():
    with pytest.raises(ValueError, match="serves the policy roofline-budget; Fixed"):
        place_controller(
            make_controller(
                TuningConfig.model_validate({"policy": {"name": "fixed", "depth": 2}}), cost=Profile([1], [1.0])
            ),
            "device",
            CPU,
        )
    with pytest.raises(ValueError, match="knows no depth_levels"):
        controller(CPU, depth_levels=[1, 3])
    with pytest.raises(ValueError, match="window_steps is 0"):
        controller(CPU, window=0)
    with pytest.raises(ValueError, match="allocate is 'gpu'; it must be one of host, device"):
        place_controller(controller(), "gpu", CPU)
    there = controller(CPU)
    with pytest.raises(ValueError, match="serves the policy roofline-budget"):
        retune(there, TuningConfig.model_validate({"max_depth": DEPTH, "policy": {"name": "fixed", "depth": 2}}))


def test_on_the_host_nothing_is_moved():
    one = controller()
    assert place_controller(one, "host", CPU) is one
    off = make_controller(TuningConfig(mode="off"), cost=None)
    assert place_controller(off, "device", CPU) is off
