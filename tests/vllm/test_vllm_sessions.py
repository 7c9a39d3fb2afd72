"""Streaming sessions: requests that await their next prompt after each stop."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from vllm_scenes import PATIENT

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from vllm.v1.request import Request

from adaptive_spec.experiments.stepped_vllm import SteppedScheduler, make_config, make_request, make_scheduler
from adaptive_spec.vllm_plugin import factory

if "resumable" not in inspect.signature(Request).parameters:
    pytest.skip("this vLLM has no streaming sessions", allow_module_level=True)

PROMPT = list(range(3, 40))
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


@pytest.fixture
def model(tmp_path: Path, asynchronous: bool) -> SteppedScheduler:
    file = tmp_path / "tuning.yaml"
    file.write_text("max_depth: 6\n" + PATIENT)
    config = make_config(tmp_path, k=6, method="draft_model", asynchronous=asynchronous, tuning_file=file)
    return SteppedScheduler(make_scheduler(factory.make_scheduler, config), lambda _, drafts: drafts // 2)


def turn(model: SteppedScheduler, tokens: int = 30, **more: Any) -> None:
    """The session's next prompt."""
    model.scheduler.add_request(make_request("s", PROMPT, tokens, session=True, **more))


def end(model: SteppedScheduler) -> None:
    """The client has nothing more to say."""
    model.scheduler.add_request(make_request("s", PROMPT, 1))


def work(model: SteppedScheduler) -> None:
    model.run(limit=1000)


@both
@pytest.mark.parametrize("ends_early", [False, True])
def test_a_sessions_end_leaves_nothing(model: SteppedScheduler, ends_early: bool) -> None:
    turn(model)
    if ends_early:  # it waits in a queue until the prompt's answer is there
        end(model)
    work(model)
    if not ends_early:
        assert list(model.scheduler.requests) == ["s"]
        end(model)
        work(model)
    control = model.scheduler.depth_control
    assert not model.scheduler.requests
    assert len(control.requests) == len(control.controller) == 0
    assert not control._results._sessions
    assert not control.faults
    turn(model)  # the id may come again
    work(model)
    assert not control.faults
    assert len(control.requests) == 1


@both
def test_results_that_vllm_drops_at_a_stop_are_not_counted(model: SteppedScheduler) -> None:
    model.scheduler.add_request(make_request("other", PROMPT, 400))
    steps = iter(range(10_000))
    model.stop = lambda id: id == "s" and next(steps) % 5 == 4  # a stop that nobody foresaw
    for tokens in (20, 21, 22, 23, 24):
        turn(model, tokens)
    end(model)
    work(model)
    control = model.scheduler.depth_control
    assert (control.verified, control.accepted) == (model.drafted, model.accepted)
    assert not control.faults


@both
def test_a_pause_of_the_client_is_no_step_time(model: SteppedScheduler) -> None:
    control = model.scheduler.depth_control
    ticks = [0.0]

    def clock() -> float:
        ticks[0] += 0.01
        return ticks[0]

    control.clock.clock = clock
    seconds: list[float] = []
    control.watcher.timed = lambda time: seconds.append(time.step_seconds)
    idle: list[bool] = []
    control.watcher.idle = lambda: idle.append(True)
    for _ in range(3):
        turn(model)
        work(model)
        assert idle  # what is counted was given out
        idle.clear()
        ticks[0] += 3600.0
    assert seconds
    assert max(seconds) < 1.0
    assert not control.faults
