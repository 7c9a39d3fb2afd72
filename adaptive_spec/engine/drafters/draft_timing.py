"""Times a draft model's passes: seconds of each token of depth, and of each position that it catches up on."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from adaptive_spec.cost import DraftCost
from adaptive_spec.step import IntArray

if TYPE_CHECKING:
    from adaptive_spec.engine.drafters.draft_model import DraftModel

CONTEXT = 128  # tokens of each text
DEPTH = 2  # drafts that are timed together
REPEATS = 3


def measure_draft_cost(drafter: DraftModel, most_sequences: int, longest: int, clock: Callable[[], float]) -> DraftCost:
    """Time drafting for 1, 2, 4, ... texts, and one text's catching up.

    Parameters
    ----------
    drafter : DraftModel
        Started, without texts.
    most_sequences : int
        Texts that it may have to draft for at once.
    longest : int
        Tokens that a text may have, and for which the cache has room.
    clock : callable
        Seconds.

    Returns
    -------
    DraftCost
        Sequential: nothing for depth 0, and seconds for each token of depth at each number of texts.
    """
    context = max(min(CONTEXT, longest - DEPTH), 2)
    rng = np.random.default_rng(0)
    sequences = sorted({min(2**i, most_sequences) for i in range((most_sequences - 1).bit_length() + 1)})
    each: list[float] = []
    for count in sequences:
        texts = [(f"timing {i}", rng.integers(0, drafter.vocab_size, context).tolist()) for i in range(count)]
        for id, tokens in texts:
            drafter.add(id, tokens)
        ids = [id for id, _ in texts]
        drafter.skip(ids)  # all of them are offered for, however little may be caught up on in a step
        depth = drafter.offer(ids, np.full(count, DEPTH, dtype=np.int64)).count
        if (depth == DEPTH).all():
            drafter.skip(ids)  # now that they have blocks
            each.append(_time(drafter, ids, depth, clock) / DEPTH)
        for id in ids:
            drafter.remove(id)
        if (depth < DEPTH).any():  # the cache holds no more
            break
    if not each:
        return DraftCost.free()
    one = np.ones(1, dtype=np.int64)
    catching_up = []
    for i in range(REPEATS + 1):
        id = f"timing {i}"
        drafter.add(id, rng.integers(0, drafter.vocab_size, context).tolist())
        drafter.offer([id], one)
        begin = clock()
        drafter.draft([id], one)
        catching_up.append(clock() - begin)
        drafter.remove(id)
    lag_position = max(median(catching_up[1:]) - each[0], 0.0) / (context - 1)
    none = (0.0,) * len(each)
    return DraftCost(tuple(sequences[: len(each)]), none, none, tuple(each), lag_position=lag_position)


def _time(drafter: DraftModel, ids: list[str], depth: IntArray, clock: Callable[[], float]) -> float:
    """Median seconds of drafting for texts that don't lag behind; the first time faults the caches in."""
    taken = []
    for _ in range(REPEATS + 1):
        begin = clock()
        drafter.draft(ids, depth)
        taken.append(clock() - begin)
    return median(taken[1:])
