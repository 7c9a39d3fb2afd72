"""ScheduledPass: what one of vLLM's steps carries, kept until its results and its time are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from adaptive_spec.step import NAN, BoolArray, Decision, IntArray

NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)
NO_FLAGS: BoolArray = np.zeros(0, dtype=bool)


@dataclass(slots=True)
class DecidedDepths:
    """A decision, and whom it is about.

    Attributes
    ----------
    decision : Decision
    ids : sequence of str, length B
        Requests, in the decision's order.
    row, stamp : int array, shape (B,)
        Their rows, and the rows' stamps when it was made.
    offered : int array, shape (B,)
        Drafts that lay on the table for each when the step began; 0 until then.
    seconds : float
        What deciding took.
    """

    decision: Decision
    ids: Sequence[str]
    row: IntArray
    stamp: IntArray
    offered: IntArray
    seconds: float = NAN


@dataclass(slots=True, eq=False)
class ScheduledPass:
    """One pass of the target over all requests that vLLM scheduled in a step.

    Attributes
    ----------
    output : SchedulerOutput
        vLLM's record of the step, held so that it can be recognised when its results come.
    launched : float
        Moment at which the step began.
    decided : DecidedDepths, optional
        None in a step that had nothing to decide.
    ids : list of str, length N
        All requests of the step, prompts included.
    row, stamp : int array, shape (N,)
        Their rows, and the rows' stamps.
    scheduled : int array, shape (N,)
        Drafts that each carries to be verified.
    decoding : bool array, shape (N,)
        Those whose prompt was in the KV cache before.
    positions, sequences, context, prefill_tokens, sampling_prefills : int
        As in the view and the step's time.
    drafted_before : int
        Depth that was drafted to for this pass, within the one before.
    drafts_asked : int
        Depth that the drafter was asked for within this pass, for the next.
    """

    output: object
    launched: float
    decided: DecidedDepths | None = None
    ids: list[str] = field(default_factory=list)
    row: IntArray = field(default_factory=lambda: NO_ROWS)
    stamp: IntArray = field(default_factory=lambda: NO_ROWS)
    scheduled: IntArray = field(default_factory=lambda: NO_ROWS)
    decoding: BoolArray = field(default_factory=lambda: NO_FLAGS)
    positions: int = 0
    sequences: int = 0
    context: int = 0
    prefill_tokens: int = 0
    sampling_prefills: int = 0
    drafted_before: int = 0
    drafts_asked: int = 0
    seconds: float = NAN
    timed: bool = False
    tokens: float = NAN
    answered: bool = False

    @property
    def decision(self) -> Decision | None:
        """The decision that this pass carries out."""
        return None if self.decided is None else self.decided.decision
