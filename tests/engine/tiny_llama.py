"""A tiny random Llama in Hugging Face's form, with a tokenizer of one letter a token."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from adaptive_spec.cost import Profile
from adaptive_spec.engine.llm import LLM

LETTERS = string.ascii_lowercase[:21] + " .,"
EOS = len(LETTERS)
VOCABULARY = len(LETTERS) + 1
MAX_LENGTH = 256
# Where the engine's tests run.
PLACES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def write_tiny_llama(folder: Path, seed: int = 0, sharpness: float = 3.0, vocabulary: int = VOCABULARY) -> Path:
    """Write a model whose text repeats itself often, so that lookup drafts are accepted and rejected."""
    hidden, inner, layers, heads, kv_heads, head_dim = 32, 64, 2, 4, 2, 8
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    tensors = {
        "model.embed_tokens.weight": random(vocabulary, hidden),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": random(vocabulary, hidden, scale=sharpness / hidden**0.5),
    }
    for i in range(layers):
        at = f"model.layers.{i}."
        for name, rows, columns in (
            ("self_attn.q_proj", heads * head_dim, hidden),
            ("self_attn.k_proj", kv_heads * head_dim, hidden),
            ("self_attn.v_proj", kv_heads * head_dim, hidden),
            ("self_attn.o_proj", hidden, heads * head_dim),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            tensors[f"{at}{name}.weight"] = random(rows, columns, scale=1.5 / columns**0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = torch.ones(hidden)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokens = {letter: i for i, letter in enumerate(LETTERS)} | {"<eos>": EOS}
    tokens |= {f"<extra{i}>": i for i in range(len(tokens), vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "eos_token": "<eos>",
                "chat_template": "{% for m in messages %}{{ m['content'] }}.{% endfor %}",
            }
        )
    )
    return folder


def make_tiny_llm(folder: Path, **settings: Any) -> LLM:
    """An engine on it with a cost curve that is given, so that none is timed."""
    cost = Profile([1, 8, 64, 512], [0.010, 0.011, 0.020, 0.120])
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "num_kv_blocks": 200, "cost": cost, **settings}
    return LLM(folder, **settings)
