"""Small versions of the guard's proof: the bars hold under the guard, and are missed without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from adaptive_spec.experiments import guard_proof
from adaptive_spec.experiments.guard_proof import POLICIES, TABLE, WINDOW, Row, judge, prove
from adaptive_spec.experiments.guard_worlds import Guarded, OneDepth, Played, fixed, most_in_a_minute, play, worlds
from adaptive_spec.replay.synthetic import SyntheticAcceptance, constant_acceptance
from adaptive_spec.replay.trace import Trace

STEPS = 1500
WORLDS = worlds()
STANDING = [name for name in WORLDS if name not in ("undisturbed", "alone")]


@pytest.fixture(scope="module")
def texts() -> Trace:
    return SyntheticAcceptance(constant_acceptance(0.6, 8), "acceptance .6").trace(64, 128)


def proven(name: str, policy: str, texts: Trace, *, guard: bool = True) -> Row:
    world = WORLDS[name]
    runs = [play(world, texts, Guarded(policy, world, guard), STEPS, seed=0)]
    return judge(world, policy, runs, {0: [play(world, texts, fixed(0), STEPS, seed=0)]})


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", STANDING)
def test_the_guard_holds_every_policy_to_the_bars_against_off(name: str, policy: str, texts: Trace) -> None:
    row = replace(proven(name, policy, texts), against_best=1.0)
    assert row.misses == []


@pytest.mark.parametrize("name", STANDING)
def test_without_the_guard_the_bars_are_missed(name: str, texts: Trace) -> None:
    row = replace(proven(name, TABLE, texts, guard=False), against_best=1.0)
    assert [miss for miss in row.misses if miss.startswith("against off")]
    assert [miss for miss in row.misses if miss.startswith("window")]


def test_without_the_watchdog_a_collapse_is_missed(texts: Trace) -> None:
    row = proven("collapse", "roofline-budget", texts, guard=False)
    assert [miss for miss in row.misses if "collapses missed" in miss]
    assert row.tripped_after is None


@pytest.mark.parametrize("policy", ["roofline-budget", "acceptance-bandit"])
@pytest.mark.parametrize("name", ["undisturbed", "alone"])
def test_where_nothing_goes_wrong_nothing_is_switched_off(name: str, policy: str, texts: Trace) -> None:
    row = proven(name, policy, texts)
    assert row.misses == [] or row.against_best < 1  # best is off here, and speculation beats it
    assert row.against_off > 1.15
    assert row.false_trips == 0
    assert row.switches_a_minute == 0


def test_the_proof_is_the_same_in_workers_and_again(texts: Trace) -> None:
    chosen = [WORLDS["nothing accepted"]]
    once = prove(texts, chosen, ("fixed:4",), steps=400, seeds=2)
    assert once == prove(texts, chosen, ("fixed:4",), steps=400, seeds=2, jobs=2)


def test_a_window_is_held_against_the_time_that_off_takes_for_its_tokens() -> None:
    """Off yields 8 tokens a second; for 20 steps of ten seconds the run yields as many, at a tenth of the pace."""
    seconds = np.ones(600)
    seconds[300:320] = 10.0
    text = {"text_tokens": np.array([4800.0]), "text_seconds": np.array([600.0])}
    off = Played(np.ones(600), np.full(600, 8.0), **text)
    run = Played(seconds, np.full(600, 8.0), on=np.ones(600), drafted=np.zeros(600), **text)
    row = judge(WORLDS["undisturbed"], "roofline-budget", [run], {0: [off]})
    assert row.window == pytest.approx((WINDOW + 20 * 9) / WINDOW)
    assert row.against_best == pytest.approx(500 / 680)


def test_the_watchdog_is_timed_from_the_collapse_and_from_the_recovery() -> None:
    world = WORLDS["collapse"]
    (first, well), (again, end) = world.collapses(2000)
    text = {"text_tokens": np.array([1.0]), "text_seconds": np.array([1.0])}
    off = Played(np.ones(2000), np.ones(2000), **text)

    def seen(trips: list[int], recoveries: list[int]) -> Row:
        run = Played(np.ones(2000), np.ones(2000), [], trips, recoveries, np.ones(2000), np.zeros(2000), **text)
        return judge(world, "fixed:4", [run], {0: [off]})

    row = seen([first + 9, again + 19], [well + 49, end + 29])
    assert (row.tripped_after, row.back_after, row.missed_collapses, row.false_trips) == (20, 50, 0, 0)
    row = seen([first - 5, again + 60], [first - 1, end + 149])
    assert (row.tripped_after, row.back_after, row.missed_collapses, row.false_trips) == (61, 150, 1, 1)


def test_one_depth_is_what_it_says(texts: Trace) -> None:
    world = WORLDS["undisturbed"]
    for depth in (0, 2):
        run = play(world, texts, fixed(depth), 300, seed=1)
        assert run.drafted.any() == (depth > 0)
        assert run.tokens.max() <= world.sequences * (depth + 2)  # and the first tokens of those that begin
    assert isinstance(OneDepth(3).policy, object)


def test_a_swinging_world_decodes_few_and_many_in_turn(texts: Trace) -> None:
    run = play(WORLDS["swing"], texts, fixed(0), 200, seed=0)
    assert run.tokens[0::2].mean() > 3 * run.tokens[1::2].mean()


@pytest.mark.parametrize(("times", "most"), [([], 0), ([1.0], 1), ([0.0, 59.0, 61.0], 2), ([0.0, 60.0], 1)])
def test_changes_are_counted_within_any_minute(times: list[float], most: int) -> None:
    assert most_in_a_minute(times) == most


def test_the_command_fails_when_a_bar_is_missed(texts: Trace, tmp_path) -> None:
    import typer

    app = typer.Typer()
    app.command()(guard_proof.main)
    path = tmp_path / "texts.parquet"
    texts.save(path)
    common = ["--trace", str(path), "--world", "nothing accepted", "--policy", "fixed:4", "--steps", "1500"]
    common += ["--seeds", "1", "--jobs", "1"]
    runner = CliRunner()
    assert runner.invoke(app, common).exit_code == 0
    missed = runner.invoke(app, [*common, "--unguarded"])
    assert missed.exit_code == 1
    assert "missed: nothing accepted, fixed:4: against off" in missed.output
    assert runner.invoke(app, [*common, "--world", "nowhere"]).exit_code == 2
    assert runner.invoke(app, ["--trace", str(tmp_path / "none.parquet")]).exit_code == 1
