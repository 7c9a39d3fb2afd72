"""Which of vLLM's running requests a step may carry, where pipeline stages work on several batches at once."""

from __future__ import annotations

from typing import Any


def startable(running: list[Any], step: int) -> list[Any]:
    """The requests that may be scheduled; the others are in a batch whose results are still to come.

    Parameters
    ----------
    running : list of Request
    step : int
        Number of the step that begins, as vLLM counts; with asynchronous scheduling and the V2 runner, a request
        waits for the step that it was told.
    """
    return [request for request in running if _has_work(request) and _may_begin(request, step)]


def _has_work(request: Any) -> bool:
    known: int = request.num_tokens + len(request.spec_token_ids) + request.num_output_placeholders
    computed: int = request.num_computed_tokens
    return known > computed


def _may_begin(request: Any, step: int) -> bool:
    eligible: int = getattr(request, "next_decode_eligible_step", 0)
    return eligible <= step
