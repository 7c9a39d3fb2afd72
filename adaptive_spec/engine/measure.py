"""Measures what a step costs on this machine, by timing the engine's own passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
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
LONG_CONTEXT = 512  # what a KV token adds shows between CONTEXT and this
CONTEXT_SEQUENCES = 8


def measure_profile(
    model: Model,
    *,
    most_positions: int,
    block_size: int,
    interpolation: Literal["staircase", "linear"] = "linear",
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Time target passes with verification at 1, 2, 3, 4, 6, 8, ... positions and two lengths of context.

    Before that, the model makes ready for every number of positions, so that no step of a policy that changes its
    depths pays for what a fixed depth never meets.

    Parameters
    ----------
    most_positions : int
        The most that a step can carry; at most 128 are timed.
    """
    positions = _points(min(most_positions, LARGEST_TIMED))
    model.prepare(positions[-1])
    passes = _Passes(model, block_size, positions[-1])
    context = passes.fitting(CONTEXT)
    curve = Profile.measure(
        lambda n: passes.run(n, -(-n // ROWS_PER_SEQUENCE), context), positions, repeats=repeats, clock=clock
    )
    per_token, per_pair = _context_cost(passes, context, passes.fitting(LONG_CONTEXT), 2 * repeats, clock)
    sequences = -(-curve.positions // ROWS_PER_SEQUENCE)
    seconds = curve.seconds - context * (per_token * sequences + per_pair * curve.positions)
    # Timing noise may not turn the rest negative.
    return Profile(
        curve.positions,
        np.maximum(seconds, 0.1 * curve.seconds),
        interpolation,
        context_seconds_per_token=per_token,
        attention_seconds_per_pair=per_pair,
    )


def _points(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... up to `most`."""
    doubled = [2**i for i in range(most.bit_length())]
    between = [3 * n // 2 for n in doubled[1:] if 3 * n // 2 <= most]
    return sorted(doubled + between)


def _context_cost(
    passes: _Passes, short: int, long: int, repeats: int, clock: Callable[[], float]
) -> tuple[float, float]:
    """Seconds that a KV token adds to a pass, and seconds for each position that attends to it.

    From passes of one and of several positions a sequence, at a short and a long context, in turn.
    """
    sequences = min(CONTEXT_SEQUENCES, passes.most_sequences)
    widths = (1, ROWS_PER_SEQUENCE)
    if long < 2 * short or widths[-1] * sequences > passes.most_positions:
        return 0.0, 0.0  # texts are too short for it to matter
    cases = [(width, context) for width in widths for context in (short, long)]
    taken: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    for cycle in range(repeats + 1):
        for width, context in cases if cycle % 2 == 0 else reversed(cases):
            begin = clock()
            passes.run(width * sequences, sequences, context)
            if cycle:  # the first faults the cache in
                taken[width, context].append(clock() - begin)
    tokens = sequences * (long - short)
    narrow, wide = (max(median(taken[w, long]) - median(taken[w, short]), 0.0) / tokens for w in widths)
    per_pair = max(wide - narrow, 0.0) / (widths[1] - widths[0])
    return max(narrow - per_pair, 0.0), per_pair


class _Passes:
    """Passes over made-up tokens, on a KV cache of their own."""

    def __init__(self, model: Model, block_size: int, most_positions: int) -> None:
        self.model = model
        self.block_size = block_size
        self.most_positions = most_positions
        self.most_sequences = -(-most_positions // ROWS_PER_SEQUENCE)
        self._blocks = -(-(self.fitting(LONG_CONTEXT) + ROWS_PER_SEQUENCE) // block_size)
        self._cache = model.new_kv_cache(self._blocks * self.most_sequences, block_size)

    def fitting(self, context: int) -> int:
        """The context, or the longest that the model's length allows."""
        return min(context, self.model.config.max_model_len - ROWS_PER_SEQUENCE)

    def run(self, positions: int, sequences: int, context: int) -> None:
        """Run and verify `positions` rows of `sequences` sequences, as even as they go."""
        width = np.full(sequences, positions // sequences)
        width[: positions % sequences] += 1
        table = np.arange(sequences * self._blocks, dtype=np.int32).reshape(sequences, self._blocks)
        start = np.full(sequences, context)
        tokens = np.arange(positions) % self.model.config.vocab_size
        rows = np.arange(positions)
        batch = pack(tokens, start, width, table, rows, self.block_size, self.model.device)
        logits = self.model.forward(batch, self._cache)
        cu = np.zeros(sequences + 1, dtype=np.int32)
        np.cumsum(width, out=cu[1:])
        draft = torch.zeros(positions - sequences, dtype=torch.int32, device=logits.device)
        # Waits for the device.
        ops.verify_greedy(logits, torch.from_numpy(cu).to(logits.device), draft, ROWS_PER_SEQUENCE)[1].cpu()
