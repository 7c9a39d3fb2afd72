"""Controller: the only object an engine talks to; limits -> policy -> explore -> guard -> fallback."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.cost.base import StepCost
from adaptive_spec.explore import Explorer, Ledger
from adaptive_spec.fallback import Fallback
from adaptive_spec.guard import Guard, Watchdog
from adaptive_spec.in_flight import InFlight
from adaptive_spec.learned import Learner, carry_over, collect, take_over
from adaptive_spec.policy import DepthPolicy, SurvivalEstimate
from adaptive_spec.sequence_table import SequenceTable
from adaptive_spec.state_file import read_state, write_state
from adaptive_spec.step import NAN, Decision, IntArray, Outcome, SequenceId, StepTime, StepView

logger = logging.getLogger(__name__)


class Controller:
    """Gives every sequence its own depth at every step.

    An engine calls, in each step: :meth:`plan` before drafting, :meth:`revise` if the batch changed after
    that, :meth:`observe` when it knows what was accepted and :meth:`observe_time` when it knows how long
    the pass took. Two steps may be in flight. Deterministic given the seed and the clock.

    Parameters
    ----------
    policy : DepthPolicy
        Chooses; it is reset.
    acceptance : AcceptanceModel
        Learns what drafts are worth; its `max_depth` is K.
    cost : StepCost, optional
        What a step costs. Without one, exploration and the guard are off.
    ledger : Ledger, optional
        Purse of all exploration; None: none is allowed.
    guard, watchdog : optional
        None: off. They, and exploration, leave a policy alone whose `explores` is False.
    fallback : Fallback, optional
        Default settings if None.
    identity : mapping of str to str
        Names the target model and the drafter; saved state of others is refused.
    seed : int
        Of every random choice.
    clock : callable
        Seconds; a replay hands in its own.

    Attributes
    ----------
    enabled : bool
        False gives every sequence depth 0, pinned ones too.
    """

    def __init__(
        self,
        policy: DepthPolicy,
        acceptance: AcceptanceModel,
        *,
        cost: StepCost | None = None,
        ledger: Ledger | None = None,
        guard: Guard | None = None,
        watchdog: Watchdog | None = None,
        fallback: Fallback | None = None,
        identity: Mapping[str, str] | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.policy = policy
        self.acceptance = acceptance
        self.max_depth = acceptance.max_depth
        self.cost = cost
        supervised = policy.explores and cost is not None
        self.ledger = ledger if supervised else None
        self.guard = guard if supervised else None
        self.watchdog = watchdog if policy.explores else None
        self.fallback = Fallback(clock=clock) if fallback is None else fallback
        self.identity = dict(identity or {})
        self.clock = clock
        self.enabled = True
        policy.reset(self.max_depth, seed)
        self.explorer = None if self.ledger is None else Explorer(self.ledger, np.random.default_rng([seed, 1]))
        self._step = 0
        self._table = SequenceTable()
        self._in_flight = InFlight(self._table)
        self._goodput = NAN  # running, tokens per second
        self._tokens = self._seconds = 0.0

    # ---------------------------------------------------------------- sequences

    @property
    def evidence(self) -> tuple[str, ...]:
        """Names of the evidence columns that a view must have, in order."""
        return tuple(feature.name for feature in self.acceptance.evidence)

    @property
    def counts(self) -> Counter[str]:
        """What had to be dropped, by reason: outcomes and times of unknown steps or sequences."""
        return self._in_flight.counts

    @property
    def personal(self) -> int:
        """Live sequences for which a weight, a cap or a depth of their own was set."""
        return self._table.personal

    def __len__(self) -> int:
        return len(self._table)

    def add(
        self,
        id: SequenceId,
        *,
        weight: float = 1.0,
        max_depth: int | None = None,
        pinned_depth: int | None = None,
    ) -> int:
        """Begin a sequence and return its row.

        Parameters
        ----------
        weight : float
            Worth of one of its tokens, over 0.
        max_depth : int, optional
            The deepest that it may be drafted; over K means K, 0 turns it off.
        pinned_depth : int, optional
            Draft it to exactly this depth wherever its limit allows, whatever the policy says.

        Raises
        ------
        ValueError
            If the id is known already, or a value is out of its range.
        """
        row = self._table.add(id, weight, max_depth, pinned_depth)
        self.acceptance.add(row)
        self.fallback.add(self.policy, row)
        return row

    def remove(self, id: SequenceId) -> None:
        """End a sequence; ValueError if it is unknown. Outcomes still to come for it will be dropped."""
        row = self._table.remove(id)
        self.acceptance.remove(row)
        self._in_flight.forget(row)

    def rows(self, ids: Iterable[SequenceId]) -> IntArray:
        """The rows of known sequences, shape (B,); ValueError names an unknown one."""
        return self._table.rows(ids)

    # ---------------------------------------------------------------- deciding

    def plan(self, view: StepView) -> Decision:
        """Decide the depths of the next step, before any draft is drawn.

        Raises
        ------
        ValueError
            If the view's arrays don't fit together, or its evidence isn't the acceptance model's.
        """
        view = self._table.resolve(view, self.max_depth)
        cell = self.acceptance.cells(view.evidence)
        estimate = self.acceptance.estimate(view.row, cell)
        pinned = self._pinned(view)
        posed = view if pinned is None else view.carrying(pinned)
        decision = self._decide(posed, estimate)
        if pinned is not None:
            decision = self._carry(decision, view, pinned)
        self._step += 1
        decision.step = self._step
        self._complete(decision, view, estimate)
        self._in_flight.keep(decision, view, cell, posed, pinned)
        return decision

    def revise(self, decision: Decision, view: StepView) -> Decision:
        """Lower the depths of a planned step when its batch is finally known.

        Sequences may have gone; those that the plan didn't hold join at depth 0. Nothing is ever deepened.
        The view may tell how full the step is and how many drafts are on offer, never what they are. Where a sampled
        drafter stops early, that number is drawn too: clip such a sequence after the decision, since the depths of
        the others may not depend on it.

        Raises
        ------
        ValueError
            If the step is not in flight, or the view's arrays don't fit together.
        """
        pending = self._in_flight.get(decision.step)
        if pending is None:
            raise ValueError(f"step {decision.step} is not in flight; revise the decision of a planned step")
        view = self._table.resolve(view, self.max_depth)
        cell = self.acceptance.cells(view.evidence)
        estimate = self.acceptance.estimate(view.row, cell)
        planned = self._table.spread(decision.row, decision.depth, 0)[view.row]
        explored = self._table.spread(decision.row, decision.explored, 0)[view.row] > 0
        depth = np.minimum(planned, view.limit)
        revised = replace(decision, row=view.row, depth=depth, explored=explored, expected_tokens=NAN)
        fixed = explored | (self._table.pin[view.row] >= 0)  # what the policy has no say in
        if decision.decided_by == "policy" and depth.any():
            carried = replace(view, limit=depth).carrying(np.where(fixed, depth, -1))
            lowered = self.fallback.revise(self.policy, carried, estimate, self.cost)
            revised.depth = np.where(fixed, depth, np.minimum(lowered.depth, depth))
            revised.tipping = lowered.tipping
        revised.expected_seconds = NAN
        self._complete(revised, view, estimate)
        pinned = self._pinned(view)
        posed = replace(view if pinned is None else view.carrying(pinned), trial=pending.posed.trial)
        self._in_flight.keep(revised, view, cell, posed, pinned)
        return revised

    def _pinned(self, view: StepView) -> IntArray | None:
        """Depth of each pinned sequence, -1 for the others; None if none is pinned."""
        if not (self._table.personal and self.enabled):
            return None
        pin = self._table.pin[view.row]
        return np.minimum(pin, view.limit) if (pin >= 0).any() else None

    def _decide(self, view: StepView, estimate: SurvivalEstimate) -> Decision:
        if not self.enabled:
            return self._off(view, "off", "the mode is off")
        if not np.count_nonzero(view.limit):
            return self._off(view, "limits", "no sequence may have a draft in this step")
        broken = self.watchdog is not None and self.watchdog.tripped
        if broken:
            decision = self._off(view, "watchdog", "drafts are hardly accepted any more")
        else:
            if self.guard is not None and self.cost is not None:
                verdict = self.guard.verdict(view, self.cost, self._goodput)
                if not verdict.speculate:
                    return self._off(view, verdict.decided_by, verdict.reason)
                if verdict.trial:
                    view.trial = True  # of this controller's own view
            decision = self.fallback.decide(self.policy, view, estimate, self.cost)
        if self.explorer is not None and self.cost is not None and decision.decided_by != "fallback":
            decision = self.explorer.deepen(decision, view, estimate, self.cost, self._goodput, needed=broken)
        return decision

    @staticmethod
    def _off(view: StepView, decided_by: str, reason: str) -> Decision:
        depth = np.zeros(len(view.row), dtype=np.int64)
        return Decision(0, view.row, depth, 0, decided_by=decided_by, reason=reason)

    @staticmethod
    def _carry(decision: Decision, view: StepView, pinned: IntArray) -> Decision:
        """Add the pinned sequences' drafts, which the decision was made around."""
        decision.depth = np.where(pinned >= 0, pinned, decision.depth)
        decision.draft_depth = max(decision.draft_depth, int(pinned.max()))
        decision.pinned = int(np.count_nonzero(pinned >= 0))
        decision.row = view.row
        decision.expected_tokens = decision.expected_seconds = NAN
        return decision

    def _complete(self, decision: Decision, view: StepView, estimate: SurvivalEstimate) -> None:
        """Fill in what is expected of the step, where the policy did not say."""
        survival = decision.survival = estimate.mean()
        if not len(decision.explored):
            decision.explored = np.zeros(len(decision.depth), dtype=bool)
        if math.isnan(decision.expected_tokens):
            decision.expected_tokens = view.base_tokens
            if decision.draft_depth:
                bought = np.arange(self.max_depth) < decision.depth[:, None]
                weight = view.weight if view.weight is not None else np.ones(len(view.row))
                decision.expected_tokens += float(weight @ (survival * bought).sum(axis=1))
        if math.isnan(decision.expected_seconds) and self.cost is not None:
            positions = view.base_positions + int(decision.depth.sum())
            verify = self.cost.verify_range(positions, 1, view.total_context, view.sequences)
            draft = self.cost.draft(np.array([decision.draft_depth]), view.sequences, view.lag)
            decision.expected_seconds = float(verify[0]) + float(draft[0])

    # ---------------------------------------------------------------- learning

    def observe(self, outcome: Outcome) -> None:
        """Learn from what came of a decision's drafts; sequences or steps that are unknown are dropped and counted.

        Raises
        ------
        ValueError
            If the counts contradict each other or the decision (nothing is learned from it then).
        """
        pending = self._in_flight.get(outcome.step)
        if pending is None:
            self.counts["outcomes of unknown steps"] += 1
            return
        outcome, index = self._in_flight.match(outcome, pending)
        if not len(outcome.ids):
            return
        verified, accepted = outcome.verified, outcome.accepted
        depth = pending.decision.depth
        outcome.check(depth if isinstance(index, slice) else depth[index])
        view = pending.view
        changed = self.watchdog is not None and self.watchdog.observe(verified, accepted)
        if changed and self.watchdog is not None and not self.watchdog.tripped:
            self.acceptance.forget()  # what was learned from a broken drafter says nothing of the mended one
        else:
            self.acceptance.observe(view.row[index], pending.cell[index], verified, accepted)
        pending.answer(index, accepted)
        if type(self.policy).observe is not DepthPolicy.observe:  # else it learns nothing from outcomes
            answered = Outcome(outcome.step, outcome.ids, outcome.drafted, verified, accepted, view.row[index])
            self.fallback.inform(self.policy, answered)
        self._in_flight.settle(outcome.step)

    def observe_time(self, time: StepTime) -> None:
        """Learn from what a pass carried and took; the time of an unknown step teaches the cost model alone."""
        if self.cost is not None:
            self.cost.observe(time)
        pending = self._in_flight.get(time.step)
        if pending is None:
            self.counts["times of unknown steps"] += 1
            return
        pending.timed = True
        if math.isnan(time.tokens) and not pending.waiting:
            time = replace(time, tokens=pending.tokens + pending.ended(time))
        if time.tokens > 0 and time.step_seconds > 0:
            self._learn_goodput(time)
            if self.ledger is not None:
                self.ledger.earn(time.tokens)
            if self.guard is not None and self.cost is not None and pending.decision.decided_by != "watchdog":
                self.guard.observe(*pending.as_posed(time), self.cost, pending.speculated)
        self.fallback.inform(self.policy, time)
        self._in_flight.settle(time.step)

    def _learn_goodput(self, time: StepTime) -> None:
        """Keep the running goodput, tokens per second over some fifty steps."""
        keep = 0.98
        self._tokens = keep * self._tokens + time.tokens
        self._seconds = keep * self._seconds + time.step_seconds
        self._goodput = self._tokens / self._seconds

    # ---------------------------------------------------------------- what was learned

    def adopt(self, other: Controller) -> list[str]:
        """Go on with the settings of a fresh controller, between any two steps.

        The sequences, the steps in flight and all counts stay, and so does what was learned as far as it
        fits. `other` is used up.

        Parameters
        ----------
        other : Controller
            Built from new settings, with this one's K, evidence, cost model and clock.

        Returns
        -------
        list of str
            The parts that begin anew, since what was learned says nothing to them.

        Raises
        ------
        ValueError
            If K or the evidence is another; nothing is changed then.
        """
        other.acceptance.succeed(self.acceptance)
        kept, made = self._learners(), other._learners()
        anew = carry_over(self.policy, kept, other.policy, {name: made[name] for name in made if name != "acceptance"})
        other.fallback.faults = self.fallback.faults
        for part in ("policy", "acceptance", "fallback", "ledger", "explorer", "guard", "watchdog", "enabled"):
            setattr(self, part, getattr(other, part))
        return anew

    def save(self, path: str | Path) -> None:
        """Write all that was learned to `path`, whole or not at all."""
        write_state(path, self.state())

    def load(self, path: str | Path) -> None:
        """Take over what :meth:`save` wrote.

        Raises
        ------
        ValueError
            If the file is damaged, or was learned with another model, drafter or K; the controller is
            then as it was.
        """
        self.restore(read_state(path))

    def state(self) -> dict[str, object]:
        """All that was learned, as nested dicts of numbers, strings and arrays."""
        return collect(self._whose(), self.policy, self._learners())

    def restore(self, state: Mapping[str, object]) -> None:
        """Take over what :meth:`state` returned; ValueError, and nothing changed, if it is another controller's."""
        take_over(state, self._whose(), self.policy, self._learners())

    def _whose(self) -> dict[str, object]:
        return {**self.identity, "max_depth": self.max_depth}

    def _learners(self) -> dict[str, Learner]:
        parts: dict[str, Learner | None] = {
            "acceptance": self.acceptance,
            "cost": self.cost,
            "ledger": self.ledger,
            "guard": self.guard,
            "watchdog": self.watchdog,
        }
        return {name: part for name, part in parts.items() if part is not None}
