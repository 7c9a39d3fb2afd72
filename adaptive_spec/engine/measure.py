"""Measures what a step costs on this machine, by timing the engine's own passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from adaptive_spec.cost import Profile
from adaptive_spec.engine.model import Model
from adaptive_spec.engine.packing import pack
from adaptive_spec.kernels import ops

ROWS_PER_SEQUENCE = 4  # between a few sequences drafted deep and many drafted not at all
CONTEXT = 128  # tokens in the KV cache of each sequence
LARGEST_TIMED = 128  # above, the line through the last two points goes on: the machine is compute-bound


def measure_profile(
    model: Model,
    *,
    most_positions: int,
    block_size: int,
    interpolation: Literal["staircase", "linear"] = "linear",
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Time target passes with verification at 1, 2, 4, ... positions, on a KV cache of their own.

    Parameters
    ----------
    most_positions : int
        The most that a step can carry; at most 128 are timed.
    """
    positions = [1]
    while positions[-1] * 2 <= min(most_positions, LARGEST_TIMED):
        positions.append(positions[-1] * 2)
    context = min(CONTEXT, model.config.max_model_len - ROWS_PER_SEQUENCE)
    blocks = -(-(context + ROWS_PER_SEQUENCE) // block_size)
    most_sequences = -(-positions[-1] // ROWS_PER_SEQUENCE)
    cache = model.new_kv_cache(blocks * most_sequences, block_size)

    def run(n: int) -> None:
        sequences = -(-n // ROWS_PER_SEQUENCE)
        width = np.full(sequences, n // sequences)
        width[: n % sequences] += 1
        table = np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)
        start = np.full(sequences, context)
        tokens = np.arange(n) % model.config.vocab_size
        logits = model.forward(pack(tokens, start, width, table, np.arange(n), block_size, model.device), cache)
        rows = np.zeros(sequences + 1, dtype=np.int32)
        np.cumsum(width, out=rows[1:])
        draft = torch.zeros(n - sequences, dtype=torch.int32, device=logits.device)
        cu = torch.from_numpy(rows).to(logits.device)
        ops.verify_greedy(logits, cu, draft, ROWS_PER_SEQUENCE)[1].cpu()  # waits for the device

    return Profile.measure(run, positions, repeats=repeats, clock=clock, interpolation=interpolation)
