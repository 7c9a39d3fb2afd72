"""The plugin's hooks on vLLM's real schedulers, stepped by hand: depths, limits, faults, versions."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from adaptive_scheduler import PROMPT, both, drafters, start
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from adaptive_spec.config import TuningError
from adaptive_spec.experiments.stepped_vllm import SteppedScheduler, abort, make_config, make_request, make_scheduler
from adaptive_spec.step import Decision, StepView
from adaptive_spec.suffix import SuffixIndex
from adaptive_spec.vllm_plugin import compatibility, deployment, factory
from adaptive_spec.vllm_plugin.drafters import drafter_of
from adaptive_spec.vllm_plugin.hook_guard import GIVE_UP_AFTER


def depths(model: SteppedScheduler, id: str) -> list[int]:
    """Drafts that each of a request's steps carried, its prompt's apart."""
    seen = []
    while model.scheduler.has_requests():
        output = model.step()
        if id in output.num_scheduled_tokens:
            seen.append(len(output.scheduled_spec_decode_tokens.get(id, ())))
    model.drain()
    return seen[1:]


@both
@drafters
def test_pinned_depths_of_one_batch(tmp_path: Path, asynchronous: bool, method: str) -> None:
    for pin in range(7):
        model = start(tmp_path, method=method, asynchronous=asynchronous)
        for other in (0, 6):
            extra = {"adaptive_spec.depth": other}
            model.scheduler.add_request(make_request(f"other{other}", PROMPT, 300, extra_args=extra))
        model.scheduler.add_request(make_request("a", PROMPT, 60, extra_args={"adaptive_spec.depth": pin}))
        seen = depths(model, "a")
        full = 59 // (pin + 1)  # the prompt's step yields the first token, and every draft is accepted
        assert seen[:full] == [pin] * full
        assert sum(seen[full:]) < max(pin, 1)
        assert model.emitted["a"] == 60
        assert not model.scheduler.depth_control.faults


@both
@drafters
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 8, 9])
def test_no_draft_is_verified_beyond_a_requests_last_token(
    tmp_path: Path, asynchronous: bool, method: str, max_tokens: int
) -> None:
    model = start(tmp_path, method=method, asynchronous=asynchronous)
    model.scheduler.add_request(make_request("a", PROMPT, max_tokens, extra_args={"adaptive_spec.depth": 6}))
    model.run()
    assert model.emitted["a"] == max_tokens
    # Every draft was accepted, and no accepted token was thrown away: one token a step isn't a draft.
    assert model.scheduler.depth_control.accepted == model.accepted == model.drafted <= max(0, max_tokens - 2)


@both
def test_a_model_that_is_full_ends_a_request_as_well(tmp_path: Path, asynchronous: bool) -> None:
    model = start(tmp_path, method="draft_model", asynchronous=asynchronous, max_model_len=48)
    model.scheduler.add_request(make_request("a", PROMPT, 500, extra_args={"adaptive_spec.depth": 6}))
    model.run()
    assert model.emitted["a"] == 48 - len(PROMPT)
    assert model.drafted == model.accepted


@both
def test_caps_and_off(tmp_path: Path, asynchronous: bool) -> None:
    model = start(tmp_path, "max_depth: 6\npolicy: {name: fixed, depth: 6}\n", method="draft_model",
                  asynchronous=asynchronous)  # fmt: skip
    said = {"capped": {"adaptive_spec.max_depth": 2}, "off": {"adaptive_spec.off": True}, "free": {}}
    for id, extra in said.items():
        model.scheduler.add_request(make_request(id, PROMPT, 60, extra_args=extra))
    most = dict.fromkeys(said, 0)
    while model.scheduler.has_requests():
        for id, drafts in model.step().scheduled_spec_decode_tokens.items():
            most[id] = max(most[id], len(drafts))
    assert most == {"capped": 2, "off": 0, "free": 6}


def test_the_drafter_is_asked_for_no_more_than_the_deepest(tmp_path: Path) -> None:
    for method in ("ngram", "draft_model"):
        model = start(tmp_path, method=method)
        for i in range(3):
            model.scheduler.add_request(make_request(str(i), PROMPT, 40, extra_args={"adaptive_spec.max_depth": i}))
        assert {model.step().num_spec_tokens_to_schedule for _ in range(4)} <= {0, 1, 2}
    model = start(tmp_path, method="suffix")  # insists on the configured number
    model.scheduler.add_request(make_request("a", PROMPT, 40, extra_args={"adaptive_spec.off": True}))
    assert {model.step().num_spec_tokens_to_schedule for _ in range(4)} == {6}
    assert model.drafted == 0


@both
def test_a_policy_that_raises_leaves_the_server_serving(tmp_path: Path, asynchronous: bool) -> None:
    model = start(tmp_path, method="draft_model", asynchronous=asynchronous)
    controller = model.scheduler.depth_control.controller
    controller.policy._decide = None
    model.scheduler.add_request(make_request("a", PROMPT, 40))
    model.run()
    assert model.emitted["a"] == 40
    assert controller.fallback.faults["raised"] > 0
    assert not model.scheduler.depth_control.faults


@both
@drafters
@pytest.mark.parametrize("hook", ["begin", "scheduled", "observe", "remove", "add"])
def test_a_hook_that_raises_leaves_stock_depths(
    tmp_path: Path, asynchronous: bool, method: str, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = start(tmp_path, method=method, asynchronous=asynchronous)
    control = model.scheduler.depth_control
    original, calls = getattr(control, hook), []

    def sometimes(*args: Any) -> Any:
        calls.append(args)
        if len(calls) % 3 == 0:
            raise RuntimeError("by design")
        return original(*args)

    setattr(control, hook, sometimes)
    with caplog.at_level(logging.ERROR, "adaptive_spec"):
        for i in range(7):
            model.scheduler.add_request(make_request(str(i), PROMPT[: 10 + i], 40))
        model.run()
        model.scheduler.add_request(make_request("last", PROMPT, 40))
        model.run()
    assert set(model.emitted.values()) == {40}
    assert control.faults[hook] > 0
    # pytest's handler may be among those of vLLM's logger, and then sees one record twice.
    assert len({id(record) for record in caplog.records if f"failed in {hook!r}" in record.message}) == 1
    assert model.scheduler.kv_cache_manager.usage == 0
    setattr(control, hook, original)
    model.scheduler.add_request(make_request("healed", PROMPT, 40))
    model.run()
    assert len(control.requests) == len(control.controller) == 0


def test_hooks_that_always_raise_are_given_up(tmp_path: Path) -> None:
    model = start(tmp_path, method="draft_model")
    control = model.scheduler.depth_control
    control.begin = None
    model.scheduler.add_request(make_request("a", PROMPT, 900))
    model.accept = lambda *_: 0
    model.run()
    assert model.emitted["a"] == 900
    assert control.faults["begin"] == GIVE_UP_AFTER


def test_after_giving_up_metrics_are_given_out_and_what_was_learned_is_saved(tmp_path: Path) -> None:
    model = start(tmp_path, method="draft_model")
    control = model.scheduler.depth_control
    calls: list[str] = []
    for name in ("idle", "close", "fault", "tick"):
        setattr(control.watcher, name, lambda *_, name=name: calls.append(name))
    control.observe = None
    model.scheduler.add_request(make_request("a", PROMPT, 900))
    model.run()
    assert model.scheduler._hooks.given_up
    assert calls.count("fault") == GIVE_UP_AFTER
    assert calls[-2:] == ["fault", "idle"]
    model.scheduler.shutdown()
    assert calls[-1] == "close"


@both
def test_aborts_leave_nothing(tmp_path: Path, asynchronous: bool) -> None:
    model = start(tmp_path, method="draft_model", asynchronous=asynchronous)
    for turn in range(20):
        model.scheduler.add_request(make_request(str(turn), PROMPT, 400))
        model.step()
        model.step()
        abort(model.scheduler, str(turn))
    model.run()
    control = model.scheduler.depth_control
    assert len(control.requests) == len(control.controller) == 0
    assert control.requests.capacity <= 64
    assert not control.faults


def test_step_times_reach_the_cost_model(tmp_path: Path) -> None:
    for method, asynchronous in (("ngram", False), ("draft_model", False), ("draft_model", True)):
        model = start(tmp_path, method=method, asynchronous=asynchronous)
        model.scheduler.add_request(make_request("a", PROMPT, 200))
        steps = model.run()
        cost = model.scheduler.depth_control.controller.cost
        assert cost.observed + cost.held >= steps - 3
        assert cost.observed > 0


def test_a_moved_vllm_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert compatibility.missing() == []
    monkeypatch.setattr(Scheduler, "update_from_output", lambda self, output, results: None)
    monkeypatch.setattr(compatibility, "_REQUEST", (*compatibility._REQUEST, "a_name_of_tomorrow"))
    problems = compatibility.missing()
    assert any("update_from_output takes (output, results)" in problem for problem in problems)
    assert "Request has no a_name_of_tomorrow" in problems
    with caplog.at_level(logging.WARNING, "adaptive_spec"):
        for asynchronous, cls in ((False, Scheduler), (True, AsyncScheduler)):
            config = make_config(tmp_path, asynchronous=asynchronous, method="draft_model")
            assert type(make_scheduler(factory.make_scheduler, config)) is cls
    assert "goes on with its own depth" in caplog.text


def test_without_speculation_there_is_nothing_to_adapt(tmp_path: Path) -> None:
    model = start(tmp_path, k=0)
    assert model.scheduler.depth_control is None
    model.scheduler.add_request(make_request("a", PROMPT, 20))
    model.run()
    assert model.emitted["a"] == 20


def test_a_wrong_tuning_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(TuningError, match="max_dpeth"):
        start(tmp_path, "max_dpeth: 3\n")
    with pytest.raises(
        TuningError, match=r"yaml:1: acceptance.evidence: agreement .* matched_length, last_accepted, age"
    ):
        start(tmp_path, "acceptance: {evidence: [agreement]}\n")
    with pytest.raises(TuningError, match=r"yaml:1: acceptance.evidence: matched_length .* last_accepted, age are"):
        start(tmp_path, "acceptance: {evidence: [matched_length]}\n", method="draft_model")


def test_depths_are_decided_by_how_much_of_each_text_stood_there_before(tmp_path: Path) -> None:
    model, draw = start(tmp_path, "policy: {name: fixed, depth: 1}\n"), random.Random(0)
    control, live = model.scheduler.depth_control, model.scheduler.requests
    told: list[float] = []

    def plan(view: StepView) -> Decision:
        matched = view.evidence[:, 0]
        for id, row in control.requests.row_of.items():
            if row in view.row:
                expected = max(SuffixIndex(live[id].all_token_ids).matched_length, 1)
                assert matched[view.row == row].tolist() == [expected]
        told.extend(matched.tolist())
        return decide(view)

    decide, control.controller.plan = control.controller.plan, plan
    for i in range(4):
        prompt = [draw.randint(3, 20) for _ in range(5 + 30 * i)]
        model.scheduler.add_request(make_request(str(i), prompt, 120))
    for step in range(60):
        model.token = draw.randint(3, 20)
        if step in (20, 30):
            control.retune("off" if step == 20 else "on", 1.0)
            assert len(control.requests.texts) == 0
        model.step()
    assert {1.0, 2.0, 3.0} < set(told)
    assert not control.faults


def test_drafters_are_recognised() -> None:
    def of(method: str, ranks: int = 1, **more: Any) -> tuple[bool, bool]:
        drafter = drafter_of(SimpleNamespace(method=method, **more), ranks)
        assert method in drafter.describe()
        return drafter.drafts_fewer, drafter.plans_early

    assert of("ngram") == (True, False)
    staged = drafter_of(SimpleNamespace(method="eagle"), 1, 2)
    assert (staged.drafts_fewer, staged.plans_early) == (False, False)
    for method in ("draft_model", "eagle", "eagle3", "mtp", "deepseek_mtp"):
        assert of(method) == (True, True)
        assert of(method, parallel_drafting=True) == (False, False)
        assert of(method, 2) == (False, False)
    for method in ("suffix", "medusa", "ngram_gpu", "mlp_speculator", "custom_class", "dflash", "of tomorrow"):
        assert of(method) == (False, False)
    with pytest.raises(ValueError, match="no depth to adapt"):
        of("extract_hidden_states")


def test_max_depth_beyond_vllms_is_vllms(tmp_path: Path) -> None:
    model = start(tmp_path, "max_depth: 20\n", k=3)
    assert model.scheduler.depth_control.controller.max_depth == 3


def test_the_path_travels_in_additional_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path, tuning_file=tmp_path / "there.yaml")
    assert deployment.tuning_file(config) == str(tmp_path / "there.yaml")
    monkeypatch.setenv("ADAPTIVE_SPEC_CONFIG", "elsewhere.yaml")
    assert deployment.tuning_file(config) == str(tmp_path / "there.yaml")
    assert deployment.tuning_file(make_config(tmp_path)) == "elsewhere.yaml"


@both
@drafters
def test_a_cache_reset_between_two_chunks_of_a_prompt_is_no_fault(
    tmp_path: Path, asynchronous: bool, method: str
) -> None:
    model = start(tmp_path, method=method, asynchronous=asynchronous, max_num_batched_tokens=32)
    for turns in range(1, 6):
        for i in range(3):
            model.scheduler.add_request(make_request(f"{turns}-{i}", PROMPT[: 20 + i], 30))
        for _ in range(turns):
            model.step()
        model.scheduler.reset_prefix_cache(reset_running_requests=True)
        model.run()
    assert set(model.emitted.values()) == {30}
    assert not model.scheduler.depth_control.faults
