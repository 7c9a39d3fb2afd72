"""Hot reload of the tuning file: whole or not at all, never an exception, one line of the log for each refusal."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import VirtualClock, World

from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Online, Profile
from adaptive_spec.deployment import make_controller, retune
from adaptive_spec.reload import TuningReload
from adaptive_spec.step import Outcome, StepTime, StepView

CURVE = Profile([1, 8, 16, 32, 64, 128], [0.036, 0.041, 0.050, 0.067, 0.114, 0.199], interpolation="linear")
ACCEPTANCE = np.array([0.8, 0.8, 0.7, 0.7])
FIXED_2 = "max_depth: 4\npolicy: {name: fixed, depth: 2}\n"
FIXED_3 = "max_depth: 4\npolicy: {name: fixed, depth: 3}\n"


class Deployment:
    """A tuning file, a controller made from it, and the reload between them."""

    def __init__(self, path: Path, text: str = FIXED_2, sequences: int = 3, **reload) -> None:
        self.path = path
        path.write_text(text)
        tuning = TuningConfig.load(path)
        self.world = World(sequences, CURVE, ACCEPTANCE, spread=0.4, seed=1)
        self.controller = make_controller(
            tuning, cost=Online(CURVE), evidence=["age"], identity={"model": "m"}, clock=self.world.clock
        )
        self.applied: list[TuningConfig] = []
        self.reload = TuningReload(path, tuning, self.apply, **reload)
        self.now = 0.0

    def apply(self, tuning: TuningConfig) -> list[str]:
        anew = retune(self.controller, tuning)
        self.applied.append(tuning)
        return anew

    def settle(self, looks: int = 6) -> list[TuningConfig]:
        """Let the file be looked at some times; what that brought."""
        brought = []
        for _ in range(looks):
            self.now += 1.0
            brought.append(self.reload.tick(self.now))
        return [tuning for tuning in brought if tuning is not None]

    def depths(self) -> list[int]:
        (decision,) = self.world.run(self.controller, 1)
        return sorted(set(decision.depth.tolist()))


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "tuning.yaml")


def replace(path: Path, text: str) -> None:
    """Put another file in its place, as careful editors and Kubernetes do."""
    new = path.with_name("new")
    new.write_text(text)
    os.replace(new, path)


@pytest.mark.parametrize("write", [lambda path, text: path.write_text(text), replace], ids=["in place", "by rename"])
def test_an_edit_takes_effect_once_and_counts(deployment: Deployment, write) -> None:
    assert deployment.settle() == []
    assert deployment.depths() == [2]
    assert deployment.reload.generation == 1
    write(deployment.path, FIXED_3)
    (tuning,) = deployment.settle()
    assert tuning.policy.params == {"depth": 3}
    assert deployment.reload.tuning == tuning
    assert deployment.depths() == [3]
    assert deployment.reload.generation == 2
    assert deployment.settle() == []
    assert len(deployment.applied) == 1


def test_an_edit_of_the_same_length_and_times_is_seen_while_the_file_is_fresh(deployment: Deployment) -> None:
    deployment.settle(1)
    status = deployment.path.stat()
    deployment.path.write_text(FIXED_3)
    os.utime(deployment.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(deployment.settle()) == 1


class WatchedPath(type(Path())):
    """A path that keeps count of who looks at it."""

    looks = reads = 0

    def stat(self, **options):
        WatchedPath.looks += 1
        return super().stat(**options)

    def read_bytes(self) -> bytes:
        WatchedPath.reads += 1
        return super().read_bytes()


def test_the_file_is_looked_at_no_more_often_than_asked_and_read_only_while_fresh(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "t.yaml", FIXED_2 + "reload: {check_every_seconds: 5}\n")
    deployment.reload.path = WatchedPath(deployment.path)
    WatchedPath.looks = WatchedPath.reads = 0
    for now in np.arange(0.0, 200.0, 0.25):
        deployment.reload.tick(float(now))
    assert WatchedPath.looks == 40
    assert 2 <= WatchedPath.reads <= 4  # its times have stood still since


def test_it_can_be_switched_off_in_the_file_itself(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "t.yaml", FIXED_2 + "reload: {enabled: false}\n")
    deployment.path.write_text(FIXED_3)
    assert deployment.settle() == []
    other = Deployment(tmp_path / "u.yaml")
    other.path.write_text(FIXED_3 + "reload: {enabled: false}\n")
    assert len(other.settle()) == 1
    other.path.write_text(FIXED_2)
    assert other.settle() == []


BAD = {
    "cut short": ("max_depth: 4\npolicy: {name: fix", "this is no YAML"),
    "unknown key": (FIXED_3 + "exploration: {shore: 0.1}\n", "exploration.shore: unknown key; did you mean 'share'"),
    "wrong type": (FIXED_3 + "guard: {margin: wide}\n", "guard.margin: must be a valid number"),
    "unknown policy": ("max_depth: 4\npolicy: {name: fixd}\n", "did you mean 'fixed'?"),
    "no mapping": ("- 1\n", "is a mapping"),
    "no bytes": ("", "is empty; write at least the settings that differ from the defaults, as `mode: on`"),
    "blanks": (" \n\t\n", "is empty"),
    "comments": ("# max_depth: 4\n\n  # policy: {name: fixed, depth: 3}\n", "is empty"),
    "K": ("max_depth: 6\npolicy: {name: fixed, depth: 3}\n", "max_depth: is 4 and can't become 6"),
    "seed": (FIXED_3 + "seed: 7\n", "seed: is 0 and can't become 7"),
    "evidence": (
        FIXED_3 + "acceptance:\n  evidence: []\n",
        "t.yaml:4: acceptance.evidence: is None and can't",
    ),
    "cost": (FIXED_3 + "cost: {online: {enabled: false}}\n", "cost: "),
    "metrics": (FIXED_3 + "metrics: {port: 9000}\n", "restart the engine"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_edit_keeps_the_old_settings_and_says_why_in_one_line(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = Deployment(tmp_path / "t.yaml")
    text, said = BAD[name]
    deployment.settle()
    policy = deployment.controller.policy
    deployment.path.write_text(text)
    assert deployment.settle() == []
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert said in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "t.yaml" in record.getMessage()
    assert "old settings stay" in record.getMessage()
    assert deployment.controller.policy is policy
    assert (deployment.reload.generation, deployment.reload.rejections) == (1, 1)
    assert deployment.depths() == [2]
    deployment.path.write_text(FIXED_3)
    assert len(deployment.settle()) == 1
    assert deployment.depths() == [3]


def test_all_that_can_not_change_is_named_at_once(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    deployment.path.write_text("max_depth: 5\nseed: 1\npolicy: {name: fixed, depth: 1}\n")
    deployment.settle()
    assert ":1: max_depth: is 4" in caplog.text
    assert ":2: seed: is 0" in caplog.text


def test_an_engine_names_settings_of_its_own_that_can_not_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = Deployment(tmp_path / "t.yaml", fixed={("mode",): "no drafter was started with it"})
    deployment.path.write_text(FIXED_2 + "mode: off\n")
    assert deployment.settle() == []
    assert "mode: is on and can't become off in a running engine, since no drafter was started" in caplog.text


def test_a_file_that_is_being_written_is_no_mistake(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    deployment.settle()
    for end in range(len(FIXED_3) + 1):  # each look finds a bit more of it, and some beginnings are valid
        deployment.path.write_text(FIXED_3[:end])
        assert deployment.settle(1) == []
    assert len(deployment.settle()) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_file_that_is_gone_is_told_once_and_may_come_back(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    deployment.path.unlink()
    assert deployment.settle(10) == []
    assert len(caplog.records) == 1
    assert "the settings stay" in caplog.text
    deployment.path.write_text(FIXED_2)
    assert deployment.settle() == []
    assert deployment.reload.generation == 1
    deployment.path.unlink()
    deployment.settle(2)
    deployment.path.mkdir()  # not a file either
    deployment.settle(2)
    deployment.path.rmdir()
    deployment.path.write_text(FIXED_3)
    assert len(deployment.settle()) == 1


def test_comments_are_no_new_generation(deployment: Deployment) -> None:
    deployment.path.write_text("# tuned by hand\n" + FIXED_2)
    assert deployment.settle() == []
    assert deployment.reload.generation == 1


def test_a_refusal_in_applying_changes_nothing(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    def apply(tuning: TuningConfig) -> list[str]:
        raise RuntimeError("not now")

    deployment.reload._apply = apply
    deployment.path.write_text(FIXED_3)
    assert deployment.settle() == []
    assert "not now" in caplog.text
    assert deployment.reload.generation == 1


def test_a_policy_that_needs_a_cost_is_refused_where_there_is_none(tmp_path: Path) -> None:
    tuning = TuningConfig.model_validate({"policy": {"name": "fixed", "depth": 2}})
    controller = make_controller(tuning, cost=None)
    with pytest.raises(ValueError, match=r"'roofline-budget'.* needs a cost model"):
        retune(controller, TuningConfig())
    assert type(controller.policy).__name__ == "Fixed"


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=80), st.text(max_size=60).map(str.encode), st.none()), max_size=6))
def test_tick_never_raises_whatever_the_file_holds(tmp_path: Path, contents: list[bytes | None]) -> None:
    deployment = Deployment(tmp_path / "t.yaml", sequences=1)
    for content in contents:
        if content is None:
            deployment.path.unlink(missing_ok=True)
        else:
            deployment.path.write_bytes(content)
        deployment.settle(3)
    deployment.path.write_text(FIXED_3)
    deployment.settle(4)
    assert deployment.reload.tuning.policy.params == {"depth": 3}


# ---------------------------------------------------------------- what a controller keeps

TUNINGS = {
    "roofline": {"policy": {"name": "roofline-budget"}},
    "run": {"policy": {"name": "roofline-budget", "horizon": "run"}},
    "bandit": {"policy": {"name": "acceptance-bandit"}},
    "other prices": {"policy": {"name": "acceptance-bandit", "prices": 5}},
    "fixed": {"policy": {"name": "fixed", "depth": 3}},
    "table": {"policy": {"name": "batch-threshold", "table": [[1, 4, 3], [5, None, 1]], "off_above": 9}},
    "off": {"mode": "off"},
    "no effect": {"acceptance": {"sequence_effect": False}},
    "prior": {"acceptance": {"prior": 0.3, "forgetting": 0.5}},
    "unguarded": {"guard": {"enabled": False}, "exploration": {"enabled": False}, "watchdog": {"enabled": False}},
    "wild": {"exploration": {"share": 0.2, "floor_share": 0.1}, "fallback": {"depth": 2}},
}


def tuning(name: str) -> TuningConfig:
    return TuningConfig.model_validate({"max_depth": 4, **TUNINGS[name]})


def step_by_hand(controller: Controller, ids: list[int]):
    """Plan a step, and hand back how to finish it."""
    n = len(ids)
    decision = controller.plan(StepView(controller.rows(ids), np.full(n, 4), np.full(n, 90), np.full((n, 1), 50.0)))

    def finish() -> None:
        accepted = np.minimum(decision.depth, 1)
        controller.observe(Outcome(decision.step, ids, decision.depth, decision.depth, accepted))
        positions = n + int(decision.depth.sum())
        seconds = float(CURVE.verify(np.array([positions]), 0.0, n)[0])
        controller.observe_time(
            StepTime(decision.step, positions, n, 90 * n, decision.draft_depth, verify_seconds=seconds,
                     draft_seconds=0.0, step_seconds=seconds)
        )  # fmt: skip

    return decision, finish


@pytest.mark.parametrize("after", TUNINGS)
@pytest.mark.parametrize("before", TUNINGS)
def test_any_tuning_may_follow_any_other_with_two_steps_in_flight(before: str, after: str) -> None:
    controller = make_controller(tuning(before), cost=Online(CURVE), evidence=["age"], clock=VirtualClock())
    for id in range(20):  # more than the rows of a fresh table, so that they have to be taken over
        controller.add(id, pinned_depth=2 if id == 3 else None)
    ids = list(range(20))
    for _ in range(12):
        step_by_hand(controller, ids)[1]()
    flying = [step_by_hand(controller, ids) for _ in range(2)]
    retune(controller, tuning(after))
    joined = controller.add(20)
    assert controller.acceptance._live[joined]
    revised = controller.revise(
        flying[1][0],
        StepView(controller.rows(ids), np.full(20, 4), np.full(20, 90), np.full((20, 1), 50.0)),
    )
    assert (revised.depth <= flying[1][0].depth).all()
    for _, finish in (flying[0], (None, lambda: None)):
        finish()
    controller.observe(Outcome(revised.step, ids, revised.depth, revised.depth, np.minimum(revised.depth, 1)))
    for id in (3, 20, 7):
        controller.remove(id)
        ids = [kept for kept in ids if kept != id]
    for _ in range(12):
        decision, finish = step_by_hand(controller, ids)
        finish()
        if after == "off":
            assert decision.decided_by == "off"
            assert not decision.depth.any()
        if after == "fixed":
            assert set(decision.depth.tolist()) == {3}
    assert not controller.fallback.faults
    assert not controller.counts


@pytest.mark.parametrize("after", ["roofline", "run", "bandit", "unguarded", "wild", "off"])
def test_what_was_learned_survives(after: str) -> None:
    world = World(6, CURVE, ACCEPTANCE, spread=0.5, seed=2)
    controller = make_controller(tuning("roofline"), cost=Online(CURVE), evidence=["age"], clock=world.clock)
    world.run(controller, 300)
    rows = controller.rows(world.ids)
    cell = controller.acceptance.cells(np.full((6, 1), 50.0))
    before = controller.acceptance.estimate(rows, cell).mean().copy()
    spent = controller.ledger.spent
    anew = retune(controller, tuning(after))
    assert anew == (["policy"] if after == "bandit" else [])
    np.testing.assert_array_equal(controller.acceptance.estimate(rows, cell).mean(), before)
    if after != "unguarded":
        assert controller.ledger.spent == spent > 0
        assert controller.guard.ledger is controller.ledger
    world.run(controller, 50)


def test_a_tuning_that_comes_back_decides_as_if_nothing_had_been(tmp_path: Path) -> None:
    runs = []
    for swapped in (False, True):
        world = World(6, CURVE, ACCEPTANCE, spread=0.5, seed=2)
        controller = make_controller(tuning("no effect"), cost=CURVE, evidence=["age"], clock=world.clock)
        controller.explorer = controller.guard = controller.watchdog = controller.ledger = None  # they draw, and wait
        world.run(controller, 60)
        if swapped:
            retune(controller, tuning("fixed"))
            retune(controller, tuning("no effect"))
            controller.explorer = controller.guard = controller.watchdog = controller.ledger = None
        runs.append([decision.depth.tolist() for decision in world.run(controller, 60)])
    assert runs[0] == runs[1]


def test_off_means_off_for_pinned_sequences_too_and_back_on() -> None:
    controller = make_controller(tuning("roofline"), cost=Online(CURVE), evidence=["age"], clock=VirtualClock())
    for id in range(3):
        controller.add(id, pinned_depth=2 if id else None)
    assert step_by_hand(controller, [0, 1, 2])[0].depth.tolist()[1:] == [2, 2]
    assert step_by_hand(controller, [0, 1, 2])[0].pinned == 2
    retune(controller, tuning("off"))
    assert not step_by_hand(controller, [0, 1, 2])[0].depth.any()
    retune(controller, tuning("roofline"))
    assert step_by_hand(controller, [0, 1, 2])[0].depth.tolist()[1:] == [2, 2]


def test_counts_of_faults_go_on_and_a_benched_policy_gets_another_chance(deployment: Deployment) -> None:
    controller = deployment.controller
    controller.fallback.faults["raised"] = 3
    controller.fallback._benched_steps = 500
    deployment.path.write_text(FIXED_3)
    deployment.settle()
    assert controller.fallback.faults["raised"] == 3
    assert not controller.fallback.benched
    assert deployment.depths() == [3]
