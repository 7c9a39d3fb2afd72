"""ScheduledPass: what one of vLLM's steps carries, kept until its results and its time are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adaptive_spec.step import NAN, Decision, IntArray
from adaptive_spec.vllm_plugin.roster import Roster

NO_COUNTS: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class DecidedDepths:
    """A decision, and whom it is about.

    Attributes
    ----------
    decision : Decision
    roster : Roster
        Requests, in the decision's order, as they were when it was made.
    offered : int array, shape (B,)
        Drafts that lay on the table for each when the step began; empty until then.
    seconds : float
        What deciding took.
    in_effect : bool
        Whether every one of them was cut to the decision's depth.
    """

    decision: Decision
    roster: Roster
    offered: IntArray
    seconds: float = NAN
    in_effect: bool = False


@dataclass(slots=True, eq=False)
class DraftsLeft:
    """The drafts that were left on the table when a step began.

    Attributes
    ----------
    roster : Roster
        The requests that were to decode.
    produced : int array, shape (B,)
        Their confirmed output tokens.
    drafts : int array, shape (B,)
    made, written : int
        Sums of the drafts, and of the confirmed output tokens.
    """

    roster: Roster
    produced: IntArray
    drafts: IntArray
    made: int
    written: int


@dataclass(slots=True, eq=False)
class ScheduledPass:
    """One pass of the target over all requests that vLLM scheduled in a step.

    Attributes
    ----------
    output : SchedulerOutput or None
        vLLM's record of the step, held so that it can be recognised when its results come, and let go then, so that
        freeing it is no part of a later step.
    launched : float
        Moment at which the step began.
    decided : DecidedDepths, optional
        None in a step that had nothing to decide.
    roster : Roster, optional
        All requests of the step, prompts included; N of them.
    scheduled : int array, shape (N,)
        Drafts that each carries to be verified.
    all_sample : bool
        Whether every one of them yields a token.
    positions, sequences, context, prefill_tokens, sampling_prefills : int
        As in the view and the step's time.
    ending : tuple of int
        Places of the requests whose prompts end in the pass.
    drafted_before : int
        Depth that was drafted to for this pass, within the one before.
    drafts_asked : int
        Depth that the drafter was asked for within this pass, for the next.
    """

    output: object | None
    launched: float
    decided: DecidedDepths | None = None
    roster: Roster | None = None
    scheduled: IntArray = field(default_factory=lambda: NO_COUNTS)
    all_sample: bool = False
    positions: int = 0
    sequences: int = 0
    context: int = 0
    prefill_tokens: int = 0
    sampling_prefills: int = 0
    ending: tuple[int, ...] = ()
    drafted_before: int = 0
    drafts_asked: int = 0
    seconds: float = NAN
    timed: bool = False
    tokens: float = NAN
    answered: bool = False

    def bring(self, worth: float, emitted: IntArray) -> None:
        """Its results are there.

        The first token after a prompt counts one, whoever gets it, and none if nobody is there any more: it comes
        whatever is decided, and must be no gain or loss of the drafts'.

        Parameters
        ----------
        worth : float
            Of all tokens gained.
        emitted : int array, shape (N,)
            Tokens that each request gained.
        """
        self.tokens, self.answered = worth, True
        if self.ending and self.roster is not None:
            ending = list(self.ending)
            self.tokens -= float((self.roster.weight[ending] - 1.0) @ emitted[ending])
            self.sampling_prefills = int(np.count_nonzero(emitted[ending]))

    @property
    def decision(self) -> Decision | None:
        """The decision that this pass carries out."""
        return None if self.decided is None else self.decided.decision
