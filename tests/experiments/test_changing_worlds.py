"""The commands that follow a policy through cold starts, shifts and worlds that never change."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from baseline_world import traced
from typer.testing import CliRunner

import adaptive_spec.experiments as experiments
from adaptive_spec.cost import ModelGeometry, Profile
from adaptive_spec.experiments import bandit_regret, cold_start, domain_shift
from adaptive_spec.experiments.ablation_table import cell
from adaptive_spec.experiments.replay_speed import measure
from adaptive_spec.policy import make_policy
from adaptive_spec.replay import BareController, ClosedConcurrency, Machine, SyntheticAcceptance, simulate
from adaptive_spec.replay.cell import make_machine, run_cell
from adaptive_spec.replay.comparison_plan import ComparisonPlan
from adaptive_spec.replay.experiment import Experiment
from adaptive_spec.replay.synthetic import constant_acceptance

FOLDER = Path(experiments.__file__).parent
MINE = ("e4_domain_shift", "e5_bandit_regret", "e6_moe", "e6_moe_measured", "e7_ablation")


# -------------------------------------------------------------------- experiment files


@pytest.mark.parametrize("name", MINE)
def test_an_experiment_can_be_planned(name: str) -> None:
    plan = ComparisonPlan(Experiment.load(FOLDER / f"{name}.yaml"))
    assert plan.cells(plan.contestants)
    for part in plan.machines:
        assert len(make_machine(part.spec, part.path).source) > 40


def test_the_shift_is_where_the_count_begins() -> None:
    experiment = Experiment.load(FOLDER / "e4_domain_shift.yaml")
    steps, warmup = experiment.run.steps, experiment.run.warmup
    assert steps is not None
    for entry in experiment.traces:
        shift = entry.synthetic.shift  # type: ignore[union-attr]
        assert shift is not None
        assert shift.step == int(warmup * steps)


def test_the_mixture_has_the_size_that_its_name_says() -> None:
    geometry = ModelGeometry.from_config(FOLDER / "machines" / "qwen3_30b_a3b.json")
    assert geometry.parameters == pytest.approx(30.5e9, rel=0.01)
    assert geometry.active_parameters == pytest.approx(3.3e9, rel=0.03)


# -------------------------------------------------------------------- cold start


def test_a_policy_that_learns_nothing_starts_as_it_goes_on() -> None:
    trace = SyntheticAcceptance(constant_acceptance(0.6, 8), "test").trace(12, 60)
    machine = Machine.load(FOLDER / "machines" / "b300.json")
    ratios = cold_start.cold_start(trace, machine, "fixed:2", 4, 1)
    assert list(ratios.values()) == [1.0, 1.0, 1.0]


def test_a_random_world_is_known_and_can_be_drawn_again() -> None:
    """What is said of the best fixed depth holds in a simulation, ends of texts and prefills aside."""
    for seed in (2, 12):
        world, again = cold_start.World.random(seed), cold_start.World.random(seed)
        assert np.array_equal(world.trace.run, again.trace.run)
        depth, gain = world.best_fixed()
        arrivals = ClosedConcurrency(world.sequences)
        goodput = [
            simulate(
                world.trace, BareController(make_policy("fixed", depth=d), 8), arrivals, world.machine, steps=200
            ).metrics.goodput
            for d in (0, depth)
        ]
        assert goodput[1] / goodput[0] == pytest.approx(gain, rel=0.1)


def test_a_fixed_depth_is_judged_by_the_positions_that_it_visits() -> None:
    """One run of eight, then nothing: half of the positions promise drafts, one step in nine has any."""
    visited = traced([[8, 7, 6, 5, 4, 3, 2, 1] + [0] * 8], [[8] * 16])
    flat = Machine("m", Profile([1, 2, 9], [1e-3, 1.5e-3, 1.5e-3]))
    assert cold_start.mean_drafts(visited, 8) == pytest.approx((8 + sum(min(8, left) for left in range(7))) / 8)
    assert cold_start.World(1, False, visited, flat).best_fixed() == (8, pytest.approx(16 / 8 / 1.5))
    dear = Machine("m", Profile([1, 2, 9], [1e-3, 2.2e-3, 2.2e-3]))
    assert cold_start.World(1, False, visited, dear).best_fixed() == (0, 1.0)


def test_the_same_worlds_are_judged_whatever_the_policy() -> None:
    seeds = (2, 7, 11)
    judged = [[cold_start.judge(seed, policy).judged for seed in seeds] for policy in ("fixed:0", "fixed:3")]
    assert judged[0] == judged[1]


def test_a_policy_that_never_drafts_is_locked_where_a_fixed_depth_wins() -> None:
    found = [cold_start.judge(seed, "fixed:0") for seed in (4, 5, 6)]
    assert [lock.locked for lock in found] == [lock.best_over_none >= cold_start.WINS for lock in found]
    assert any(lock.locked for lock in found)
    assert not any(cold_start.judge(lock.seed, "fixed:1").locked for lock in found)


# -------------------------------------------------------------------- domain shift


def test_what_a_fixed_depth_would_have_had_is_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain_shift, "SHIFT_AT", 40)
    monkeypatch.setattr(domain_shift, "WINDOWS", 2)
    course = domain_shift.play("fixed:3", domain_shift.Place("cpu.json", 5, 0.1), (0.6, 0.3), seed=1)
    np.testing.assert_allclose(course.own, course.fixed[:, 3], rtol=1e-9)
    before, after = (course.own[part, 0].mean() for part in (slice(0, 40), slice(40, 90)))
    assert after < 0.85 * before


def test_who_goes_on_as_before_has_not_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain_shift, "WINDOWS", 3)
    place = domain_shift.Place("cpu.json", 8)
    deep = domain_shift.recovery(place, "fixed:8", (0.9, 0.2), 2)
    assert deep.steps is None
    assert max(deep.ratios) < domain_shift.RECOVERED
    assert deep.probes == 0
    assert domain_shift.recovery(place, f"fixed:{deep.best_depth}", (0.9, 0.2), 2).steps == 0


# -------------------------------------------------------------------- regret

FEW = bandit_regret.World("cpu.json", 4)


def test_the_best_price_of_a_fine_grid_gives_the_best_depth() -> None:
    goodput, depth = FEW.best_price(200)
    assert depth == FEW.goodput().argmax()
    assert goodput == FEW.goodput().max()


@pytest.mark.parametrize("lost", [0.0, 0.02])
def test_a_constant_loss_has_slope_one_and_none_has_no_regret(lost: float) -> None:
    best, depth = FEW.best_price(9)
    seconds = FEW.curve()[4 * depth]
    course = np.tile([best * seconds * (1 - lost), seconds], (4000, 1))
    found = bandit_regret.regret(FEW, [course, course])
    assert found.share == pytest.approx(lost, abs=1e-12)
    if lost:
        assert found.slope == pytest.approx(1.0)


def test_the_bandit_learns_the_price_of_an_unchanging_world() -> None:
    course = bandit_regret.play(FEW, 1500, seed=0)
    best = FEW.best_price(9)[0]
    tokens, seconds = course[750:].sum(axis=0)
    assert 0.95 * best < tokens / seconds <= FEW.goodput().max() * (1 + 1e-9)


# -------------------------------------------------------------------- what is printed


@pytest.mark.parametrize(
    ("ratio", "verdict", "told"), [(1.031, "gain", "+3.1 %"), (0.999, "no difference", "~ -0.1 %")]
)
def test_what_a_part_brings_is_told_with_its_doubt(ratio: float, verdict: str, told: str) -> None:
    assert cell({"ratio": ratio, "verdict": verdict}) == told


def test_the_commands_print_what_they_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain_shift, "PLACES", domain_shift.PLACES[1:2])
    monkeypatch.setattr(bandit_regret, "WORLDS", (FEW,))
    told = CliRunner().invoke(_app(bandit_regret), ["--steps", "1000", "--seeds", "1", "--json"])
    assert told.exit_code == 0, told.output
    assert [row["steps"][-1] for row in json.loads(told.stdout)] == [1000]
    told = CliRunner().invoke(_app(domain_shift), ["--seeds", "1", "--policy", "fixed:1"])
    assert told.exit_code == 0, told.output
    assert "0.607 to 0.375" in told.stdout
    assert "0.375 to 0.607" in told.stdout


def _app(module: object) -> object:
    import typer

    app = typer.Typer()
    app.command()(module.main)  # type: ignore[attr-defined]
    return app


# -------------------------------------------------------------------- size


def test_what_a_cell_keeps_is_bounded() -> None:
    """Four times the steps, and hardly a longer record."""

    def size(steps: int) -> int:
        experiment = Experiment.parse({
            "policies": ["roofline-budget"],
            "fixed_depths": [1],
            "max_depth": 4,
            "traces": [{"synthetic": {"acceptance": 0.6, "sequences": 8, "output_tokens": 40}}],
            "arrivals": [{"closed": 3}],
            "machines": [{"file": str(FOLDER / "machines" / "b300.json")}],
            "run": {"steps": steps},
        })  # fmt: skip
        plan = ComparisonPlan(experiment)
        made = plan.cells([plan.contestants[-1]])[0]
        return len(json.dumps(run_cell(made.made_from, dict(made.files))))

    assert size(1600) < 1.2 * size(400)


def test_a_timed_replay_tells_what_it_did() -> None:
    trace = SyntheticAcceptance(constant_acceptance(0.6, 8), "test").trace(12, 60)
    row = measure(trace, Machine.load(FOLDER / "machines" / "b300.json"), "roofline-budget", 4, 50)
    assert row["tokens"] >= 4 * 50
    assert 0 < row["cpu_seconds"] < 60
    assert abs(row["grown_mb"]) < 50
