"""Marks these tests; those that need vLLM skip themselves where it isn't installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_scenes import PATIENT, PROMPTS, SCENES

HERE = Path(__file__).parent

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    code = (
        "import sys; from pathlib import Path; import tiny_models as t;"
        "target = t.write_target(Path(sys.argv[1])); t.write_draft(target, Path(sys.argv[2]))"
    )
    target, draft = folder / "target", folder / "draft"
    subprocess.run([sys.executable, "-c", code, target, draft], cwd=HERE, check=True, capture_output=True)
    return target, draft


@pytest.fixture(scope="session")
def run_engine(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    def run(
        speculative: dict[str, Any] | None,
        *,
        asynchronous: bool = False,
        scenes: list[str] = SCENES,
        adaptive: bool = True,
        tuning: str = "max_depth: 4\n",
        prompts: list[Any] = PROMPTS,
        **engine: Any,
    ) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("run")
        (folder / "tuning.yaml").write_text(tuning + PATIENT)
        settings = {
            "engine": {
                "model": str(models[0]), "dtype": "float32", "enforce_eager": True, "max_model_len": 192,
                "max_num_seqs": 4, "seed": 0, "block_size": 32, "disable_log_stats": False,
                **({"per_request_spec_decode_metrics": "summary"} if speculative else {}), **engine,
            },
            "speculative": speculative,
            "asynchronous": asynchronous,
            "prompts": prompts,
            "scenes": scenes,
            "environment": {"ADAPTIVE_SPEC_CONFIG": str(folder / "tuning.yaml")} if adaptive else {},
        }  # fmt: skip
        (folder / "settings.json").write_text(json.dumps(settings))
        environment = {k: v for k, v in os.environ.items() if k != "ADAPTIVE_SPEC_CONFIG"}
        environment |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(HERE),
            "VLLM_LOGGING_LEVEL": "INFO",
        }
        environment |= settings["environment"]
        command = [sys.executable, HERE / "engine_run.py", folder / "settings.json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, done.stdout[-3000:] + done.stderr[-3000:]
        result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
        result["log"] = done.stdout + done.stderr
        return result

    return run


@pytest.fixture(scope="session")
def reference(run_engine: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """No speculation, no plugin, plenty of room."""
    return run_engine(None, adaptive=False, scenes=["policy", "regex", "json"])
