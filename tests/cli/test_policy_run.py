"""One policy's run over prompts: what is timed under preemption, what is unlearned, what went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from adaptive_spec.cli.policy_run import run_policy
from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.drafters import make_drafter
from adaptive_spec.engine.sampling_params import SamplingParams

FIXED = TuningConfig.model_validate({"policy": {"name": "fixed", "depth": 4}, "guard": {"enabled": False}})
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


class Ticks:
    """A clock that advances by a second whenever it is read."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_preempted_text_is_timed_from_its_first_token(tiny_model: Path) -> None:
    from tiny_llama import make_tiny_llm

    llm = make_tiny_llm(tiny_model, block_size=8, num_kv_blocks=14, clock=Ticks(), enable_prefix_caching=False)
    began: dict[int, float] = {}
    right: list[float] = []
    restarts = 0

    def watch(report: object) -> None:  # the clock was read once, by the run's own observer, just before
        nonlocal restarts
        for text in report.started:  # type: ignore[attr-defined]
            restarts += text.id in began
            began.setdefault(text.id, llm.clock.now)
        right.extend((llm.clock.now - began[text.id]) / 39 for text in report.finished)  # type: ignore[attr-defined]

    run = run_policy(llm, FIXED, ["abcabc"[i:] + "de" * 8 for i in range(5)], GREEDY, 5, observer=watch)
    assert restarts > 0
    assert run.tpot_seconds == pytest.approx(right)


def test_every_run_begins_with_a_drafter_that_has_seen_no_answer(tiny_model: Path) -> None:
    from tiny_llama import make_tiny_llm

    llm = make_tiny_llm(tiny_model, drafter=make_drafter("corpus_ngram", online=True))
    runs = [run_policy(llm, FIXED, ["abc", "hello", "q"], GREEDY, 2) for _ in range(2)]
    assert runs[0].accepted > 0
    assert (runs[0].drafted, runs[0].accepted) == (runs[1].drafted, runs[1].accepted)


def test_what_failed_is_counted(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny_llama import make_tiny_llm

    llm = make_tiny_llm(tiny_model)
    assert not run_policy(llm, FIXED, ["abcabc"], GREEDY, 1).faults

    def broken(*_: object) -> None:
        raise ZeroDivisionError("drafts")

    monkeypatch.setattr(llm.drafter, "draft", broken)
    faults = run_policy(llm, FIXED, ["abcabc"], GREEDY, 1).faults
    assert faults == {"the drafter failed and was dropped (ZeroDivisionError: drafts)": 1}
    monkeypatch.setattr("adaptive_spec.engine.detokenizer.Detokenizer.push", broken)
    assert run_policy(llm, FIXED, ["abcabc"], GREEDY, 1).faults["an answer failed (ZeroDivisionError: drafts)"] == 1
