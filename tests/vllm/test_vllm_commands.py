"""The commands that measure a real vLLM, on a tiny model: every setting does what its name says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from vllm_scenes import NGRAM, PROMPTS

from adaptive_spec.experiments.vllm_engine import EngineProcess

SMALL = {"dtype": "float32", "enforce_eager": True, "max_model_len": 192, "block_size": 32, "disable_log_stats": False}
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
TOKENS = [[2 + byte for byte in text.encode()] for text in PROMPTS]


@pytest.fixture(scope="module")
def engine(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("engine")
    tuning = folder / "tuning.yaml"
    tuning.write_text("max_depth: 4\npolicy: {name: fixed, depth: 3}\n")
    settings = {"model": str(models[0]), "max_num_seqs": 4, "enable_prefix_caching": False, **SMALL}
    with EngineProcess(settings, NGRAM, log=folder / "log", tuning=tuning, environment=CPU) as process:
        assert process.started["scheduler"] == "AdaptiveScheduler"
        yield process


def test_settings_that_share_an_engine(engine: EngineProcess, tmp_path: Path) -> None:
    def run(**how: Any) -> dict[str, Any]:
        return engine.run(TOKENS, 4, 40, **how)

    drafted = [run(schedule=[(1, 4, depth)])["drafted"] for depth in (0, 1, 4)]
    assert drafted[0] == 0 < drafted[1] < drafted[2]
    table = run(schedule=[(1, 3, 4), (4, 4, 0)])  # only the last three, after the others, have drafts
    assert 0 < table["drafted"] < drafted[2]
    stock = run()
    assert stock["drafted"] == drafted[2]  # without a table, vLLM drafts its configured number
    off, on = run(mode="off"), run(mode="on", save=tmp_path / "learned")
    assert off["drafted"] == 0
    assert drafted[1] < on["drafted"] < drafted[2]
    assert {r["tokens"] for r in (table, stock, off, on)} == {stock["tokens"]}  # the same greedy texts
    assert on["steps"] < off["steps"]
    assert run(mode="on", load=tmp_path / "learned")["tokens"] == on["tokens"]
    assert run(schedule=[(1, 4, 1)])["drafted"] == drafted[1]  # nothing is left of the plugin


def test_a_run_that_fails_says_why(engine: EngineProcess, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"the engine failed: .*none such"):
        engine.run(TOKENS, 4, 10, mode="on", load=tmp_path / "none such")
    assert engine.run(TOKENS[:1], 1, 5)["tokens"] == 5


def test_an_engine_ends_with_whoever_asked_it(models: tuple[Path, Path], tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path;"
        "from adaptive_spec.experiments.vllm_engine import EngineProcess;"
        "settings, log, tokens, environment = json.loads(sys.argv[1]);"
        "engine = EngineProcess(settings, None, log=Path(log), environment=environment);"
        "print(engine.pid, flush=True);"
        "engine.run(tokens * 10_000, 4, 100)"
    )
    given = {"model": str(models[0]), "max_num_seqs": 4, **SMALL}, str(tmp_path / "log"), TOKENS, CPU
    command = [sys.executable, "-c", code, json.dumps(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        engine = Path("/proc", asking.stdout.readline().strip())
        assert engine.exists()
        time.sleep(1)  # it is at work
        asking.terminate()
    deadline = time.monotonic() + 60
    while _runs(engine):
        assert time.monotonic() < deadline, "the engine goes on alone"
        time.sleep(0.1)


def _runs(process: Path) -> bool:
    """Whether a process of ``/proc`` is still there, and not just waiting for somebody to read how it ended."""
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_sweep_prints_a_table_within_its_time(models: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    command = [
        sys.executable, "-m", "adaptive_spec.experiments.gpu.vllm_sweep", str(models[0]), "--speculative",
        json.dumps(NGRAM), "--concurrency", "1,3", "--fixed", "1,4", "--max-tokens", "8", "--rounds", "1",
        "--engine", json.dumps(SMALL), "--out", str(tmp_path), "--json",
        "--file", str(tmp_path / "prompts.txt"),
    ]  # fmt: skip
    done = subprocess.run(command, env=os.environ | CPU, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    settings = {"none", "fixed 1", "fixed 4", "dynamic-sd", "plugin"}
    left_out = {(entry["setting"], entry["concurrency"]): entry["why"] for entry in report["left_out"]}
    for concurrency in (1, 3):
        measured = set(report["tokens_per_second"][str(concurrency)])
        assert measured == settings - {setting for setting, c in left_out if c == concurrency}
    assert "doesn't have it for this drafter" in left_out["adaptive verification", 0]  # it needs a GPU
    assert report["schedule"][0][0] == 1


def test_what_the_plugin_costs_is_measured_on_schedulers_that_do_the_same_work() -> None:
    """The command stops if one of them drafts less than stock."""
    command = [sys.executable, "-m", "adaptive_spec.experiments.vllm_overhead", "--json"]
    command += ["--requests", "12", "--steps", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.strip().splitlines()[-1])
    assert set(rows) == {"ngram, synchronous", "draft_model, synchronous", "draft_model, asynchronous"}
    for row in rows.values():
        assert {"stock", "hooks", "plugin", "hooks above stock", "plugin above stock"} <= set(row)
        assert all(row[name] > 0 for name in ("stock", "hooks", "plugin"))
