"""TraceRunner: a trace and a cost curve in the place of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptive_spec.replay.step_timer import StepTimer
from adaptive_spec.replay.trace import Trace
from adaptive_spec.serving.loop import StepResult
from adaptive_spec.serving.scheduler import ScheduledStep
from adaptive_spec.serving.sequence import Sequence
from adaptive_spec.step import FloatArray, IntArray

TOKEN, END = 0, 1  # the tokens of a replay: any, and the one with which a model ends a text
END_TOKENS = frozenset((END,))


@dataclass(slots=True, eq=False)
class ReplayedText:
    """What a sequence of a replay is: a text of the trace, and its times. It stands as the sequence's `request`.

    Attributes
    ----------
    number : int
        Of the trace's sequence.
    origin : int
        Flat index of the trace less the sequence's tokens: a sequence of m tokens is at ``origin + m``.
    arrival_seconds : float
    offset : int
        Output tokens that it had already when it arrived.
    first_seconds : float
        When its first token here came (NaN: not yet).
    first_tokens : int
        Output tokens that it had then.
    """

    number: int
    origin: int
    arrival_seconds: float = 0.0
    offset: int = 0
    first_seconds: float = float("nan")
    first_tokens: int = 0


def replayed_sequence(
    trace: Trace,
    number: int,
    id: int,
    *,
    offset: int = 0,
    arrival_seconds: float = 0.0,
    prompt_tokens: int | None = None,
    max_tokens: int | None = None,
) -> Sequence:
    """A serving sequence that walks along one text of a trace.

    Parameters
    ----------
    number : int
        Of the trace's sequence.
    id : int
        The serving sequence's; rising in the order of arrival.
    offset : int
        Output tokens that exist already, fewer than the text's; they are computed with the prompt, as after a
        preemption.
    prompt_tokens, max_tokens : int, optional
        In the place of the trace's own; `max_tokens` cuts the text short.
    """
    output = int(trace.output_tokens[number])
    prompt = int(trace.prompt_tokens[number]) if prompt_tokens is None else prompt_tokens
    allowed = int(trace.max_tokens[number]) if trace.stopped[number] else output
    if max_tokens is not None:
        allowed = min(allowed, max_tokens)
    if not 0 <= offset < min(output, allowed):
        raise ValueError(f"offset is {offset}; it must lie in 0..{min(output, allowed) - 1}, within the text's output")
    sequence = Sequence(
        id=id,
        tokens=[TOKEN] * (prompt + offset),
        max_tokens=allowed,
        eos_token_ids=END_TOKENS if trace.stopped[number] else frozenset(),
        request=ReplayedText(number, int(trace.start[number]) - prompt - 1, arrival_seconds, offset),
    )
    sequence.num_prompt_tokens = prompt
    return sequence


class TraceRunner:
    """Runs the steps of a serving loop on a trace; implements :class:`~adaptive_spec.serving.loop.Runner`.

    A sequence at output position p with depth d has min(d, L[p]) drafts accepted. Its offer and evidence are
    those that the drafter reported at p: they were known before the step. L[p] itself is read only after the
    depths are decided.

    Parameters
    ----------
    trace : Trace
    timer : StepTimer
        Charges each step to the clock.
    evidence : tuple of str
        Those of the trace's evidence columns that the controller wants, in its order.

    Attributes
    ----------
    trace : Trace
        May be exchanged between steps by :meth:`switch`.
    """

    def __init__(self, trace: Trace, timer: StepTimer, evidence: tuple[str, ...] = ()) -> None:
        self.timer = timer
        self.evidence = evidence
        self.trace = trace
        self._index: IntArray = np.zeros(0, dtype=np.int64)  # flat places of the step's sequences
        self.switch(trace)

    def report(self, evidence: tuple[str, ...]) -> None:
        """Report these evidence columns from now on; ValueError if the trace lacks one."""
        self.evidence = evidence
        self.switch(self.trace)

    def switch(self, trace: Trace) -> None:
        """Go on with another trace of the same texts: their drafts, or their domain, have changed.

        Raises
        ------
        ValueError
            If its sequences have other lengths, or it lacks evidence.
        """
        if not np.array_equal(trace.start, self.trace.start):
            raise ValueError("the trace to switch to must have the same sequences, each of the same length")
        known = trace.evidence_names
        if missing := [name for name in self.evidence if name not in known]:
            raise ValueError(f"the trace has no evidence {missing[0]!r}; it has {', '.join(known) or 'none'}")
        self.trace = trace
        self._run = trace.run.astype(np.int64)
        self._offered = trace.offered.astype(np.int64)
        columns = [trace.evidence[name].astype(np.float64) for name in self.evidence]
        self._evidence = np.column_stack(columns) if columns else np.zeros((trace.positions, 0))
        # Tokens of its text that a sequence has still to gain at each place.
        self._left = np.repeat(trace.start[1:], np.diff(trace.start)) - np.arange(trace.positions)

    # ---------------------------------------------------------------- what the serving loop asks for

    def add(self, sequence: Sequence) -> None:
        """Begin a sequence made by :func:`replayed_sequence`."""
        if not isinstance(sequence.request, ReplayedText):
            raise TypeError(f"sequence {sequence.id} walks along no text; make it with replayed_sequence")

    def remove(self, sequence: Sequence) -> None:
        """End a sequence."""

    def offers(self, sequences: list[Sequence], limit: IntArray) -> tuple[IntArray, FloatArray, int]:
        """Drafts on offer at each sequence's position, the evidence there, and no lag."""
        index = np.array([s.request.origin + len(s.tokens) for s in sequences], dtype=np.int64)
        self._index = index
        if not limit.any():  # as an engine, which then asks its drafter nothing
            return np.zeros(len(index), dtype=np.int64), np.zeros((len(index), len(self.evidence))), 0
        return np.minimum(self._offered[index], limit), self._evidence[index], 0

    def execute(self, step: ScheduledStep) -> StepResult:
        """Accept what the trace says, and let the step's time pass."""
        drafted = step.depth if step.decoding else np.zeros(0, dtype=np.int64)
        verify_seconds, draft_seconds = self.timer.charge(step, drafted)
        tokens: list[list[int]] = []
        accepted = drafted
        if step.decoding:
            accepted = np.minimum(drafted, self._run[self._index])
            _fill(accepted)
            tokens = [_SAME[a] for a in accepted.tolist()]
            for i in np.flatnonzero(accepted + 1 >= self._left[self._index]).tolist():
                if step.decoding[i].eos_token_ids:
                    left = int(self._left[self._index[i]])
                    tokens[i] = [TOKEN] * (left - 1) + [END] + [TOKEN] * (int(accepted[i]) + 1 - left)
        return StepResult(
            tokens=tokens,
            first_tokens=[self._next(sequence) for sequence in step.ending],
            drafted=drafted,
            verified=drafted,
            accepted=accepted,
            verify_seconds=verify_seconds,
            draft_seconds=draft_seconds,
        )

    def _next(self, sequence: Sequence) -> int:
        """The token that ends a sequence's prefill: the end of its text, if that is all there is."""
        if sequence.eos_token_ids:
            text: ReplayedText = sequence.request
            output = int(self.trace.start[text.number + 1] - self.trace.start[text.number]) + 1
            if sequence.num_output_tokens == output - 1:
                return END
        return TOKEN

    @property
    def present_places(self) -> IntArray:
        """Places in the trace's flat arrays of the sequences of the last :meth:`offers`, in their order, shape (B,).

        For yardsticks alone, that look up there what was worked out of a whole trace before.
        """
        return self._index

    @property
    def present_runs(self) -> IntArray:
        """L[p] of the sequences of the last :meth:`offers`, in their order, shape (B,).

        For clairvoyant baselines alone: no engine knows it before it has verified the drafts.
        """
        return self._run[self._index]

    @property
    def present_gains(self) -> IntArray:
        """Of :attr:`present_runs`, the drafts that bring a token: beside them comes one more, or the text's end."""
        return np.asarray(np.minimum(self.present_runs, self._left[self._index] - 1))


_SAME: list[list[int]] = [[TOKEN]]  # of each count of accepted drafts, its tokens; shared, since nobody changes them


def _fill(accepted: IntArray) -> None:
    most = int(accepted.max())
    while len(_SAME) <= most:
        _SAME.append([TOKEN] * (len(_SAME) + 1))
