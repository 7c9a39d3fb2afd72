"""AwaitedPrefill: how much of the prompts a step is likely to carry, before vLLM has scheduled it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class AwaitedPrefill:
    """Estimates the prompts of each step, and remembers whether waiting ones were admitted at all.

    With its KV blocks used up, vLLM admits nobody, however many slots and tokens are left. After a step that could
    have admitted a request and didn't, those that wait are expected no more, until one is admitted.
    """

    def __init__(self) -> None:
        self._hoped = False  # the step that is being scheduled has room for a waiting request
        self._refused = False  # the latest one that had, admitted none

    def estimate(self, running: list[Any], waiting: Any, budget: int, slots: int) -> tuple[int, int]:
        """Tokens of prompts that fit into a step, and prompts that end in it; see :func:`awaited_prefill`."""
        under_way = awaited_prefill(running, (), budget, slots)
        self._hoped = bool(waiting) and slots > 0 and under_way[0] < budget
        if not self._hoped or self._refused:
            return under_way
        return awaited_prefill(running, waiting, budget, slots)

    def none_waits(self) -> None:
        """No prompt is under way or waits in the step that begins."""
        self._hoped = False

    def scheduled(self, admitted: int) -> None:
        """A step was scheduled, and admitted so many of the requests that waited."""
        if self._hoped or admitted:
            self._refused = not admitted
        self._hoped = False


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
