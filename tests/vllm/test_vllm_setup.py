"""What the plugin makes of vLLM's configuration: stock behaviour where it can't, and who gets what where it can."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from adaptive_scheduler import PROMPT, both, drafters, start

from adaptive_spec.experiments.stepped_vllm import abort, make_config, make_request, make_scheduler
from adaptive_spec.tuning_file import TuningError
from adaptive_spec.vllm_plugin import cost_source, deployment, factory
from adaptive_spec.vllm_plugin.drafters import drafter_of


def fail(*_: object, **__: object) -> Any:
    raise RuntimeError("not in this vLLM")


@pytest.mark.parametrize("moved", ["device_entry", "geometry_of", "watch", "drafter_of", "identity"])
def test_what_cant_be_set_up_leaves_a_stock_engine(
    tmp_path: Path, moved: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deployment if hasattr(deployment, moved) else cost_source, moved, fail)
    with caplog.at_level(logging.WARNING, "adaptive_spec"):
        model = start(tmp_path, method="draft_model")
    assert model.scheduler.depth_control is None
    records = {id(record): record.message for record in caplog.records if record.name.startswith("adaptive_spec")}
    assert len(records) == 1
    assert "goes on with vLLM's own depth: RuntimeError: not in this vLLM" in next(iter(records.values()))
    model.scheduler.add_request(make_request("a", PROMPT, 40))
    model.run()
    assert model.emitted["a"] == 40


def test_what_the_tuning_names_must_be_there(tmp_path: Path) -> None:
    broken = tmp_path / "profile.json"
    broken.write_text("{}")
    with pytest.raises(TuningError, match=r"cost.file: .*profile.json.* must be a JSON object"):
        start(tmp_path, f"cost: {{source: file, file: '{broken}'}}\n")
    with pytest.raises(TuningError, match="cost"):
        start(tmp_path, "cost: {source: roofline, hardware: abacus}\n")


def test_depths_beyond_vllms_own_stop_the_start(tmp_path: Path) -> None:
    text = "policy:\n  name: batch-threshold\n  table: [[1, 8, 6], [9, 32, 3], [33, null, 1]]\n"
    with pytest.raises(TuningError, match=r"tuning.yaml:3: policy.table: .*num_speculative_tokens is 4"):
        start(tmp_path, text, k=4)
    assert start(tmp_path, text, k=6).scheduler.depth_control is not None


@pytest.mark.parametrize(
    ("share", "said"), [("1.0", "100 %"), ("0.05", "5 %"), ("0.005", "0.5 %"), ("0.07", "7 %"), ("0", "0 %")]
)
def test_the_start_is_told_with_the_share_and_the_file(
    tmp_path: Path, share: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "adaptive_spec"):
        start(tmp_path, f"max_depth: 6\nshare: {share}\n")
    (line,) = {record.getMessage() for record in caplog.records if "adaptive depth is on" in record.getMessage()}
    assert f"adaptive depth is on for {said} of the requests, 0 to 6 drafts, policy roofline-budget; " in line
    assert line.endswith(f"; tuning file {tmp_path / 'tuning.yaml'}")


def test_without_a_file_the_start_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("ADAPTIVE_SPEC_CONFIG", raising=False)
    with caplog.at_level(logging.INFO, "adaptive_spec"):
        scheduler = make_scheduler(factory.make_scheduler, make_config(tmp_path, k=5))
    assert scheduler.depth_control is not None
    (line,) = {record.getMessage() for record in caplog.records if "adaptive depth is on" in record.getMessage()}
    assert "for 100 % of the requests, 0 to 5 drafts" in line
    assert line.endswith("; no tuning file is named: the defaults hold")


WITHOUT_DRAFTS = {"verify_ms_by_tokens": {"1": 36, "4": 38, "16": 50, "64": 114}}
WITH_DRAFTS = {**WITHOUT_DRAFTS, "draft_ms_per_depth_by_requests": {"1": 3.0}}


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize(
    ("profile", "method", "each"),
    [
        (WITHOUT_DRAFTS, "draft_model", 0.036),  # the draft model is as large as the target here
        (WITH_DRAFTS, "draft_model", 0.003),
        (WITHOUT_DRAFTS, "ngram", 0.0),
        (WITHOUT_DRAFTS, "medusa", 0.0),  # drafts the configured number in any case
    ],
)
def test_a_saved_profile_without_drafting_does_not_make_it_free(
    tmp_path: Path, profile: dict[str, Any], method: str, each: float, k: int
) -> None:
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile))
    model = start(tmp_path, f"max_depth: 6\ncost: {{source: file, file: '{file}'}}\n", method=method, k=k)
    control = model.scheduler.depth_control
    depth = np.arange(1, k + 1)
    np.testing.assert_allclose(control.controller.cost.draft(depth, 3), each * depth, rtol=1e-6)
    split = control.clock.split
    assert (split is not None) == (method == "draft_model")
    if split is not None:
        assert split.split(0.05, 4, k, 3)[1] > 0


def test_full_graphs_are_remarked_on_where_the_drafter_makes_passes() -> None:
    def remark(method: str = "eagle", device: str = "cuda", full: bool = True, table: object = None) -> str | None:
        speculative = SimpleNamespace(method=method, num_speculative_tokens_per_batch_size=table)
        config = SimpleNamespace(
            speculative_config=speculative,
            device_config=SimpleNamespace(device_type=device),
            compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: full)),
        )
        return deployment.graph_remark(config, drafter_of(speculative))

    assert "PIECEWISE" in str(remark())
    assert remark(method="ngram") is None
    assert remark(device="cpu") is None
    assert remark(full=False) is None
    assert remark(table=[(1, 8, 4)]) is None


@both
@drafters
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_off_is_depth_0_for_every_request(tmp_path: Path, asynchronous: bool, method: str, share: float) -> None:
    """Those outside the share, and those that began under another mode, too."""
    model = start(tmp_path, f"max_depth: 6\nshare: {share}\nmode: shadow\n", method=method, asynchronous=asynchronous)
    control = model.scheduler.depth_control
    model.scheduler.add_request(make_request("before", PROMPT, 300))
    for _ in range(4):
        model.step()
    control.retune("off", share)
    model.scheduler.add_request(make_request("after", PROMPT, 100))
    while model.scheduler.has_requests():
        output = model.step()
        assert not output.scheduled_spec_decode_tokens
        assert output.num_spec_tokens_to_schedule == 0 or not output.num_scheduled_tokens
    assert not control.faults


@both
@drafters
def test_who_isnt_adapted_keeps_vllms_own_depth(tmp_path: Path, asynchronous: bool, method: str) -> None:
    """Also where the tuning goes less deep, and where the adapted ones are off."""
    tuning = "max_depth: 3\nshare: 0.5\npolicy: {name: fixed, depth: 1}\n"
    model = start(tmp_path, tuning, method=method, asynchronous=asynchronous)
    control = model.scheduler.depth_control
    for i in range(8):
        said = {"adaptive_spec.off": True} if i % 2 else {}
        model.scheduler.add_request(make_request(str(i), PROMPT, 100, extra_args=said))
    adapted = {id: bool(control.requests.adapted[row]) for id, row in control.requests.row_of.items()}
    assert len(set(adapted.values())) == 2
    for _ in range(3):
        model.step()
    for _ in range(6):
        output = model.step()
        for id in output.num_scheduled_tokens:
            drafts = len(output.scheduled_spec_decode_tokens.get(id, ()))
            assert drafts <= 1 if adapted[id] else drafts == 6
    assert not control.faults


@both
def test_a_request_that_was_preempted_and_aborted_leaves_nothing(tmp_path: Path, asynchronous: bool) -> None:
    settings: dict[str, Any] = {"num_blocks": 9, "prefix_caching": False}
    model = start(tmp_path, method="draft_model", asynchronous=asynchronous, **settings)
    aborted = 0
    for id in "abc":
        model.scheduler.add_request(make_request(id, PROMPT, 80))
    while model.scheduler.has_requests():
        for id in model.step().preempted_req_ids or ():
            if id in model.scheduler.requests:
                abort(model.scheduler, id)
                aborted += 1
    model.drain()
    assert aborted
    assert not model.scheduler.depth_control._results._maybe_stale
    assert not model.scheduler.depth_control.faults


def test_a_finished_request_whose_blocks_are_still_handed_on_is_not_begun_again(tmp_path: Path) -> None:
    model = start(tmp_path, method="draft_model")
    control = model.scheduler.depth_control
    model.scheduler.add_request(make_request("a", PROMPT, 300))
    model.step()
    handed_on = make_request("b", PROMPT, 10)
    handed_on.status = handed_on.status.FINISHED_STOPPED
    live = {**model.scheduler.requests, "b": handed_on}
    control.recover("begin", RuntimeError("by design"))
    control.bring_up_to_date(live, model.scheduler.running)
    assert list(control.requests.row_of) == ["a"]


@both
@drafters
def test_pipeline_stages_decide_on_the_batch_that_begins(tmp_path: Path, asynchronous: bool, method: str) -> None:
    """Two batches are under way; who is in the one doesn't count in the other."""
    model = start(tmp_path, "max_depth: 6\npolicy: {name: fixed, depth: 2}\n", method=method, asynchronous=False)
    scheduler = model.scheduler
    scheduler.vllm_config.parallel_config.pipeline_parallel_size = 2
    control = make_staged(scheduler)
    decided: list[list[str]] = []
    control.watcher.step = lambda report: decided.append(list(report.ids))
    batches: list[Any] = []
    for id in "ab":
        scheduler.add_request(make_request(id, PROMPT, 40))
        batches.append(scheduler.schedule())
    for _ in range(6):
        output = batches.pop(0)
        (id,) = output.num_scheduled_tokens
        model._update(output, model.run_model(output))
        scheduler.requests[id].spec_token_ids = [9] * 6
        batches.append(scheduler.schedule())
        assert list(map(len, batches[-1].scheduled_spec_decode_tokens.values())) == [2]
        assert batches[-1].num_spec_tokens_to_schedule == 6
    assert decided == [["a"], ["b"], ["a"], ["b"]]
    assert not control.faults


def make_staged(scheduler: Any) -> Any:
    """The control that a scheduler of two stages gets."""
    control = scheduler.depth_control = deployment.make_control(scheduler)
    return control
