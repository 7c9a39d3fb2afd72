"""The real schedulers, stepped at random: whatever happens to requests, counts hold and nothing is left behind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from vllm_scenes import PATIENT

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from adaptive_spec.experiments.stepped_vllm import SteppedScheduler, abort, make_config, make_request, make_scheduler
from adaptive_spec.vllm_plugin.factory import make_scheduler as adaptive
from adaptive_spec.vllm_plugin.step_report import StepReport

K = 5
TUNING = """
max_depth: 4
mode: {mode}
share: {share}
policy: {{name: acceptance-bandit}}
seed: 3
"""
CASES = [
    ("ngram", False, "on", 1.0),
    ("draft_model", False, "on", 1.0),
    ("draft_model", True, "on", 1.0),
    ("draft_model", True, "on", 0.5),
    ("ngram", False, "on", 0.5),
    ("draft_model", True, "shadow", 1.0),
    ("ngram", False, "off", 1.0),
    ("suffix", False, "on", 1.0),
]


class Invariants:
    """A watcher that holds every report against what must always be true."""

    def __init__(self) -> None:
        self.steps = self.seconds = 0
        self.verified = self.accepted = 0

    def step(self, report: StepReport) -> None:
        self.steps += 1
        assert report.decision is not None
        depth = report.decision.depth
        assert (report.accepted <= report.verified).all()
        assert (report.verified <= report.drafted).all()
        assert (report.verified <= depth)[report.adapted & report.alive].all()
        assert (report.drafted <= report.draft_depth).all()
        assert report.draft_depth <= K
        assert (depth >= 0).all()
        assert (depth[report.adapted] <= 4).all()
        assert len(report.ids) == len(depth) == len(report.emitted)
        self.verified += int(report.verified.sum())
        self.accepted += int(report.accepted.sum())

    def timed(self, time: Any) -> None:
        assert time.step_seconds > 0
        assert time.positions >= time.sequences
        assert time.draft_depth <= K
        self.seconds += 1

    def request(self, adapted: bool) -> None: ...
    def tick(self, now: float) -> None: ...
    def idle(self) -> None: ...
    def close(self) -> None: ...
    def fault(self, where: str, error: Exception) -> None:
        raise AssertionError(f"{where} failed") from error


class Server(RuleBasedStateMachine):
    """One scheduler with few KV blocks and a small token budget, and clients of every kind."""

    config: Any
    method: str
    turns = 0

    @initialize(seed=st.integers(0, 10_000))
    def start(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.scheduler = make_scheduler(adaptive, type(self).config)
        self.control = self.scheduler.depth_control
        self.watcher = self.control.watcher = Invariants()
        self.kept = 0.7
        self.model = SteppedScheduler(self.scheduler, self.accept, self.offer)
        self.model.shuffle = self.draw
        self.ids: list[str] = []
        self.given = 0
        for length in (5, 40, 70):
            self.come(family=0, length=length, max_tokens=30, depth=None, cap=None, off=False, heavy=False)

    def accept(self, _: str, drafts: int) -> int:
        kept = 0
        while kept < drafts and self.draw.random() < self.kept:
            kept += 1
        return kept

    def offer(self, _: str, asked: int) -> int:
        return self.draw.randint(0, asked)

    @rule(
        family=st.integers(0, 2),
        length=st.integers(1, 90),
        max_tokens=st.integers(1, 40),
        depth=st.none() | st.integers(0, 4),
        cap=st.none() | st.integers(0, 9),
        off=st.booleans(),
        heavy=st.booleans(),
    )
    def come(
        self, family: int, length: int, max_tokens: int, depth: int | None, cap: int | None, off: bool, heavy: bool
    ) -> None:
        if len(self.scheduler.requests) >= 10:
            return
        extra: dict[str, Any] = {"adaptive_spec.off": off and length % 3 == 0}
        if depth is not None and length % 2:
            extra["adaptive_spec.depth"] = depth
        elif cap is not None:
            extra["adaptive_spec.max_depth"] = cap
        if heavy:
            extra["adaptive_spec.weight"] = 3.0
        prompt = [family * 300 + j % 250 + 3 for j in range(length)]  # families share prefixes
        request = make_request(str(self.given), prompt, max_tokens, extra_args=extra)
        self.scheduler.add_request(request)
        self.ids.append(request.request_id)
        self.given += 1

    @rule(turns=st.integers(2, 12), kept=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    def go_on(self, turns: int, kept: float) -> None:
        self.kept = kept
        for _ in range(turns):
            if self.scheduler.has_requests():
                self.model.token = self.draw.randint(5, 7)
                self.model.step()
                type(self).turns += 1
                self.texts_are_vllms()

    def texts_are_vllms(self) -> None:
        tables = self.control.requests
        if tables.texts is None:
            return
        assert self.control.mode != "off" or not len(tables.texts)
        for id, row in tables.row_of.items():
            kept = tables.texts.tokens(row)
            assert not kept or kept == self.scheduler.requests[id].all_token_ids[:]

    @rule()
    def go_on_for_long(self) -> None:
        for _ in range(15):
            self.go_on(turns=1, kept=self.draw.choice([0.2, 0.8]))

    @rule(which=st.integers(0, 9))
    def go_away(self, which: int) -> None:
        if self.ids:
            abort(self.scheduler, self.ids.pop(which % len(self.ids)))

    @rule(cuts=st.booleans())
    def grammar(self, cuts: bool) -> None:
        self.model.grammar = (lambda _, drafts: self.draw.randint(0, drafts)) if cuts else None

    @rule()
    def stop_words(self) -> None:
        self.model.stop = lambda _: self.draw.random() < 0.1

    @rule()
    def forget_the_cache(self) -> None:
        """All running requests are preempted, and results under way are dropped."""
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        type(self).turns += self.model.run()
        control = self.control
        assert not control.faults
        assert len(control.requests) == len(control.controller) == 0
        assert not control._passes
        assert not control._results._maybe_stale
        assert self.scheduler.kv_cache_manager.usage == 0
        assert (control.verified, control.accepted) == (self.model.drafted, self.model.accepted)
        if control.mode == "on":
            assert control.verified == self.watcher.verified
        if control.mode == "off":
            assert control.verified == 0
        assert not control.requests.unadapted
        assert not control.requests.capped
        assert (control.requests.texts is not None) == (type(self).method == "ngram")
        assert not control.requests.texts


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{'async' if case[1] else 'sync'}-{case[2]}-{case[3]}")
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> type[Server]:
    method, asynchronous, mode, share = request.param
    tuning = tmp_path / "tuning.yaml"
    tuning.write_text(TUNING.format(mode=mode, share=share) + PATIENT)
    config = make_config(
        tmp_path,
        k=K,
        method=method,
        asynchronous=asynchronous,
        max_num_seqs=6,
        max_num_batched_tokens=48,
        num_blocks=26,
        max_model_len=160,
        tuning_file=tuning,
    )
    return type("Server", (Server,), {"config": config, "method": method, "turns": 0})


def test_counts_hold_and_nothing_is_left_behind(machine: type[Server]) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert machine.turns >= 250  # eight machines: 2,000 steps in all
