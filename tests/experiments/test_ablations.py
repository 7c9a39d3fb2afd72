"""Ablations: each takes away what it says, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import DraftCost, Profile
from adaptive_spec.experiments.ablations import (
    DraftTakenForFree,
    EarlyStop,
    KeptDrafting,
    MarginalAcceptance,
    MonotoneCurve,
    ablations,
)
from adaptive_spec.policies.roofline_budget import RooflineBudget
from adaptive_spec.replay import ClosedConcurrency, Machine, SyntheticAcceptance, simulate
from adaptive_spec.replay.clock import VirtualClock
from adaptive_spec.replay.controllers import ReplaySetting
from adaptive_spec.replay.synthetic import constant_acceptance
from adaptive_spec.step import FloatArray, StepView

K = 4


class Known:
    """Survival that is given."""

    def __init__(self, survival: list[list[float]]) -> None:
        self.survival = np.array(survival)

    def mean(self) -> FloatArray:
        return self.survival

    def sample(self, rng: np.random.Generator) -> FloatArray:
        return self.survival

    def upper(self) -> FloatArray:
        return self.survival


def curve(milliseconds: list[float], draft: DraftCost | None = None) -> Profile:
    return Profile(range(1, len(milliseconds) + 1), [m / 1e3 for m in milliseconds], draft_cost=draft)


def view(sequences: int) -> StepView:
    none = np.zeros(sequences, dtype=np.int64)
    return StepView(np.arange(sequences), np.full(sequences, K), none, np.zeros((sequences, 0)))


def choice(policy: RooflineBudget, survival: list[list[float]], cost: Profile) -> tuple[list[int], int]:
    policy.reset(K, 0)
    decision = policy.decide(view(len(survival)), Known(survival), cost)
    return decision.depth.tolist(), decision.draft_depth


def setting() -> ReplaySetting:
    nothing = np.zeros(0, dtype=np.int64)
    machine = Machine("m", curve([5.0, 5.5, 6.0, 9.0]))
    return ReplaySetting(machine, ("matched_length", "age"), K, VirtualClock(), 0, lambda: nothing, lambda: nothing)


def made(name: str) -> Controller:
    return ablations()[name](TuningConfig(max_depth=K))(setting())


def test_early_stop_stays_below_a_step_that_the_exact_search_crosses() -> None:
    # 1 token for 1 ms; one draft: 1.9 for 2 (worse); two: 2.8 for 2; three: 3.6 for 2: 1.8 tokens a ms.
    cost = curve([1.0, 2.0, 2.0, 2.0, 9.0])
    survival = [[0.9, 0.9, 0.8, 0.1]]
    assert choice(RooflineBudget(), survival, cost)[0] == [3]
    assert choice(EarlyStop(), survival, cost)[0] == [0]


def test_a_monotone_curve_hides_a_dip() -> None:
    # Two sequences; three positions are dear, four are cheap again (a captured graph).
    cost = curve([1.0, 1.0, 2.0, 1.1, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0])
    survival = [[0.5, 0.1, 0.1, 0.1], [0.5, 0.1, 0.1, 0.1]]
    assert choice(RooflineBudget(), survival, cost)[0] == [1, 1]
    assert choice(MonotoneCurve(), survival, cost)[0] == [0, 0]


def test_a_drafter_that_is_kept_running_is_paid_for() -> None:
    cost = curve([1.0, 5.0, 9.0, 9.0, 9.0], DraftCost.sequential(1e-4))
    assert choice(RooflineBudget(), [[0.5, 0.1, 0.1, 0.1]], cost) == ([0], 0)
    assert choice(KeptDrafting(), [[0.5, 0.1, 0.1, 0.1]], cost) == ([0], 1)


def test_a_draft_that_is_taken_for_free_is_bought() -> None:
    cost = curve([1.0, 1.0, 1.0, 1.0, 1.0], DraftCost.sequential(1e-3))
    survival = [[0.9, 0.8, 0.7, 0.6]]
    assert choice(RooflineBudget(), survival, cost)[0] == [0]
    assert choice(DraftTakenForFree(), survival, cost)[0] == [4]


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_the_product_of_means_is_never_over_the_mean_of_the_product(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arguments = {"prior": 0.7, "prior_weight": 5.0}
    model = MarginalAcceptance(K, **arguments)
    for row in range(3):
        model.add(row)
    rows, cell = np.arange(3), np.zeros(3, dtype=np.int64)
    for _ in range(30):
        verified = rng.integers(0, K + 1, 3)
        model.observe(rows, cell, verified, np.minimum(verified, rng.integers(0, K + 1, 3)))
    means = model.estimate(rows, cell).mean()
    products = super(MarginalAcceptance, model).estimate(rows, cell).mean()
    assert means[:, 0] == pytest.approx(products[:, 0])  # of one draft both are the same
    assert (means <= products + 1e-12).all()
    assert (np.diff(means, axis=1) <= 0).all()


def test_settings_are_taken_away_one_at_a_time() -> None:
    assert made("without-exploration").ledger is None
    assert made("without-exploration").guard is not None
    assert made("without-evidence").evidence == ()
    assert made("without-sequence-effect").acceptance.effect is None
    assert made("without-guard").guard is None
    assert made("without-guard").watchdog is None
    assert made("without-guard").ledger is not None
    assert made("run-horizon").policy.get_params()["horizon"] == "run"
    assert made("early-stop").evidence == ("matched_length", "age")


@pytest.mark.parametrize("name", list(ablations()))
def test_every_ablation_serves_without_a_fault(name: str) -> None:
    trace = SyntheticAcceptance(constant_acceptance(0.7, K), "test").trace(6, 30)
    machine = Machine("m", curve([5.0, 5.5, 6.0, 9.0, 14.0], DraftCost.sequential(2e-4)))
    run = simulate(trace, ablations()[name](TuningConfig(max_depth=K)), ClosedConcurrency(5), machine, steps=60)
    assert run.faults == {} or not any(run.faults.values())
    assert run.metrics.goodput > 0
