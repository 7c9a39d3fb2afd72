"""ServingLoop: the life of one step, the same for the live engine and for a replay of a trace."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from adaptive_spec.serving.scheduler import ScheduledStep, Scheduler
from adaptive_spec.serving.sequence import Sequence
from adaptive_spec.step import NAN, Decision, FloatArray, IntArray, Outcome, StepTime, StepView

if TYPE_CHECKING:
    from adaptive_spec.controller import Controller

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepResult:
    """What a pass brought.

    Attributes
    ----------
    tokens : list of list of int, length B
        Verified tokens of each decoding sequence: its accepted drafts and one more.
    first_tokens : list of int
        The token of each sequence whose prefill ended, in the order of the step's chunks.
    drafted, verified, accepted : int array, shape (B,)
        Drafts made, judged and kept.
    verify_seconds, draft_seconds : float
        Seconds of the target pass and of drafting; NaN where the runner can't tell.
    lag : int
        Positions that the drafter caught up on, beyond one for each sequence.
    """

    tokens: list[list[int]]
    first_tokens: list[int]
    drafted: IntArray
    verified: IntArray
    accepted: IntArray
    verify_seconds: float = NAN
    draft_seconds: float = NAN
    lag: int = 0


class Runner(Protocol):
    """What computes: a model, or a trace of one."""

    def add(self, sequence: Sequence, /) -> None:
        """Begin a sequence; called when it is first admitted."""
        ...

    def remove(self, sequence: Sequence, /) -> None:
        """End a sequence that was begun."""
        ...

    def offers(self, sequences: list[Sequence], limit: IntArray, /) -> tuple[IntArray, FloatArray, int]:
        """Drafts on offer (B,), what is known of them (B, F), and the drafter's lag that the step is charged for.

        The evidence columns are the controller's, without ``age``, which stands last if it is wanted.
        """
        ...

    def execute(self, step: ScheduledStep, /) -> StepResult:
        """Draft to the step's depths, run the target pass and verify."""
        ...


@dataclass(slots=True)
class StepReport:
    """What one step did, for whoever watches.

    Attributes
    ----------
    decision : Decision or None
        None in a step that only carried prompts.
    sequences : list of Sequence, length B
        Those that decoded, in the decision's order.
    evidence : float array, shape (B, F)
        What was known of their drafts, as the controller saw it.
    drafted, verified, accepted, emitted : int array, shape (B,)
        Drafts made, judged and accepted, the latter also beyond an end of the text; tokens that each sequence gained.
    prefill_tokens : int
        Positions of prompts.
    started : list of Sequence
        Those whose prefill ended, and which gained a token by it: their first, or after a preemption their next.
    preempted, finished : list of Sequence
        Those that lost their KV blocks; those that ended.
    time : StepTime
        What the pass carried and took.
    decision_seconds : float
        What deciding took (NaN without a decision).
    """

    decision: Decision | None
    sequences: list[Sequence]
    evidence: FloatArray
    drafted: IntArray
    verified: IntArray
    accepted: IntArray
    emitted: IntArray
    prefill_tokens: int
    started: list[Sequence]
    preempted: list[Sequence]
    finished: list[Sequence] = field(default_factory=list)
    time: StepTime = field(default_factory=lambda: StepTime(0, 0, 0, 0, 0))
    decision_seconds: float = NAN

    @property
    def kept(self) -> IntArray:
        """Accepted drafts that became text, shape (B,): what a sequence gained, less the one token of any step."""
        return np.minimum(self.accepted, np.maximum(self.emitted - 1, 0))

    @property
    def num_tokens(self) -> int:
        """Tokens that the step yielded."""
        return int(self.emitted.sum()) + len(self.started)


class ServingLoop:
    """Runs sequences to their end, step by step, each at the depth that the controller gives it.

    Parameters
    ----------
    scheduler : Scheduler
        Says what a step carries.
    controller : Controller
        Says how deep it speculates.
    runner : Runner
        Computes it.
    clock : callable
        Seconds; a replay hands in the one that its runner moves.
    observer : callable, optional
        Receives a :class:`StepReport` after every step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        controller: Controller,
        runner: Runner,
        clock: Callable[[], float],
        observer: Callable[[StepReport], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.controller = controller
        self.runner = runner
        self.clock = clock
        self.observer = observer
        self._begun: set[int] = set()  # sequences that the runner knows

    def __len__(self) -> int:
        return len(self.scheduler)

    def add(self, sequence: Sequence, *, max_depth: int | None = None, pinned_depth: int | None = None) -> None:
        """Queue a sequence; ValueError, and nothing changed, if it can never be served."""
        self.controller.add(sequence.id, weight=sequence.weight, max_depth=max_depth, pinned_depth=pinned_depth)
        try:
            self.scheduler.add(sequence)
        except ValueError:
            self.controller.remove(sequence.id)
            raise

    def abort(self, sequence: Sequence, finish_reason: str = "abort", stop_reason: str | None = None) -> None:
        """End a sequence before its time; nothing happens if it has ended already."""
        if not sequence.finished:
            self.scheduler.abort(sequence, finish_reason, stop_reason)
            self._forget(sequence)

    def step(self) -> StepReport | None:
        """Run one step; None if nothing is left to do."""
        if not self.scheduler:
            return None
        began = self.clock()
        step = self.scheduler.schedule(self.controller.max_depth)
        self._begin(step)
        decision, view, offer_seconds, decision_seconds = self._decide(step)
        self.scheduler.reserve(step)
        result = self.runner.execute(step)
        context = sum(s.num_computed for s in step.decoding) + sum(c.start for c in step.prefills)
        report = self._apply(step, decision, view, result)
        report.decision_seconds = decision_seconds
        report.time = StepTime(
            step=0 if decision is None else decision.step,
            positions=len(step.decoding) + report.prefill_tokens + int(result.drafted.sum()),
            sequences=len(step.decoding),
            context=context,
            draft_depth=step.draft_depth,
            tokens=_worth(step.decoding, report.emitted) + sum(s.weight for s in report.started),
            lag=result.lag,
            verify_seconds=result.verify_seconds,
            draft_seconds=result.draft_seconds + offer_seconds,
        )
        if decision is not None:
            ids = [sequence.id for sequence in step.decoding]
            drafted, verified, accepted = result.drafted, result.verified, result.accepted
            self.controller.observe(Outcome(decision.step, ids, drafted, verified, accepted, decision.row))
        report.time.step_seconds = self.clock() - began
        if decision is not None:
            self.controller.observe_time(report.time)
        for sequence in report.finished:
            self._forget(sequence)
        if self.observer is not None:
            self.observer(report)
        return report

    def _begin(self, step: ScheduledStep) -> None:
        for sequence in step.admitted:
            if sequence.id not in self._begun:
                self.runner.add(sequence)
                self._begun.add(sequence.id)

    def _decide(self, step: ScheduledStep) -> tuple[Decision | None, StepView | None, float, float]:
        """Fill in the step's depths; return decision, what it was made from, seconds of offers and of deciding."""
        if not step.decoding:
            return None, None, 0.0, NAN
        began = self.clock()
        count, evidence, lag = self.runner.offers(step.decoding, step.limit)
        if "age" in self.controller.evidence:  # known here; it stands last, behind what the runner knows
            evidence = np.column_stack((evidence, [text.num_output_tokens for text in step.decoding]))
        offer_seconds = self.clock() - began
        view = StepView(
            row=self.controller.rows([sequence.id for sequence in step.decoding]),
            limit=np.minimum(step.limit, count),
            context=np.array([sequence.num_computed for sequence in step.decoding], dtype=np.int64),
            evidence=evidence,
            prefill_tokens=step.prefill_tokens,
            sampling_prefills=len(step.ending),
            lag=lag,
        )
        began = self.clock()
        decision = self.controller.plan(view)
        decision_seconds = self.clock() - began
        step.depth = decision.depth
        step.draft_depth = decision.draft_depth
        return decision, view, offer_seconds, decision_seconds

    def _apply(
        self, step: ScheduledStep, decision: Decision | None, view: StepView | None, result: StepResult
    ) -> StepReport:
        """Hand the verified tokens to their sequences."""
        finished: list[Sequence] = []
        started: list[Sequence] = []
        emitted = np.zeros(len(step.decoding), dtype=np.int64)
        drafted, verified, accepted = result.drafted.tolist(), result.verified.tolist(), result.accepted.tolist()
        for i, sequence in enumerate(step.decoding):
            sequence.drafted += drafted[i]
            sequence.depths.append(verified[i])
            emitted[i] = self._advance(sequence, result.tokens[i], finished)
            sequence.accepted += min(accepted[i], max(int(emitted[i]) - 1, 0))
        tokens = iter(result.first_tokens)
        for chunk in step.prefills:
            self.scheduler.advance_prefill(chunk)
            if chunk.ends:
                started.append(chunk.sequence)
                self._advance(chunk.sequence, [next(tokens)], finished)
        return StepReport(
            decision=decision,
            sequences=step.decoding,
            evidence=np.zeros((0, 0)) if view is None else view.evidence,
            drafted=result.drafted,
            verified=result.verified,
            accepted=result.accepted,
            emitted=emitted,
            prefill_tokens=step.prefill_tokens,
            started=started,
            preempted=step.preempted,
            finished=finished,
        )

    def _advance(self, sequence: Sequence, tokens: list[int], finished: list[Sequence]) -> int:
        """Advance one sequence; a fault of its own (its text can't be decoded, say) ends it and no other."""
        before = len(sequence.tokens)
        try:
            self.scheduler.advance(sequence, tokens)
        except Exception as error:
            logger.exception("sequence %s failed; the others go on", sequence.id)
            self.scheduler.abort(sequence, "error", f"{type(error).__name__}: {error}")
        if sequence.finished:
            finished.append(sequence)
        return len(sequence.tokens) - before

    def _forget(self, sequence: Sequence) -> None:
        self.controller.remove(sequence.id)
        if sequence.id in self._begun:
            self._begun.remove(sequence.id)
            self.runner.remove(sequence)


def _worth(sequences: list[Sequence], emitted: IntArray) -> float:
    return float(sum(sequence.weight * n for sequence, n in zip(sequences, emitted.tolist(), strict=True)))
