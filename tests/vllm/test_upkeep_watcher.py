"""The watcher that feeds a deployment's upkeep from vLLM's steps; vLLM itself isn't needed."""

from __future__ import annotations

import dataclasses
import logging
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from adaptive_spec import metrics_folder
from adaptive_spec.config import TuningConfig
from adaptive_spec.deployment import make_controller
from adaptive_spec.step import Decision
from adaptive_spec.vllm_plugin import upkeep_watcher
from adaptive_spec.vllm_plugin.step_report import StepReport
from adaptive_spec.vllm_plugin.upkeep_watcher import UpkeepWatcher, watch
from adaptive_spec.vllm_plugin.vllm_tuning import fitted, load_tuning


class Control:
    """As much of the plugin's control as a watcher sees."""

    def __init__(self, tuning: TuningConfig, max_depth: int) -> None:
        self.controller = make_controller(tuning, cost=None)
        self.max_depth = max_depth
        self.retuned: list[tuple[str, float]] = []

    def retune(self, mode: str, share: float) -> None:
        self.retuned.append((mode, share))


def vllm_config(rank: int = 0, name: str | list[str] = "served", **parallel: int) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(served_model_name=name),
        parallel_config=SimpleNamespace(data_parallel_rank=rank, **parallel),
    )


def make(file: Path | None = None, text: str = "policy: {name: fixed, depth: 2}\n", **more) -> UpkeepWatcher:
    if file is not None:
        file.write_text(text)
    tuning = TuningConfig.parse(text)
    return watch(Control(tuning, 8), tuning, None if file is None else str(file), vllm_config(**more))


def report(adapted: list[bool]) -> StepReport:
    n = len(adapted)
    depth = np.full(n, 2)
    ids, ones = [str(i) for i in range(n)], np.ones(n, dtype=np.int64)
    decision = Decision(1, np.arange(n), depth, 2)
    return StepReport("on", decision, ids, np.array(adapted), ones > 0, 3 * ones, depth, ones, 2 * ones, 3, 0, 0, 5e-5)


def test_steps_requests_and_faults_are_counted() -> None:
    watcher = make(name=["first name", "alias"], rank=2)
    watcher.request(True)
    watcher.request(False)
    watcher.step(report([True, False, True]))
    watcher.fault("observe", ValueError("x"))
    watcher.tick(0.0)
    counts = watcher.upkeep.counts
    assert counts.requests == {True: 1, False: 1}
    assert counts.depth[2] == 2
    assert counts.shadow_depth[2] == 1
    assert (counts.drafted, counts.wasted) == (9, 6)
    assert counts.outcomes[2, 1] == 3
    assert counts.seconds.sum() == 1
    assert counts.faults == {"observe": 1}
    assert (watcher.upkeep.model_name, watcher.upkeep.engine) == ("first name", "2")


@pytest.mark.parametrize("adapted", [[False, False, False], [True, False, True], [True, True, True]])
def test_what_would_have_been_accepted_is_counted_where_depths_were_not_given(adapted: list[bool]) -> None:
    watcher = make()
    decision = Decision(1, np.arange(3), np.array([0, 2, 5]), 5)
    verified, accepted = np.array([4, 4, 4]), np.array([3, 3, 1])
    said = dataclasses.replace(report(adapted), decision=decision, verified=verified, accepted=accepted)
    watcher.step(said)
    watcher.step(dataclasses.replace(said, decision=None))  # after a fault
    watcher.idle()
    counts = watcher.upkeep.counts
    would = [(v, a) for (v, a), given in zip([(0, 0), (2, 2), (4, 1)], adapted, strict=True) if not given]
    assert (counts.shadow_verified, counts.shadow_accepted) == tuple(np.sum(would, axis=0) if would else (0, 0))
    assert counts.outcomes[4, 3] == 4  # as it was, whoever was given what


@pytest.mark.parametrize("look", ["tick", "idle", "close"])
def test_steps_are_counted_together_and_none_is_lost(look: str) -> None:
    watcher = make()
    counts, most = watcher.upkeep.counts, upkeep_watcher.COUNTED_TOGETHER
    watcher.tick(0.0)
    for _ in range(most + 3):
        watcher.step(report([True]))
        watcher.tick(0.1)
    assert counts.steps["policy"] == most
    getattr(watcher, look)(*([1.0] if look == "tick" else []))
    assert counts.steps["policy"] == most + 3
    watcher.step(report([True]))
    wrong = report([True])
    wrong.accepted = wrong.verified + 1
    watcher.step(wrong)
    watcher.step(report([True]))
    with pytest.raises(ValueError, match="nothing was counted"):
        watcher.idle()
    watcher.idle()
    assert counts.outcomes[2, 1] == most + 5


@pytest.mark.parametrize("look", ["tick", "idle", "close"])
def test_a_report_that_cant_be_counted_keeps_nothing_else_from_being_done(look: str) -> None:
    watcher, done = make(), []
    setattr(watcher.upkeep, look, lambda *_: done.append(look))
    wrong = report([True])
    wrong.accepted = wrong.verified + 1
    watcher.step(wrong)
    with pytest.raises(ValueError, match="nothing was counted"):
        getattr(watcher, look)(*([1.0] if look == "tick" else []))
    assert done == [look]


def test_without_metrics_nothing_is_counted() -> None:
    watcher = make(text="metrics: {enabled: false}\npolicy: {name: fixed, depth: 2}\n")
    watcher.step(report([True]))
    watcher.idle()
    assert not watcher.upkeep.counts.steps


def test_an_edited_file_reaches_controller_and_control(tmp_path: Path) -> None:
    file = tmp_path / "tuning.yaml"
    watcher = make(file)
    for now in range(5):
        watcher.tick(float(now))
    assert watcher.control.retuned == []
    file.write_text("mode: shadow\nshare: 0.25\npolicy: {name: fixed, depth: 3}\n")
    for now in range(5, 10):
        watcher.tick(float(now))
    assert watcher.control.retuned == [("shadow", 0.25)]
    assert watcher.control.controller.policy.depth == 3
    assert watcher.upkeep.generation == 2


def test_what_the_engine_makes_of_the_file_is_done_to_edits_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tuning.yaml"
    file.write_text("max_depth: 12\npolicy: {name: fixed, depth: 2}\n")

    tuning = load_tuning(str(file), 4, ["age"])
    watcher = watch(
        Control(tuning, 4), tuning, str(file), vllm_config(), adjust=lambda edited: fitted(edited, 4, ["age"])
    )
    for now in range(5):
        watcher.tick(float(now))
    assert not caplog.records
    assert watcher.upkeep.generation == 1
    file.write_text("max_depth: 12\npolicy: {name: fixed, depth: 9}\n")  # over what the engine has
    for now in range(5, 10):
        watcher.tick(float(now))
    assert watcher.upkeep.rejections == 1
    (record,) = caplog.records
    assert "old settings stay" in record.getMessage()
    assert "tuning.yaml:2: policy.depth: depth is 9" in record.getMessage()
    assert "vLLM's num_speculative_tokens is 4" in record.getMessage()
    assert "\n" not in record.getMessage()
    file.write_text("max_depth: 11\npolicy: {name: fixed, depth: 3}\n")
    for now in range(10, 15):
        watcher.tick(float(now))
    assert watcher.upkeep.tuning.policy.params == {"depth": 3}
    assert watcher.upkeep.tuning.max_depth == 4


def test_a_taken_port_keeps_no_model_from_being_served(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("prometheus_client")
    with socket.socket() as taken, caplog.at_level(logging.ERROR):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        watcher = make(text=f"metrics: {{port: {port}, host: 127.0.0.1}}\npolicy: {{name: fixed, depth: 2}}\n")
    assert watcher.upkeep.server is None
    assert f"{port} can't be opened" in caplog.text
    watcher.step(report([True]))


def test_what_was_learned_is_saved_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "learned.npz"
    text = f"learned: {{file: '{path}'}}\npolicy: {{name: fixed, depth: 2}}\n"
    for rank in (0, 1):
        make(text=text, rank=rank).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["learned.1.npz", "learned.npz"]
    assert make(text=text).upkeep.keeper.warm


def test_engines_of_a_dense_model_are_told_apart(tmp_path: Path) -> None:
    """vLLM sets the data-parallel rank of each to 0, and leaves its index as it is."""
    path = tmp_path / "learned.npz"
    text = f"learned: {{file: '{path}'}}\npolicy: {{name: fixed, depth: 2}}\n"
    for index in (0, 1):
        watcher = make(text=text, rank=0, data_parallel_index=index)
        assert watcher.upkeep.engine == str(index)
        watcher.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["learned.1.npz", "learned.npz"]


def test_an_idle_engine_leaves_its_metrics_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step follows the last request's for a while, so what is due once a second is done at once."""
    client = pytest.importorskip("prometheus_client")
    from prometheus_client.multiprocess import MultiProcessCollector

    monkeypatch.delenv(metrics_folder.MULTIPROCESS, raising=False)
    monkeypatch.setenv(metrics_folder.VARIABLE, str(tmp_path))
    watcher = make()
    registry = client.CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))

    def verified() -> float:
        return registry.get_sample_value("adaptive_spec:verified_tokens_total", {"model_name": "served", "engine": "0"})

    assert verified() == 0  # all series are there before the first step
    watcher.tick(0.0)
    watcher.step(report([True, True]))
    watcher.tick(0.5)
    assert verified() == 0
    watcher.idle()
    assert verified() == 4
    watcher.close()
