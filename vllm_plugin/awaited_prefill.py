"""How much of the prompts a step is likely to carry, before vLLM has scheduled it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def awaited_prefill(running: list[Any], waiting: Iterable[Any], budget: int, slots: int) -> tuple[int, int]:
    """Tokens of prompts that fit into a step, and prompts that end in it.

    Parameters
    ----------
    running : list of Request
        Those whose prompt is in part in the KV cache go first, as vLLM has it.
    waiting : iterable of Request
        In the order in which they will be admitted.
    budget : int
        Tokens that the step may carry beside what its decoding requests need.
    slots : int
        Waiting requests that may be admitted.

    Notes
    -----
    An estimate: prefixes that will be found in the cache, and KV blocks that will be lacking, are not known here.
    """
    tokens = ends = 0
    for request in running:
        if request.is_prefill_chunk and tokens < budget:
            left = request.num_tokens - request.num_computed_tokens
            tokens += left
            ends += tokens <= budget
    for request in waiting:
        if slots <= 0 or tokens >= budget:
            break
        slots -= 1
        tokens += request.num_tokens - request.num_computed_tokens
        ends += tokens <= budget
    return max(min(tokens, budget), 0), ends
