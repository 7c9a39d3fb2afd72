"""InFlight: the decisions whose outcome or time is still to come."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from adaptive_spec import loops
from adaptive_spec.sequence_table import SequenceTable
from adaptive_spec.step import BoolArray, Decision, IntArray, Outcome, StepTime, StepView

ALL = slice(None)
KEPT = 8  # decisions kept at most; engines have two in flight


@dataclass(slots=True)
class Pending:
    """What is kept of a decision until its outcome and its time are known.

    Attributes
    ----------
    generation, cell : int array, shape (B,)
        Of each row when it was decided: the sequence table's count, the acceptance model's bucket.
    removed : int
        Sequences that had ever been removed when it was decided.
    answered : bool array, shape (B,)
        Sequences of which nothing more is to come: their outcome is known, or they were removed.
    unanswered : int
        How many others there are.
    posed : StepView
        What the guard and the policy were asked: the view, with the drafts of pinned sequences as positions of the
        pass.
    pinned : int array, shape (B,), optional
        Depth of each pinned sequence, -1 for the others; None if none is pinned.
    timed : bool
        Whether the step's time is known.
    tokens : float
        Worth that the outcomes so far have shown.
    pinned_tokens : float
        Worth of the drafts among them that were accepted of pinned sequences.
    gone : list of int
        Places of the sequences that were removed before they were answered: whatever the pass brought for them,
        nobody got it.
    """

    decision: Decision
    view: StepView
    generation: IntArray
    cell: IntArray
    removed: int
    answered: BoolArray
    unanswered: int
    posed: StepView
    pinned: IntArray | None
    timed: bool = False
    tokens: float = 0.0
    pinned_tokens: float = 0.0
    gone: list[int] = field(default_factory=list)

    @property
    def waiting(self) -> bool:
        """Whether an outcome is still to come."""
        return self.unanswered > 0

    @property
    def speculated(self) -> bool:
        """Whether anything was drafted that no pin asked for."""
        if self.pinned is None:
            return self.decision.draft_depth > 0
        return bool(np.count_nonzero(self.decision.depth[self.pinned < 0]))

    def answer(self, index: IntArray | slice, accepted: IntArray) -> None:
        """Count what the sequences at these places have brought, and mark them as answered."""
        weight = self.posed.weight
        assert weight is not None  # the table filled it in
        self.tokens += loops.worth_of(loops.real(weight[index]), loops.whole(accepted))
        if self.pinned is not None:
            self.pinned_tokens += float((weight[index] * accepted) @ (self.pinned[index] >= 0))
        self.close(index, len(accepted))

    def close(self, index: IntArray | slice, count: int) -> None:
        """Mark the `count` sequences at these places as answered."""
        self.answered[index] = True
        self.unanswered -= count

    def ended(self, time: StepTime) -> int:
        """Prefills that ended in the step, as it was carried out or else as it was planned."""
        return self.view.sampling_prefills if time.sampling_prefills is None else time.sampling_prefills

    def as_posed(self, time: StepTime) -> tuple[StepTime, StepView]:
        """The step as the guard can judge it.

        With what it really carried of prompts, without what pins brought, and with no token expected of those that
        went away meanwhile: they would have brought none at any depth.
        """
        view = self.posed
        prefill = view.prefill_tokens if time.prefill_tokens is None else time.prefill_tokens
        ended = self.ended(time)
        if (prefill, ended) != (view.prefill_tokens, view.sampling_prefills):
            view = replace(view, prefill_tokens=prefill, sampling_prefills=ended)
        if self.gone:
            assert view.weight is not None
            weight = view.weight.copy()
            weight[self.gone] = 0.0
            view = replace(view, weight=weight)
        return (replace(time, tokens=time.tokens - self.pinned_tokens) if self.pinned_tokens else time), view


class InFlight:
    """Keeps a few decisions by step number, and finds the sequences that an outcome answers.

    Attributes
    ----------
    counts : Counter
        What had to be dropped, by reason.
    """

    def __init__(self, table: SequenceTable) -> None:
        self._table = table
        self._pending: dict[int, Pending] = {}
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, step: int) -> bool:
        return step in self._pending

    def get(self, step: int) -> Pending | None:
        """The decision of a step, None if it isn't kept."""
        return self._pending.get(step)

    def keep(
        self, decision: Decision, view: StepView, cell: IntArray, posed: StepView, pinned: IntArray | None
    ) -> None:
        """Keep a decision, in the place of an earlier one for the same step; the oldest goes if there are too many."""
        sequences = len(view.row)
        self._pending[decision.step] = Pending(
            decision,
            view,
            self._table.generation.take(view.row),
            cell,
            self._table.removed,
            np.zeros(sequences, dtype=bool),
            sequences,
            posed,
            pinned,
        )
        if len(self._pending) > KEPT:
            oldest = self._pending.pop(next(iter(self._pending)))
            if oldest.waiting:
                self.counts["decisions without an outcome"] += 1

    def settle(self, step: int) -> None:
        """Let a decision go if its outcome and its time are known."""
        pending = self._pending[step]
        if pending.timed and not pending.waiting:
            del self._pending[step]

    def forget(self, row: int) -> None:
        """Expect no more outcomes of a removed sequence."""
        for step, pending in list(self._pending.items()):
            gone = np.flatnonzero((pending.view.row == row) & ~pending.answered)
            if len(gone):
                pending.gone += gone.tolist()
                pending.close(gone, len(gone))
                self.settle(step)

    def match(self, outcome: Outcome, pending: Pending) -> tuple[Outcome, IntArray | slice]:
        """The part of an outcome that answers live sequences of its decision, and their places in the decision.

        A sequence is answered once; what comes for it again, or for one that is gone, is dropped and counted.
        """
        planned = pending.view.row
        whole = pending.removed == self._table.removed and pending.unanswered == len(planned)
        if whole and outcome.row is planned and len(outcome.ids) == len(planned):
            return outcome, ALL
        row = self._table.known_rows(outcome.ids)
        if row.tobytes() == planned.tobytes():  # all of them, in order: what engines do
            if whole:
                return outcome, ALL
            index = np.arange(len(row))
        else:
            index = self._table.spread(planned, np.arange(len(planned)), -1)[row]
        keep = index >= 0
        keep[keep] = self._table.generation[row[keep]] == pending.generation[index[keep]]
        keep[keep] &= ~pending.answered[index[keep]]
        if keep.all():
            return outcome, index
        self.counts["outcomes of unknown sequences"] += int(np.count_nonzero(~keep))
        answered = replace(
            outcome,
            ids=[id for id, kept in zip(outcome.ids, keep, strict=True) if kept],
            drafted=outcome.drafted[keep],
            verified=outcome.verified[keep],
            accepted=outcome.accepted[keep],
        )
        return answered, index[keep]
