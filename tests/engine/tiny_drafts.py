"""Tiny draft models for a tiny target: one that resembles it, one of another vocabulary; and what they would draft."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from adaptive_spec.engine.model import Model
from adaptive_spec.engine.packing import pack


def write_similar(folder: Path, target: Path, noise: float = 0.1, seed: int = 1) -> Path:
    """Write the target with noise on all of its weights, of so many parts of their own size."""
    shutil.copytree(target, folder)
    tensors = load_file(target / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        tensors[name] = tensor + noise * tensor.std() * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_renamed(folder: Path, target: Path) -> Path:
    """Write the target with two of its tokens swapped: a vocabulary of the same size, and another one."""
    shutil.copytree(target, folder)
    path = folder / "tokenizer.json"
    path.write_text(
        path.read_text().replace('"a": 0', '"?": 0').replace('"b": 1', '"a": 1').replace('"?": 0', '"b": 0')
    )
    return folder


def next_logits(model: Model, tokens: list[int], last: int = 1) -> torch.Tensor:
    """Logits behind each of the last tokens, shape (last, V), by one pass over the whole text."""
    n = len(tokens)
    blocks = -(-n // 16)
    batch = pack(
        np.array(tokens), np.array([0]), np.array([n]), np.arange(blocks, dtype=np.int32)[None],
        np.arange(n - last, n), 16, model.device,
    )  # fmt: skip
    return model.forward(batch, model.new_kv_cache(blocks, 16)).clone()
