"""What of a tuning file an engine of vLLM can have; vLLM itself isn't needed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adaptive_spec.config import TuningConfig, TuningError
from adaptive_spec.evidence import EVIDENCE
from adaptive_spec.vllm_plugin import plugin, vllm_tuning
from adaptive_spec.vllm_plugin.drafters import drafter_of

DEEP = {  # with the line and the key that name the deepest depth, which is over 4, and that depth
    "policy:\n  name: batch-threshold\n  table: [[1, 8, 6], [9, null, 1]]\n": (3, "policy.table", 6),
    "policy:\n  name: roofline-budget\n  depth_levels: [2, 4, 8]\n": (3, "policy.depth_levels", 8),
    "seed: 3\npolicy: {name: fixed, depth: 6}\n": (2, "policy.depth", 6),
    "\n# careful\nfallback: {depth: 6}\n": (3, "fallback.depth", 6),
    "max_depth: 5\nfallback:\n  depth: 5\n": (3, "fallback.depth", 5),
}
deep = pytest.mark.parametrize("text", DEEP, ids=[f"{key} in line {line}" for line, key, _ in DEEP.values()])


def load_tuning(file: str | None, most: int, method: str = "ngram", asynchronous: bool = False) -> TuningConfig:
    """What an engine makes of a file."""
    known = drafter_of(SimpleNamespace(method=method)).evidence(asynchronous)
    return vllm_tuning.load_tuning(file, most, known)


def check(error: TuningError, file: Path, text: str) -> None:
    line, key, _ = DEEP[text]
    (said,) = str(error).splitlines()
    assert said.startswith(f"{file}:{line}: {key}: ")
    assert f"num_speculative_tokens is 4 and cuts max_depth {TuningConfig.parse(text).max_depth} to it" in said
    assert "raise num_speculative_tokens, or lower the depths and max_depth" in said


@deep
def test_depths_beyond_vllms_own_are_told_with_file_line_and_remedy(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tuning.yaml"
    file.write_text(text)
    TuningConfig.load(file)
    with pytest.raises(TuningError) as error:
        load_tuning(str(file), 4)
    check(error.value, file, text)
    assert load_tuning(str(file), 8) == TuningConfig.load(file)


def test_all_depths_beyond_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tuning.yaml"
    file.write_text("fallback: {depth: 6}\npolicy: {name: fixed, depth: 6}\n")
    with pytest.raises(TuningError) as error:
        load_tuning(str(file), 4)
    first, second = str(error.value).splitlines()
    assert ":1: fallback.depth: " in first
    assert ":2: policy.depth: " in second


STAIRS = "max_depth: 6\ncost:\n  interpolation: staircase\n"


def test_a_measured_profile_s_interpolation_is_refused_since_none_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tuning.yaml"
    file.write_text(STAIRS)
    for load in (lambda: load_tuning(str(file), 8), lambda: front_end(file, monkeypatch, "ngram", 8)):
        with pytest.raises(TuningError) as error:
            load()
        assert str(error.value).startswith(f"{file}:3: cost.interpolation: staircase is for the profile")
        assert "leave it out, or name a saved profile with source: file" in str(error.value)
    file.write_text(STAIRS + "policy: {name: fixed, depth: 6}\n")
    with pytest.raises(TuningError) as error:
        load_tuning(str(file), 4)
    first, second = str(error.value).splitlines()
    assert ":3: cost.interpolation: " in first
    assert ":4: policy.depth: " in second
    file.write_text(STAIRS.replace("staircase", "linear"))
    assert load_tuning(str(file), 8) == TuningConfig.load(file)


@pytest.mark.parametrize("most", [1, 2, 4, 6, 8, 9])
@pytest.mark.parametrize("text", ["mode: on\n", "max_depth: 12\n", "max_depth: 3\n", *DEEP])
def test_whatever_a_file_says_it_fits_or_says_why(tmp_path: Path, text: str, most: int) -> None:
    file = tmp_path / "tuning.yaml"
    file.write_text(text)
    stands = TuningConfig.load(file)
    if text in DEEP and DEEP[text][-1] > most:
        with pytest.raises(TuningError, match=f"num_speculative_tokens is {most} and cuts"):
            load_tuning(str(file), most)
        return
    tuning = load_tuning(str(file), most)
    assert tuning.max_depth == min(stands.max_depth, most)
    assert TuningConfig.parse(tuning.dump()) == tuning  # valid as a whole
    assert tuning.model_copy(update={"max_depth": stands.max_depth}) == stands


def test_without_a_file_the_defaults_fit() -> None:
    assert load_tuning(None, 3) == TuningConfig(max_depth=3)


def front_end(file: Path, monkeypatch: pytest.MonkeyPatch, method: str, k: int, asynchronous: bool = False) -> Any:
    """What vLLM's front end makes of its configuration, long before a model is loaded."""
    monkeypatch.setenv(plugin.VARIABLE, os.path.relpath(file))
    monkeypatch.setattr(plugin, "_check_overrides_before_streams", lambda: None)
    made = SimpleNamespace(
        speculative_config=SimpleNamespace(method=method, num_speculative_tokens=k),
        scheduler_config=SimpleNamespace(scheduler_cls=None, async_scheduling=asynchronous),
        additional_config={},
    )
    return plugin._with_adaptive_scheduler(lambda _: made, object())


@deep
def test_the_front_end_stops_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    file = tmp_path / "tuning.yaml"
    file.write_text(text + "metrics: {enabled: false}\n")
    with pytest.raises(TuningError) as error:
        front_end(file, monkeypatch, "ngram", 4)
    check(error.value, file, text)
    own = front_end(file, monkeypatch, "ngram", 8).additional_config["adaptive_spec"]
    assert own == {"tuning_file": str(file), "max_depth": TuningConfig.load(file).max_depth}
    # Hidden states are no drafts: vLLM calls one of them speculative, and there is nothing to adapt.
    front_end(file, monkeypatch, "extract_hidden_states", 1)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("method", ["ngram", "draft_model", "suffix"])
def test_evidence_that_there_is_not_is_told_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, asynchronous: bool
) -> None:
    """In the front end already, and by what is known there: the method, and how steps are scheduled."""
    file = tmp_path / "tuning.yaml"
    there = {"last_accepted", "age"} | ({"matched_length"} if method == "ngram" and not asynchronous else set())
    for name in EVIDENCE:
        file.write_text(f"mode: on\nacceptance:\n  evidence: [age, {name}]\n".replace("[age, age]", "[age]"))
        for load in (
            lambda: load_tuning(str(file), 4, method, asynchronous),
            lambda: front_end(file, monkeypatch, method, 4, asynchronous),
        ):
            if name in there:
                load()
                continue
            with pytest.raises(TuningError) as error:
                load()
            assert str(error.value).startswith(f"{file}:3: acceptance.evidence: {name} isn't known of the drafts")
            assert str(error.value).endswith("last_accepted, age are")


@pytest.mark.parametrize("text", ["", " \n", "# mode: shadow\n"])
def test_a_file_that_was_cut_short_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """By the defaults, it would put depths into effect where they were only to be watched."""
    file = tmp_path / "tuning.yaml"
    file.write_text(text)
    with pytest.raises(TuningError, match="is empty"):
        load_tuning(str(file), 4)
    with pytest.raises(TuningError, match="is empty"):
        front_end(file, monkeypatch, "ngram", 4)
