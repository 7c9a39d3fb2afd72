"""What was learned, kept on a schedule and taken up again."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import VirtualClock, World

from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Online, Profile
from adaptive_spec.deployment import make_controller
from adaptive_spec.state_keeper import StateKeeper, state_path
from adaptive_spec.step import StepView

CURVE = Profile([1, 8, 16, 32, 64, 128], [0.036, 0.041, 0.050, 0.067, 0.114, 0.199], interpolation="linear")
ACCEPTANCE = np.array([0.75, 0.8, 0.7, 0.6, 0.65, 0.5])
IDENTITY = {"model": "m", "drafter": "d"}


def make(world: World | None = None, identity: dict[str, str] = IDENTITY, **tuning) -> Controller:
    config = TuningConfig.model_validate({"max_depth": 6, **tuning})
    clock = world.clock if world is not None else VirtualClock()
    return make_controller(config, cost=Online(CURVE), evidence=["age"], identity=identity, clock=clock)


def survival(controller: Controller, age: float) -> np.ndarray:
    """What a fresh sequence's drafts are thought to be worth, shape (K,)."""
    row = controller.add(("probe", age))
    cell = controller.acceptance.cells(np.array([[age]]))
    found = controller.acceptance.estimate(np.array([row]), cell).mean()[0].copy()
    controller.remove(("probe", age))
    return found


@pytest.mark.parametrize("policy", ["roofline-budget", "acceptance-bandit"])
def test_a_warm_restart_predicts_as_before_within_ten_steps(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "learned.npz"
    world = World(2, CURVE, ACCEPTANCE, spread=0.3, seed=3)
    before = make(world, policy={"name": policy})
    decisions = world.run(before, 2000)
    used = int(np.median([decision.depth.max() for decision in decisions[-100:]]))  # depths that are really bought
    assert used >= 2
    known = {age: survival(before, age) for age in (1.0, 50.0)}
    assert StateKeeper(before, path).save()

    world = World(2, CURVE, ACCEPTANCE, spread=0.3, seed=4)
    warm = make(world, policy={"name": policy})
    keeper = StateKeeper(warm, path)
    assert keeper.load()
    assert keeper.warm
    for age, expected in known.items():
        np.testing.assert_allclose(survival(warm, age), expected, rtol=1e-12)
    world.run(warm, 10)
    world = World(2, CURVE, ACCEPTANCE, spread=0.3, seed=4)
    cold = make(world, policy={"name": policy})
    world.run(cold, 10)
    for age, expected in known.items():
        np.testing.assert_allclose(survival(warm, age)[:used], expected[:used], rtol=0.02)
    off = survival(cold, 50.0)[:used] / known[50.0][:used]
    assert np.abs(off - 1).max() > 0.02, "a cold start would do as well"


def test_the_schedule_saves_when_due_and_not_before(tmp_path: Path) -> None:
    controller = make()
    keeper = StateKeeper(controller, tmp_path / "new folder" / "learned.npz", every_seconds=60.0)
    assert not keeper.load()
    saved = [now for now in np.arange(1000.0, 1200.0, 0.5) if keeper.tick(float(now))]
    assert saved == [1060.0, 1120.0, 1180.0]
    assert keeper.saves == 3
    assert keeper.saved_at is not None
    assert make().load(keeper.path) is None
    assert [path.name for path in keeper.path.parent.iterdir()] == ["learned.npz"]  # no part of a file is left


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"identity": {"model": "other", "drafter": "d"}}, "model 'm'"),
        ({"identity": {"model": "m", "drafter": "other"}}, "drafter 'd'"),
        ({"max_depth": 4}, "max_depth 6"),
    ],
)
def test_another_deployment_starts_cold_and_leaves_the_file_alone(
    tmp_path: Path, other: dict, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "learned.npz"
    world = World(4, CURVE, ACCEPTANCE, seed=1)
    learned = make(world)
    world.run(learned, 100)
    StateKeeper(learned, path).save()
    content = path.read_bytes()

    controller = make(**other)
    keeper = StateKeeper(controller, path)
    with caplog.at_level(logging.WARNING):
        assert not keeper.load()
    (record,) = caplog.records
    assert said in record.getMessage()
    assert "cold start" in record.getMessage()
    assert path.read_bytes() == content
    assert keeper.save()
    assert (tmp_path / "learned.npz.refused").read_bytes() == content
    assert StateKeeper(make(**other), path).load()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and then nothing", b"text"])
def test_a_damaged_file_is_a_cold_start(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "learned.npz"
    path.write_bytes(content)
    keeper = StateKeeper(make(), path)
    assert not keeper.load()
    assert "cold start" in caplog.text
    assert keeper.save()
    assert StateKeeper(make(), path).load()


def test_a_file_cut_anywhere_is_never_taken(tmp_path: Path) -> None:
    path = tmp_path / "learned.npz"
    StateKeeper(make(), path).save()
    whole = path.read_bytes()
    for end in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:end])
        assert not StateKeeper(make(), path).load()


def test_what_can_not_be_written_is_logged_once_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way of a folder")
    keeper = StateKeeper(make(), blocked / "learned.npz")
    assert not any(keeper.save() for _ in range(5))
    assert keeper.failures == 5
    assert len(caplog.records) == 1
    assert "can't be saved" in caplog.text
    blocked.unlink()
    assert keeper.save()


def test_engines_side_by_side_have_a_file_each() -> None:
    assert [state_path("a/learned.npz", rank).as_posix() for rank in range(3)] == [
        "a/learned.npz",
        "a/learned.1.npz",
        "a/learned.2.npz",
    ]
    with pytest.raises(ValueError, match="every_seconds is 0"):
        StateKeeper(make(), "x", every_seconds=0)


def test_a_step_view_of_the_warm_controller_is_served(tmp_path: Path) -> None:
    path = tmp_path / "learned.npz"
    world = World(8, CURVE, ACCEPTANCE, seed=1)
    first = make(world)
    world.run(first, 200)
    StateKeeper(first, path).save()
    warm = make()
    StateKeeper(warm, path).load()
    for each in (first, warm):
        each.add("x")
        each.guard = None  # when it measures its next off-step was not learned
    views = [StepView(each.rows(["x"]), np.array([6]), np.array([50]), np.array([[50.0]])) for each in (first, warm)]
    deep = [int(each.plan(view).depth[0]) for each, view in zip((first, warm), views, strict=True)]
    assert deep[0] == deep[1] > 0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.5, 50.0), st.one_of(st.none(), st.floats(1.0, 3600.0))), min_size=1, max_size=60),
    st.floats(1.0, 3600.0),
)
def test_a_shorter_interval_holds_at_once_and_a_longer_one_after_the_next_saving(
    ticks: list[tuple[float, float | None]], every: float
) -> None:
    keeper = StateKeeper(object(), "unused", every)  # nothing is saved here
    keeper.save = lambda: True
    now, due = 1000.0, 1000.0 + every
    assert not keeper.tick(now)
    for seconds, edited in ticks:
        now += seconds
        if edited is not None:
            keeper.every_seconds = edited
            due = min(due, now + edited)
        assert keeper.tick(now) == (now >= due)
        if now >= due:
            due = now + keeper.every_seconds


def test_what_is_taken_over_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "learned.npz"
    with caplog.at_level(logging.INFO, "adaptive_spec"):
        StateKeeper(make(), path).load()
        assert "taken over" not in caplog.text
        StateKeeper(make(), path).save()
        caplog.clear()
        StateKeeper(make(), path).load()
    (record,) = caplog.records
    assert record.getMessage() == f"what was learned in {path} was taken over"
    assert record.levelno == logging.INFO


def forbid(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As on a read-only mount; the user of these tests may be allowed everything."""
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and allowed(path, mode))


@pytest.mark.parametrize("name", ["learned.npz", "new/folder/learned.npz"])
@pytest.mark.parametrize("warm", [True, False])
def test_what_can_not_be_saved_is_told_at_the_start(
    tmp_path: Path, name: str, warm: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / name
    if warm:
        StateKeeper(make(), path).save()
    assert StateKeeper(make(), path).load() == warm
    assert not caplog.records
    folder = path.parent if warm else tmp_path
    forbid(monkeypatch, folder)
    assert StateKeeper(make(), path).load() == warm
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"can't be saved to {path}: {folder} can't be written to" in record.getMessage()


def test_what_is_in_the_way_of_the_file_is_told_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    for path, why in (
        (tmp_path / "file" / "learned.npz", "file is no folder"),
        (tmp_path / "file" / "deeper" / "learned.npz", "file is no folder"),
        (tmp_path / ("x" * 300) / "learned.npz", "too long"),
    ):
        caplog.clear()
        keeper = StateKeeper(make(), path)
        assert not keeper.load()
        assert why in caplog.records[-1].getMessage()
        assert caplog.records[-1].levelno == logging.WARNING
        assert not keeper.save(), "it was told for nothing"
