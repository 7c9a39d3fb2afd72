"""Measures what a step costs on this machine, by timing the engine's own passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Literal

import numpy as np
import torch

from adaptive_spec.cost import Profile
from adaptive_spec.engine.kv_memory import give_back, kv_cache_blocks
from adaptive_spec.engine.model import Model
from adaptive_spec.engine.packing import pack
from adaptive_spec.engine.passes import Passes, buckets_of
from adaptive_spec.kernels import backend, ops

ROWS_PER_SEQUENCE = 4  # between a few sequences drafted deep and many drafted not at all
CONTEXT = 128  # tokens in the KV cache of each sequence
LARGEST_TIMED = 128  # on a CPU; above, the line through the last two points goes on: the machine is compute-bound
BEYOND = 2  # on a GPU, timed up to so many times the largest captured pass
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
    max_depth: int | None = None,
) -> Profile:
    """Time target passes with verification at 1, 2, 3, 4, 6, 8, ... positions and two lengths of context.

    On a GPU, where passes are padded to buckets, every bucket is a step of a staircase and is timed full; passes too
    large for any are timed as they are.

    Before that, the model makes ready for every number of positions, so that no step of a policy that changes its
    depths pays for what a fixed depth never meets.

    Parameters
    ----------
    most_positions : int
        The most that a step can carry; on a CPU at most 128 are timed.
    interpolation : {"staircase", "linear"}
        Between the points, where passes are not padded.
    max_depth : int, optional
        The most drafts of a sequence, which a GPU's tiles depend on.
    """
    profile = _measured(_Passes(model, block_size, most_positions, max_depth), interpolation, repeats, clock)
    give_back(model.device)  # the cache and the graphs that were timed
    return profile


def _measured(
    passes: _Passes, interpolation: Literal["staircase", "linear"], repeats: int, clock: Callable[[], float]
) -> Profile:
    positions, staircase_until = passes.points(), None
    if passes.buckets is not None:
        interpolation, staircase_until = "staircase", min(passes.buckets.largest.positions, positions[-1])
    passes.model.prepare(positions[-1])
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
        staircase_until,
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

    def __init__(self, model: Model, block_size: int, most_positions: int, max_depth: int | None) -> None:
        self.model = model
        self.block_size = block_size
        self._wanted = most_positions
        self.buckets = buckets_of(model)
        self.most_positions = self.points()[-1]
        self.most_sequences = -(-self.most_positions // ROWS_PER_SEQUENCE)
        self._blocks = self._blocks_of(CONTEXT)
        self._long_blocks = self._blocks_of(LONG_CONTEXT)
        blocks = max(self._blocks * self.most_sequences, self._long_blocks * CONTEXT_SEQUENCES)
        # Where memory is short, sequences share blocks: what they hold means nothing.
        block_bytes = model.new_kv_cache(1, block_size).num_bytes
        cache = model.new_kv_cache(kv_cache_blocks(block_bytes, blocks, model.device), block_size)
        self._passes = Passes(model, cache, max_depth)

    def points(self) -> list[int]:
        """The numbers of positions to be timed."""
        if self.buckets is None:
            return _points(min(self._wanted, LARGEST_TIMED))
        steps = [n for n in self.buckets.positions if n < self._wanted]
        steps = list(self.buckets.positions[: len(steps) + 1])  # the last one holds all that is wanted
        beyond = min(self._wanted, BEYOND * self.buckets.largest.positions)
        return steps + [beyond] * (beyond > steps[-1])

    def _blocks_of(self, context: int) -> int:
        return -(-(self.fitting(context) + ROWS_PER_SEQUENCE) // self.block_size)

    def fitting(self, context: int) -> int:
        """The context, or the longest that the model's length allows."""
        return min(context, self.model.config.max_model_len - ROWS_PER_SEQUENCE)

    def run(self, positions: int, sequences: int, context: int) -> None:
        """Run and verify `positions` rows of `sequences` sequences, as even as they go; return when it is done."""
        width = np.full(sequences, positions // sequences)
        width[: positions % sequences] += 1
        blocks = self._blocks_of(context)
        table = np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)
        table %= self._passes.cache.num_blocks
        start = np.full(sequences, context)
        tokens = np.arange(positions) % self.model.config.vocab_size
        logits = self._passes.forward(pack(tokens, start, width, table, np.arange(positions), self.block_size))
        cu = np.zeros(sequences + 1, dtype=np.int32)
        np.cumsum(width, out=cu[1:])
        draft = torch.zeros(positions - sequences, dtype=torch.int32, device=logits.device)
        with backend.trusted():
            count = ops.verify_greedy(logits, torch.from_numpy(cu).to(logits.device), draft, ROWS_PER_SEQUENCE)[1]
        count.cpu()  # waits for the device
