"""`bench` with a tuning file: what it leaves alone, how policies are seeded, what it warns of."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from commands import ENGINE, refused, run_json

from adaptive_spec.cli import bench, policy_run

pytest.importorskip("torch")


def bench_arguments(tiny_model: Path, prompt_file: Path, *more: str) -> list[str]:
    arguments = ["bench", "--file", str(prompt_file), "--model", str(tiny_model), "--max-tokens", "20", *ENGINE]
    return [*arguments, "--num-prompts", "3", "--concurrency", "2", "--rounds", "1", *more]


def test_bench_leaves_a_deployment_s_state_and_port_alone(
    tiny_model: Path, prompt_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client")
    state, tuning = tmp_path / "state.npz", tmp_path / "tuning.yaml"
    state.write_bytes(b"a deployment's own")
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        tuning.write_text(f"learned: {{file: {state}}}\nmetrics: {{port: {port}}}\n", encoding="utf-8")
        arguments = bench_arguments(tiny_model, prompt_file, "--tuning", str(tuning))
        document = run_json([*arguments, "--policies", "fixed:2,acceptance-bandit"], capsys)
    assert len(document["results"]) == 2
    assert state.read_bytes() == b"a deployment's own"


@pytest.mark.parametrize(
    ("max_depth", "policies", "played"),
    [
        (16, ["--policies", "none,fixed:12"], ["none", "fixed:12"]),
        (2, [], ["none", "fixed:1", "fixed:2", "batch-threshold", "acceptance-bandit", "roofline-budget"]),
    ],
)
def test_bench_plays_what_the_tuning_s_max_depth_allows(
    max_depth: int,
    policies: list[str],
    played: list[str],
    tiny_model: Path,
    prompt_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tuning = tmp_path / "tuning.yaml"
    tuning.write_text(f"max_depth: {max_depth}\n", encoding="utf-8")
    document = run_json([*bench_arguments(tiny_model, prompt_file, "--tuning", str(tuning)), *policies], capsys)
    assert [result["policy"] for result in document["results"]] == played


def test_bench_seeds_the_policies_of_a_round_alike_and_the_rounds_apart(
    tiny_model: Path, prompt_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def play_policy(llm: Any, tuning: Any, *arguments: Any, **named: Any) -> Any:
        seeds.append(tuning.seed)
        return policy_run.play_policy(llm, tuning, *arguments, **named)

    monkeypatch.setattr(bench, "play_policy", play_policy)
    arguments = bench_arguments(tiny_model, prompt_file, "--policies", "none,fixed:2", "--seed", "5")
    run_json([*arguments, "--rounds", "3"], capsys)
    assert seeds == [5, 5, 6, 6, 7, 7]


def test_bench_warns_of_what_failed(
    tiny_model: Path, prompt_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("drafts")

    monkeypatch.setattr("adaptive_spec.engine.drafters.prompt_lookup.PromptLookup.draft", broken)
    document = run_json(bench_arguments(tiny_model, prompt_file, "--policies", "none,fixed:2"), capsys)
    said = "fixed:2, all, 2 in flight: the drafter failed and was dropped (ZeroDivisionError: drafts): 1 times"
    assert [warning for warning in document["warnings"] if warning.startswith(said)]
    assert not [warning for warning in document["warnings"] if warning.startswith("none, ")]


def test_bench_checks_all_prompts_before_it_runs_one(
    tiny_model: Path, prompt_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "run_policy", None)
    prompt_file.write_text(json.dumps({"prompt": "a bad cab"}) + "\n" + json.dumps({"prompt": "a" * 300}))
    code, line = refused(bench_arguments(tiny_model, prompt_file), capsys)
    assert code == 1
    assert "of all: the prompt has 301 tokens" in line
