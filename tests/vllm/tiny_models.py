"""Tiny random Llamas on disk, one of which drafts for another, with a tokenizer of one byte a token."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_LENGTH = 512
SPECIAL = ("<s>", "</s>")


def write_target(folder: Path) -> Path:
    """A model whose greedy text often repeats itself, so that lookup drafts are accepted and rejected."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(_config(layers=3))
    with torch.no_grad():
        model.lm_head.weight.mul_(4.0)  # scores lie far apart, so that rounding decides nothing
    _save(model, folder)
    return folder


def write_draft(target: Path, folder: Path) -> Path:
    """The target without its last layer: right now and then."""
    whole = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    model = LlamaForCausalLM(_config(layers=2))
    known = model.state_dict()
    model.load_state_dict({name: tensor for name, tensor in whole.state_dict().items() if name in known})
    _save(model, folder)
    return folder


def _config(layers: int) -> LlamaConfig:
    vocabulary = len(pre_tokenizers.ByteLevel.alphabet()) + len(SPECIAL)
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # what the attention kernels on a CPU can do
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        initializer_range=0.08,
    )


def _save(model: LlamaForCausalLM, folder: Path) -> None:
    model.to(torch.float32).save_pretrained(folder)
    tokens = {token: i for i, token in enumerate((*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())))}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1])
    fast.save_pretrained(folder)
    generation = {"bos_token_id": 0, "eos_token_id": 1}
    (folder / "generation_config.json").write_text(json.dumps(generation))
