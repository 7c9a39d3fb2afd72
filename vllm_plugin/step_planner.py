"""StepPlanner: when a step's depths are decided, and from what view of its requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adaptive_spec.controller import Controller
from adaptive_spec.step import IntArray, StepView
from adaptive_spec.vllm_plugin.drafters import Drafter
from adaptive_spec.vllm_plugin.roster import Roster
from adaptive_spec.vllm_plugin.scheduled_pass import NO_COUNTS, DecidedDepths, ScheduledPass
from adaptive_spec.vllm_plugin.sequence_requests import SequenceRequests

REVISE_FROM = 0.1  # how much fuller than planned a step must look to be decided on again


class StepPlanner:
    """Asks the controller, at the moment that fits the drafter.

    Where each token of depth costs the drafter a pass, depths are planned when the step before has been
    scheduled, before anything is drafted, and the drafter is asked for the deepest of them; when the step begins
    they may still be lowered. Where drafting costs the same at any depth, they are decided when the step begins:
    the drafts on offer are known then, and the results of all steps that have come back.

    Parameters
    ----------
    controller : Controller
    requests : SequenceRequests
    drafter : Drafter
    max_depth : int
        K: vLLM's ``num_speculative_tokens``.
    asynchronous : bool
        Whether steps are scheduled before the results of the one before are there.
    clock : callable
        Seconds.
    """

    def __init__(
        self,
        controller: Controller,
        requests: SequenceRequests,
        drafter: Drafter,
        max_depth: int,
        asynchronous: bool,
        clock: Callable[[], float],
    ) -> None:
        self.controller = controller
        self._requests = requests
        self._drafter = drafter
        self._max_depth = max_depth
        self._asynchronous = asynchronous
        self._clock = clock
        self._evidence = controller.evidence
        self._ahead: DecidedDepths | None = None  # planned, for the step to come
        self._current: DecidedDepths | None = None  # of the step that is being scheduled
        self._prefill = (0, 0)  # of the latest step: tokens of prompts, prompts that ended

    def begin(
        self, roster: Roster, produced: IntArray, offered: IntArray, limit: IntArray, prefill: tuple[int, int]
    ) -> IntArray:
        """The depth of each decoding request in the step that begins, shape (B,); a plan's may be over its limit.

        Parameters
        ----------
        roster : Roster
            The requests that will decode.
        produced : int array, shape (B,)
            Their confirmed output tokens.
        offered, limit : int array, shape (B,)
            Drafts on the table, and how many of them may be verified.
        prefill : tuple of int
            Tokens of prompts that the step is likely to carry, and prompts likely to end in it.
        """
        began = self._clock()
        if not self._drafter.plans_early:
            decision = self.controller.plan(self._view(roster, produced, prefill, limit, offered))
            self._current = DecidedDepths(decision, roster, offered, self._clock() - began)
            return decision.depth
        planned, self._ahead = self._ahead, None
        if planned is None:  # a hook failed when these drafts were asked for: as stock vLLM has it, then
            return offered
        more = prefill[0] - self._prefill[0]
        if more > 0 and more > REVISE_FROM * (len(roster) + int(limit.sum()) + self._prefill[0]):
            decision = self.controller.revise(planned.decision, self._view(roster, produced, prefill, limit, offered))
            seconds = planned.seconds + self._clock() - began
            self._current = DecidedDepths(decision, roster, offered, seconds)
            return decision.depth
        self._current = planned
        row, planned_row = roster.row, planned.roster.row
        if planned.roster is roster:
            planned.offered = offered
            return planned.decision.depth
        capacity = self._requests.capacity
        depth, on_table = np.zeros(capacity, dtype=np.int64), np.zeros(capacity, dtype=np.int64)
        depth[planned_row] = planned.decision.depth
        on_table[row] = offered
        planned.offered = on_table[planned_row]
        return depth[row]

    def in_effect(self) -> None:
        """The depths that :meth:`begin` returned are what the step verifies at most, for every request."""
        if self._current is not None:
            self._current.in_effect = True

    def take(self) -> DecidedDepths | None:
        """What was decided for the step that has just been scheduled."""
        decided, self._current = self._current, None
        return decided

    def unscheduled(self) -> DecidedDepths | None:
        """Nothing was scheduled after all: a plan stands for the next step; a decision was for nothing."""
        decided = self.take()
        if not self._drafter.plans_early:
            return decided
        self._ahead = decided
        return None

    def plan(self, passed: ScheduledPass, drafting: Roster, produced: IntArray) -> int:
        """A step was scheduled: how deep its drafter should draft for the next, whose depths may be planned here.

        Parameters
        ----------
        passed : ScheduledPass
        drafting : Roster
            Its requests that will decode in the next step.
        produced : int array, shape (B,)
            Their confirmed output tokens.
        """
        self._ahead = None
        self._prefill = passed.prefill_tokens, passed.sampling_prefills
        if not len(drafting):
            return 0
        if not self._drafter.plans_early:
            return self._deepest(drafting)
        began = self._clock()
        decision = self.controller.plan(self._view(drafting, produced, self._prefill))
        self._ahead = DecidedDepths(decision, drafting, NO_COUNTS, self._clock() - began)
        return self._max_depth if self._any_unadapted(drafting) else int(decision.draft_depth)

    def _deepest(self, drafting: Roster) -> int:
        """The most drafts that any of these requests may want."""
        requests = self._requests
        if not requests.capped or self._any_unadapted(drafting):
            return self._max_depth
        return int(requests.cap[drafting.row].max())

    def _any_unadapted(self, drafting: Roster) -> bool:
        """Whether any of these requests keeps vLLM's own depth, which is K."""
        return bool(self._requests.unadapted) and not drafting.adapted.all()

    def forget(self) -> None:
        """What was planned holds no more."""
        self._ahead = self._current = None

    def _view(
        self,
        roster: Roster,
        produced: IntArray,
        prefill: tuple[int, int],
        limit: IntArray | None = None,
        offered: IntArray | None = None,
    ) -> StepView:
        """The step as the controller sees it; of the next one, limits and drafts on offer aren't known yet."""
        # In flight are this step's token for sure and, with asynchronous scheduling, one of the step before;
        # what else they bring is known when the next step begins, and cut off then.
        to_come = 1 + self._asynchronous
        evidence, context, ahead = self._requests.view(roster, produced, to_come, self._evidence)
        if limit is None or offered is None:
            limit = offered = ahead  # the controller keeps it within 0..K
        view = StepView(roster.row, limit, context, evidence, roster.weight, *prefill)
        if self._requests.unadapted:
            # They are pinned to what the controller may give; what vLLM verifies beyond it are positions, too.
            pinned = np.clip(limit, 0, self.controller.max_depth)
            beyond = np.maximum(np.minimum(offered, self._max_depth) - pinned, 0)
            view.carried_drafts = int(beyond @ self._requests.stock[roster.row])
        return view
