"""What the controller is told of vLLM's steps: a step without drafts brings what was expected of it, and no more."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from adaptive_scheduler import PROMPT, both, drafters, start
from vllm.v1.outputs import KVConnectorOutput

from adaptive_spec.experiments.stepped_vllm import SteppedScheduler, abort, make_request
from adaptive_spec.guard import Verdict
from adaptive_spec.step import StepTime, StepView
from adaptive_spec.vllm_plugin.overrides import Overrides

WEIGHTS = {"all alike": [1.0], "light": [0.01], "heavy": [1000.0], "mixed": [0.01, 1.0, 3.0, 1000.0]}


class Told:
    """Keeps what a guard is told of steps, and lets no draft through in every other step."""

    def __init__(self, model: SteppedScheduler) -> None:
        self.off: list[tuple[StepTime, StepView]] = []
        self.on: list[tuple[StepTime, StepView]] = []
        guard = model.scheduler.depth_control.controller.guard
        observe, self._asked = guard.observe, 0

        def told(time: StepTime, view: StepView, cost: Any, speculated: bool) -> None:
            (self.on if speculated else self.off).append((time, view))
            observe(time, view, cost, speculated)

        guard.observe, guard.verdict = told, self._verdict

    def _verdict(self, *_: object) -> Verdict:
        self._asked += 1
        return Verdict(True) if self._asked % 2 else Verdict(False, "off-step", "of the test's own")


def serve(
    model: SteppedScheduler, draw: random.Random, weights: list[float], *, steps: int = 240, ends: str = "by length"
) -> None:
    """Requests come and go, six at a time."""
    scheduler = model.scheduler
    begun, least = 0, dict[str, int]()
    model.stop = lambda id: ends == "by a token" and scheduler.requests[id].num_output_tokens >= least[id]
    for _ in range(steps):
        while len(scheduler.requests) < 6:
            id, tokens = f"r{begun}", draw.randint(5, 40)
            least[id] = tokens
            prompt = [draw.randint(3, 900) for _ in range(draw.randint(2, 60))]
            extra = {"adaptive_spec.weight": draw.choice(weights)}
            scheduler.add_request(make_request(id, prompt, tokens if ends == "by length" else 400, extra_args=extra))
            begun += 1
        model.step()
        if ends == "by the client" and draw.random() < 0.2:
            abort(scheduler, draw.choice(list(scheduler.requests)))
    abort(scheduler, *scheduler.requests)
    model.drain()
    assert not scheduler.depth_control.faults


@both
@drafters
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("ends", ["by length", "by a token", "by the client"])
def test_a_step_without_drafts_brings_what_was_expected(
    tmp_path: Path, asynchronous: bool, method: str, weights: str, ends: str
) -> None:
    """Else its shortfall or surplus would be laid to the drafts of the others."""
    draw = random.Random(f"{asynchronous} {method} {weights} {ends}")
    model = start(tmp_path, method=method, asynchronous=asynchronous, prefix_caching=False)
    model.accept = lambda _, drafts: draw.randint(0, drafts)
    told = Told(model)
    serve(model, draw, WEIGHTS[weights], ends=ends)
    assert len(told.off) > 50
    for time, view in told.off:
        assert time.tokens == pytest.approx(view.base_tokens)


@both
@drafters
@pytest.mark.parametrize("max_depth", [1, 2, 6])
def test_drafts_of_requests_outside_the_share_are_nobodys_gain(
    tmp_path: Path, asynchronous: bool, method: str, max_depth: int
) -> None:
    """They keep vLLM's K, which may be deeper than the tuning's `max_depth`."""
    draw = random.Random(f"{asynchronous} {method} {max_depth}")
    tuning = f"max_depth: {max_depth}\nshare: 0.5\n"
    model = start(tmp_path, tuning, k=6, method=method, asynchronous=asynchronous, prefix_caching=False)
    told = Told(model)
    serve(model, draw, WEIGHTS["mixed"])
    assert len(told.off) > 50
    assert any(view.carried_drafts for _, view in told.off)
    for time, view in told.off:
        assert time.tokens == pytest.approx(view.base_tokens)
        if method == "ngram" and not asynchronous:  # otherwise depths are planned a step ahead
            assert time.positions == view.base_positions
    assert any(time.tokens > view.base_tokens for time, view in told.on)


@both
@pytest.mark.parametrize("asked", [2**31, 2**63 - 1, 2**63, 2**64 - 1, 1e30, 1e300])
def test_one_requests_wish_however_large_is_its_own_affair(tmp_path: Path, asynchronous: bool, asked: float) -> None:
    model = start(tmp_path, asynchronous=asynchronous)
    extra = {"adaptive_spec.max_depth": asked}
    Overrides.parse(extra, 6)  # the front end lets it in: over K means K
    for id, wish in (("before", None), ("large", extra), ("after", None)):
        model.scheduler.add_request(make_request(id, PROMPT, 40, extra_args=wish))
    model.run()
    assert model.emitted == {"before": 40, "large": 40, "after": 40}
    control = model.scheduler.depth_control
    assert not control.faults
    assert len(control.requests) == len(control.controller) == 0


def test_a_request_that_cannot_be_added_is_known_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half known, it would be in the way of every other at every step."""
    model = start(tmp_path)
    control = model.scheduler.depth_control
    restart = control.requests.restart

    def failing(request: Any) -> None:
        if request.request_id == "bad" and not control.faults:
            raise RuntimeError("of the test's own")
        restart(request)

    monkeypatch.setattr(control.requests, "restart", failing)
    for id in ("a", "bad", "b"):
        model.scheduler.add_request(make_request(id, PROMPT, 40))
    model.run()
    assert model.emitted == {"a": 40, "bad": 40, "b": 40}
    assert dict(control.faults) == {"add": 1}
    assert len(control.requests) == len(control.controller) == 0
    assert control.requests.unadapted == control.requests.capped == control.controller.personal == 0


def test_what_vllm_takes_back_after_a_failed_kv_load_is_taken_back_here(tmp_path: Path) -> None:
    model = start(tmp_path)
    model.accept = lambda _, drafts: drafts // 2
    scheduler, control = model.scheduler, model.scheduler.depth_control
    if not hasattr(scheduler, "recompute_kv_load_failures"):
        pytest.skip("this vLLM doesn't recompute")
    scheduler.recompute_kv_load_failures = True
    for id, first in (("a", 3), ("b", 100)):
        scheduler.add_request(make_request(id, list(range(first, first + 57)), 100))
    for _ in range(4):
        model.step()
    scheduler.requests["a"].num_external_computed_tokens = 57
    failed, run = {scheduler.kv_cache_manager.get_block_ids("a")[0][0]}, model.run_model

    def failing(output: Any) -> Any:
        results = run(output)
        results.kv_connector_output = KVConnectorOutput(invalid_block_ids=failed.copy())
        failed.clear()
        return results

    model.run_model = failing  # type: ignore[method-assign]
    for _ in range(6):
        model.step()
    for id, request in scheduler.requests.items():
        row = control.requests.row_of[id]
        assert control.requests.produced[row] == request.num_output_tokens
        assert control.requests.texts.tokens(row) == list(request.all_token_ids)
    assert not control.faults
