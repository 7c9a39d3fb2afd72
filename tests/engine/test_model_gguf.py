"""GGUF files, written here as llama.cpp's converter writes them, against the transformers model they came from."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from paged_driver import PagedDriver
from test_model import CASES, VOCAB, build

from adaptive_spec.engine.model import load_model
from adaptive_spec.engine.model_config import ModelConfig, RopeScaling
from adaptive_spec.engine.weights import _GGUF_NAMES, _GGUF_TOP

ARCHITECTURES = {"Llama": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3"}
PIECES = ["a", "b", "ab", *(chr(200 + i) for i in range(VOCAB - 3))]
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of a Llama head's rows: the two halves of each rotary pair side by side."""
    shaped = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return shaped.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(reference: object, family: str, path: Path, **change: object) -> Path:
    """Write a transformers model as GGUF; `change` replaces metadata by key (None leaves it out)."""
    c = reference.config
    name = str(change.pop("architecture", ARCHITECTURES[family]))
    writer = gguf.GGUFWriter(path, name)
    values = {
        "block_count": c.num_hidden_layers,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
    } | change
    for key, value in values.items():
        if isinstance(value, int):
            writer.add_uint32(f"{name}.{key}", value)
        elif isinstance(value, str):
            writer.add_string(key, value)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    if "tokenizer.ggml.model" not in change:
        writer.add_tokenizer_model("gpt2")
    writer.add_token_list(PIECES)
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges([f"{PIECES[0]} {PIECES[1]}"])  # PIECES[2] is their sum
    writer.add_eos_token_id(2)
    names = {hf: ours for ours, hf in _GGUF_NAMES.items()}
    top = {hf: ours for ours, hf in _GGUF_TOP.items()}
    for hf, tensor in reference.state_dict().items():
        array = tensor.float().numpy()
        if hf in top:
            if hf != "lm_head.weight" or not c.tie_word_embeddings:
                writer.add_tensor(top[hf], array)
            continue
        _, _, layer, *middle, kind = hf.split(".")
        ours = names[".".join(middle)]
        if family == "Llama" and ours in ("attn_q", "attn_k"):
            array = permute(array, c.num_attention_heads if ours == "attn_q" else c.num_key_value_heads)
        writer.add_tensor(f"blk.{layer}.{ours}.{kind}", np.ascontiguousarray(array))
    if c.rope_parameters.get("rope_type") == "llama3":
        frequencies = ModelConfig.from_hf(c.to_dict() | {"architectures": ["LlamaForCausalLM"]}, {}, "")
        plain = c.rope_parameters["rope_theta"] ** (-np.arange(0, frequencies.head_dim, 2) / frequencies.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / frequencies.inverse_frequencies()).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "case", ["llama-gqa-tied", "llama-mha-untied", "llama-llama3-rope", "llama-bias", "qwen2", "qwen3"]
)
def test_logits_equal_the_converted_model(case: str, tmp_path: Path) -> None:
    reference = build(case, tmp_path)
    file = write_gguf(reference, CASES[case][0], tmp_path / "tiny.gguf")
    model, tokenizer = load_model(file)
    assert model.dtype == torch.float32
    with torch.inference_mode():
        want = reference(torch.tensor([TEXT])).logits[0]
    torch.testing.assert_close(PagedDriver(model).feed([(0, TEXT)])[0], want, atol=2e-4, rtol=2e-4)
    assert model.config.eos_token_ids == (2,)
    assert tokenizer.encode("bab") == [1, 2]


def test_llama3_factors_come_from_the_file() -> None:
    config = ModelConfig("LlamaForCausalLM", 9, 8, 8, 1, 1, 1, 8, 64)
    scaled = ModelConfig(
        "LlamaForCausalLM", 9, 8, 8, 1, 1, 1, 8, 64,
        rope_scaling=RopeScaling("llama3", frequency_factors=(1.0, 1.0, 2.0, 8.0)),
    )  # fmt: skip
    ratio = config.inverse_frequencies() / scaled.inverse_frequencies()
    np.testing.assert_allclose(ratio, [1, 1, 2, 8])
