"""StepReport: what one of vLLM's steps did, for whoever watches; and Watcher, who does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from adaptive_spec.step import BoolArray, Decision, IntArray, StepTime


@dataclass(slots=True)
class StepReport:
    """What a step did with the drafts of the requests that it decided on.

    Attributes
    ----------
    mode : str
        ``on``, ``shadow`` (the decision was only reported) or ``off``.
    decision : Decision or None
        None where nothing was decided: a step of prompts alone, or after a fault.
    ids : sequence of str, length B
        Requests, in the decision's order.
    adapted : bool array, shape (B,)
        Those that had the decision's depth; the others had vLLM's own.
    alive : bool array, shape (B,)
        Those that were still there when the results came.
    drafted, verified, accepted, emitted : int array, shape (B,)
        Drafts made, judged and kept, and tokens gained, as they really were.
    draft_depth : int
        The most drafts that the drafter was asked for per request of this step.
    prefill_tokens, sampling_prefills : int
        Positions of prompts, and prompts that ended.
    decision_seconds : float
        What deciding took.
    """

    mode: str
    decision: Decision | None
    ids: Sequence[str]
    adapted: BoolArray
    alive: BoolArray
    drafted: IntArray
    verified: IntArray
    accepted: IntArray
    emitted: IntArray
    draft_depth: int
    prefill_tokens: int
    sampling_prefills: int
    decision_seconds: float


class Watcher(Protocol):
    """Whoever wants to know of every step: metrics, a journal, the keeper of what was learned.

    All methods are called from the scheduler's own thread, between its steps; they must be quick. One that
    raises is counted as a fault of the plugin and otherwise ignored.
    """

    def request(self, adapted: bool) -> None:
        """A request begins, and its depth is adapted or not."""
        ...

    def step(self, report: StepReport) -> None:
        """The results of a step are there."""
        ...

    def timed(self, time: StepTime) -> None:
        """The seconds of a step are known; later than its results, with some schedulings."""
        ...

    def fault(self, where: str, error: Exception) -> None:
        """One of the plugin's own hooks failed; the step went on as stock vLLM would have it."""
        ...

    def tick(self, now: float) -> None:
        """A step begins: the moment for what is done every so often."""
        ...

    def idle(self) -> None:
        """No request is left, and no step follows until one comes."""
        ...

    def close(self) -> None:
        """The scheduler shuts down."""
        ...
