"""A tuning file that is edited while the engine has nothing to do holds from the very next request on."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from adaptive_scheduler import PROMPT, both, drafters, start
from vllm_scenes import PATIENT

from adaptive_spec.experiments.stepped_vllm import SteppedScheduler, make_request

SHALLOW = "max_depth: 6\npolicy: {name: fixed, depth: 2}\n"
DEEP = "max_depth: 6\npolicy: {name: fixed, depth: 5}\n"


class IdleEngine:
    """An engine that has served a request, and then had nothing to do for a minute."""

    def __init__(self, folder: Path, session: bool = False, **settings: Any) -> None:
        self.file = folder / "tuning.yaml"
        self.model: SteppedScheduler = start(folder, SHALLOW, **settings)
        self.control = self.model.scheduler.depth_control
        self.upkeep = self.control.watcher.upkeep
        self._later = 0.0
        self.control.clock.clock = lambda: time.perf_counter() + self._later
        self.begin("first", session=session)
        while self.model.scheduler.get_num_unfinished_requests():
            self.model.step()
        self.model.drain()

    def edit(self, text: str, seconds_ago: float = 30.0) -> None:
        self._later += 60.0
        self.file.write_text(text + PATIENT)
        then = time.time() - seconds_ago
        os.utime(self.file, (then, then))

    def begin(self, id: str, **settings: Any) -> None:
        self.model.scheduler.add_request(make_request(id, PROMPT, 40, **settings))

    def adapted(self, id: str) -> bool:
        return bool(self.control.requests.adapted[self.control.requests.row_of[id]])

    def depths(self, id: str) -> set[int]:
        """Drafts that were asked for and those that were verified, from the request's first step on."""
        first = self.model.step()
        assert list(first.num_scheduled_tokens) == [id]
        seen = {first.num_spec_tokens_to_schedule} if self.control.drafter.costs_by_depth else set()
        for _ in range(4):
            seen |= {len(drafts) for drafts in self.model.step().scheduled_spec_decode_tokens.values()}
        return seen


@both
@drafters
@pytest.mark.parametrize("session", [False, True], ids=["none left", "a session waits"])
def test_an_edit_made_while_idle_holds_for_the_next_request(
    tmp_path: Path, asynchronous: bool, method: str, session: bool
) -> None:
    engine = IdleEngine(tmp_path, session, method=method, asynchronous=asynchronous)
    assert len(engine.control.requests) == session
    engine.edit(DEEP)
    engine.begin("a")
    assert engine.upkeep.generation == 2
    assert engine.depths("a") == {5}
    assert not engine.control.faults


@both
@pytest.mark.parametrize(
    ("said", "adapted"), [("share: 0.0\n", False), ("mode: shadow\n", False), ("mode: on\n", True)]
)
def test_the_next_request_is_on_the_new_side_of_the_share(
    tmp_path: Path, asynchronous: bool, said: str, adapted: bool
) -> None:
    engine = IdleEngine(tmp_path, asynchronous=asynchronous)
    engine.edit(DEEP + said)
    engine.begin("a")
    assert engine.adapted("a") == adapted
    assert engine.depths("a") == {5 if adapted else 6}


@pytest.mark.parametrize(
    "text", ["policy: {name: fixd}\n", "max_depth: 7\nfallback: {depth: 7}\n", "max_depth: 6\nshore: 1.0\n"]
)
def test_a_broken_edit_made_while_idle_is_refused_when_the_next_request_comes(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = IdleEngine(tmp_path)
    engine.edit(text)
    with caplog.at_level(logging.ERROR, "adaptive_spec"):
        engine.begin("a")
        engine.begin("b")
    assert engine.upkeep.rejections == 1
    refused = {record.getMessage() for record in caplog.records if "old settings stay" in record.getMessage()}
    assert len(refused) == 1
    assert engine.adapted("a")
    engine.model.scheduler.finish_requests(["b"], engine.model.scheduler.requests["b"].status.FINISHED_ABORTED)
    assert engine.depths("a") == {2}
    assert engine.upkeep.rejections == 1


def test_a_file_that_may_still_be_written_waits_for_a_second_look(tmp_path: Path) -> None:
    engine = IdleEngine(tmp_path)
    engine.edit(DEEP, seconds_ago=-3600.0)  # by the clock of another machine
    engine.begin("a")
    assert engine.upkeep.generation == 1
    engine._later += 2.0
    engine.begin("b")
    assert engine.upkeep.generation == 2
