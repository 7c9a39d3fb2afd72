"""DepthControl: between vLLM's scheduler and the controller; decides, cuts, observes, step by step."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from adaptive_spec.controller import Controller
from adaptive_spec.step import BoolArray, IntArray, Outcome
from adaptive_spec.vllm_plugin.awaited_prefill import AwaitedPrefill
from adaptive_spec.vllm_plugin.drafters import Drafter
from adaptive_spec.vllm_plugin.overrides import Overrides
from adaptive_spec.vllm_plugin.pass_reader import PassReader
from adaptive_spec.vllm_plugin.pass_report import report_of
from adaptive_spec.vllm_plugin.pass_results import PassResults
from adaptive_spec.vllm_plugin.roster import Roster
from adaptive_spec.vllm_plugin.scheduled_pass import NO_COUNTS, DecidedDepths, DraftsLeft, ScheduledPass
from adaptive_spec.vllm_plugin.sequence_requests import SequenceRequests
from adaptive_spec.vllm_plugin.share import is_in_share
from adaptive_spec.vllm_plugin.step_clock import StepClock
from adaptive_spec.vllm_plugin.step_planner import StepPlanner
from adaptive_spec.vllm_plugin.step_report import Watcher

logger = logging.getLogger(__name__)

Mode = Literal["on", "shadow", "off"]
KEPT = 64  # passes without results that are kept at most; vLLM has two in flight, or one per pipeline stage


class DepthControl:
    """Gives the requests of one vLLM scheduler their depths.

    The scheduler tells it of every step three times: when it begins (:meth:`begin`), when it is scheduled
    (:meth:`scheduled`) and when its results are there (:meth:`observe`).

    Parameters
    ----------
    controller : Controller
    requests : SequenceRequests
    drafter : Drafter
    max_depth : int
        K: vLLM's ``num_speculative_tokens``.
    asynchronous : bool
        Whether steps are scheduled before the results of the one before are there.
    clock : StepClock
    mode, share
        As in the tuning file; :meth:`retune` changes them.

    Attributes
    ----------
    planner : StepPlanner
        Asks the controller.
    watcher : Watcher, optional
        Told of every step.
    faults : Counter
        Faults of the hooks, by place.
    verified, accepted : int
        Drafts judged and kept so far, over all requests, as vLLM's own statistics count them.
    """

    def __init__(
        self,
        controller: Controller,
        requests: SequenceRequests,
        drafter: Drafter,
        max_depth: int,
        *,
        asynchronous: bool,
        clock: StepClock,
        mode: Mode = "on",
        share: float = 1.0,
    ) -> None:
        self.requests = requests
        self.drafter = drafter
        self.max_depth = max_depth
        self.asynchronous = asynchronous
        self.clock = clock
        self.mode = mode
        self.share = share
        self.watcher: Watcher | None = None
        self.faults: Counter[str] = Counter()
        self.verified = self.accepted = 0
        self.planner = StepPlanner(controller, requests, drafter, max_depth, asynchronous, clock.clock)
        self._reader = PassReader(requests)
        self._results = PassResults(requests)
        self._awaited = AwaitedPrefill()
        self._left: DraftsLeft | None = None  # on the table of the step that is being scheduled
        self._passes: dict[int, ScheduledPass] = {}  # under way
        self._latest: ScheduledPass | None = None
        self._launched = 0.0
        self._asked = max_depth  # drafts that the drafter was last asked for
        self._out_of_date = False  # the requests' tables, after a fault

    # ---------------------------------------------------------------- settings and requests

    @property
    def controller(self) -> Controller:
        """Decides and learns."""
        return self.planner.controller

    @property
    def steers(self) -> bool:
        """Whether depths are put into effect; in shadow mode they are only reported."""
        return self.mode != "shadow"

    def retune(self, mode: Mode, share: float) -> None:
        """Go on by another mode and share, between any two steps; requests that run keep what they began with."""
        self.mode, self.share = mode, share
        if mode == "off" and self.requests.texts is not None:
            self.requests.texts.clear()  # nobody asks for them until the next change

    def add(self, request: Any, overrides: Overrides) -> None:
        """Begin a request of vLLM's; one that is known already brings a session's next prompt, which waits its turn."""
        if request.request_id in self.requests.row_of:
            return
        if self.watcher is not None:  # no step may have been for long: an edited tuning holds from this request on
            self._tell(self.watcher.tick, self.clock.clock())
        adapted = self.steers and is_in_share(request.request_id, self.share)
        decided = adapted or not self.steers  # a shadow decides for those that it doesn't adapt
        pin = overrides.pin if decided else self.max_depth
        cap = overrides.cap if decided else None
        row = self.controller.add(request.request_id, weight=overrides.weight, max_depth=cap, pinned_depth=pin)
        cap = self.max_depth if cap is None else min(cap, self.max_depth)
        try:
            self.requests.add(request, row, cap=cap, weight=overrides.weight, adapted=adapted, stock=not decided)
        except Exception:  # known to both or to neither, or it would be in the way of all others
            self.requests.remove(request.request_id)
            self.controller.remove(request.request_id)
            raise
        if getattr(request, "resumable", False):
            self._results.session(request.request_id)
        if self.watcher is not None:
            self._tell(self.watcher.request, adapted)

    def remove(self, request_id: str) -> None:
        """End a request; one that is unknown is none of the plugin's."""
        self._results.forget(request_id)
        if self.requests.remove(request_id):
            self.controller.remove(request_id)

    # ---------------------------------------------------------------- before vLLM schedules a step

    def begin(self, running: list[Any], waiting: Any, token_budget: int, slots: int) -> None:
        """A step begins: decide on it, or lower what was planned, and cut the drafts on the table to the depths.

        Parameters
        ----------
        running, waiting : Requests
            vLLM's queues; of the first, those that this step may carry.
        token_budget, slots : int
            Tokens that the step may carry, and waiting requests that it may admit.
        """
        self._launched, ended = self.clock.launch()
        if ended is not None:
            self._settle(ended)
        if self.watcher is not None:
            self._tell(self.watcher.tick, self._launched)
        self.planner.take()
        self._left = None
        tables = self.requests
        roster, requests, prefill = tables.roster_of(running), running, (0, 0)
        if not tables.all_decode(roster):
            decoding = tables.decoding[roster.row]
            requests = [running[i] for i in np.flatnonzero(decoding).tolist()]
            roster = tables.part(roster, decoding)
        if waiting or len(requests) < len(running):
            prefill = self._awaited.estimate(running, waiting, token_budget - len(requests), slots)
        else:
            self._awaited.none_waits()
        if not requests:
            self.planner.forget()
            return
        drafts, offered = self._on_table(roster, requests)
        # Placeholders of the steps whose results are still to come count, accepted or not: so no draft is ever
        # verified for nothing because the request had reached its last token.
        under_way = self._placeholders(roster, requests) if self.asynchronous else NO_COUNTS
        produced, limit, written = tables.room(roster, offered, under_way)
        if self.mode == "off":
            wanted = np.zeros(len(roster), dtype=np.int64)
        else:
            if tables.texts is not None:
                tables.texts.make_ready(roster, requests)
            wanted = self.planner.begin(roster, produced, offered, limit, prefill)
        if not self.steers:
            wanted = limit = offered
        elif tables.unadapted and self.mode != "off":
            wanted, limit = np.where(roster.adapted, np.minimum(wanted, limit), offered), offered
        else:
            self.planner.in_effect()
        depth, over, made = tables.cut(wanted, limit, offered)
        # A new list: with asynchronous scheduling all requests share one list of placeholders.
        for i, most in zip(over.tolist(), depth[over].tolist(), strict=True):
            requests[i].spec_token_ids = (drafts[i] if drafts else requests[i].spec_token_ids)[:most]
        self._left = DraftsLeft(roster, produced, depth, made, written)

    def _on_table(self, roster: Roster, requests: list[Any]) -> tuple[list[list[int]], IntArray]:
        """Drafts on the table of each request, as far as they were looked at, and how many there are, shape (B,)."""
        latest = self._latest
        if self.asynchronous and latest is not None and latest.roster is roster and latest.all_sample:
            # vLLM gave all of them the same list of placeholders after the latest step.
            shared = requests[0].spec_token_ids
            if shared is requests[-1].spec_token_ids and len(shared) == latest.drafts_asked:
                return [], np.full(len(requests), latest.drafts_asked, dtype=np.int64)
        drafts = [request.spec_token_ids for request in requests]
        return drafts, np.fromiter(map(len, drafts), np.int64, len(requests))

    def _placeholders(self, roster: Roster, requests: list[Any]) -> IntArray:
        """Tokens that the passes under way may bring for each request, as vLLM counts them, shape (B,)."""
        under_way = list(self._passes.values())
        if under_way and all(passed.roster is roster and passed.all_sample for passed in under_way):
            count = under_way[0].scheduled + len(under_way)
            for passed in under_way[1:]:
                count += passed.scheduled
            return count
        return np.fromiter([request.num_output_placeholders for request in requests], np.int64, len(requests))

    # ---------------------------------------------------------------- when vLLM has scheduled it

    def scheduled(self, output: Any, live: dict[str, Any]) -> int:
        """Record what the step carries, plan the next one, and return how deep the drafter should draft for it.

        Parameters
        ----------
        output : SchedulerOutput
            Before the requests' counts are advanced.
        live : dict of str to Request
            vLLM's live requests.
        """
        if self.asynchronous and output.preempted_req_ids:
            self._results.preempted(output.preempted_req_ids)
        self._awaited.scheduled(len(output.scheduled_new_reqs) + len(output.scheduled_cached_reqs.resumed_req_ids))
        passed, drafting, produced = self._reader.read(
            output, live, self._left, self._launched, self.planner.take(), self._asked
        )
        asked: int = output.num_spec_tokens_to_schedule
        if self.mode == "off":
            self.planner.forget()
            if self.drafter.drafts_fewer:
                asked = 0
        else:
            wanted = self.planner.plan(passed, drafting, produced)
            if self.drafter.drafts_fewer and self.steers:
                asked = wanted
        passed.drafts_asked = self._asked = asked
        self._passes[id(output)] = self._latest = passed
        if len(self._passes) > KEPT:
            del self._passes[next(iter(self._passes))]
        self.clock.launched(passed)
        return asked

    # ---------------------------------------------------------------- when its results are there

    def observe(self, output: Any, results: Any, live: dict[str, Any]) -> None:
        """Learn from a step's results, before vLLM trims them.

        Parameters
        ----------
        output : SchedulerOutput
        results : ModelRunnerOutput
        live : dict of str to Request
        """
        passed = self._passes.pop(id(output), None)
        if passed is None:  # a hook had failed when it was scheduled, or since
            self._out_of_date = True
            return
        passed.output = None
        self.clock.complete(passed)
        counted = self._results.count(passed, output, results, live)
        self.verified += counted.all_verified
        self.accepted += counted.all_accepted
        passed.bring(counted.worth, counted.emitted)
        # vLLM takes back what rested on KV blocks that couldn't be loaded.
        if getattr(getattr(results, "kv_connector_output", None), "invalid_block_ids", None):
            self._out_of_date = True
        decided = passed.decided
        if decided is not None:
            verified, accepted, emitted, alive = self._results.of_decision(passed, decided, counted)
            passed.tokens -= self._teach(decided, verified, accepted, alive)
            if self.watcher is not None:
                report = report_of(
                    passed, decided, (verified, accepted, emitted, alive), self.mode, self.steers, self.max_depth
                )
                self._tell(self.watcher.step, report)
        self._settle(passed)

    def _teach(self, decided: DecidedDepths, verified: IntArray, accepted: IntArray, alive: BoolArray | None) -> float:
        """Tell the controller what its own depths brought, or would have brought where others were in effect.

        Returns the worth of what was accepted beyond its depths.
        """
        decision, ids, drafted = decided.decision, decided.roster.ids, decided.offered
        beyond = 0.0
        if not decided.in_effect:
            verified, all_accepted = np.minimum(verified, decision.depth), accepted
            accepted = np.minimum(accepted, verified)
            beyond = float(decided.roster.weight @ (all_accepted - accepted))
        row: IntArray | None = decision.row
        if alive is not None:
            row, keep = None, np.flatnonzero(alive)
            ids = [ids[i] for i in keep.tolist()]
            drafted, verified, accepted = drafted[keep], verified[keep], accepted[keep]
        self.controller.observe(Outcome(decision.step, ids, drafted, verified, accepted, row))
        return beyond

    def _settle(self, passed: ScheduledPass) -> None:
        """Hand on a step's time once both its seconds and its tokens are known."""
        if not (passed.timed and passed.answered):
            return
        time = self.clock.time(passed)
        if time is None:
            return
        if self.steers and passed.decided is not None:
            self.controller.observe_time(time)
        elif self.controller.cost is not None:  # no decision, or one that was not put into effect: the pass counts
            self.controller.cost.observe(time)
        if self.watcher is not None:
            self._tell(self.watcher.timed, time)

    def unscheduled(self) -> None:
        """vLLM scheduled nothing in the step that began: what was planned for it stands, or was for nothing."""
        self._awaited.scheduled(0)
        decided = self.planner.unscheduled()
        if decided is not None:
            decided.offered = nothing = np.zeros(len(decided.roster), dtype=np.int64)
            self._teach(decided, nothing, nothing, self.requests.alive(decided.roster))

    def end(self, busy: bool, carried: bool) -> None:
        """A step's results are there; `busy` says whether any request has work left, `carried` whether it had any."""
        if not busy:
            self.clock.idle()
            self.planner.forget()
            # vLLM ends its work with a step that carries nothing, after the last results were handed out; but not
            # where sessions are left that await their next prompt.
            if (not carried or len(self.requests)) and self.watcher is not None:
                self._tell(self.watcher.idle)

    # ---------------------------------------------------------------- faults and the end

    def recover(self, where: str, error: Exception) -> None:
        """Forget the steps under way after a fault, so that they go on as stock vLLM would have them."""
        self.faults[where] += 1
        self.planner.forget()
        self._left = self._latest = None
        self._passes.clear()
        self.clock.idle()
        self._out_of_date = True
        if self.watcher is not None:
            self._tell(self.watcher.fault, where, error)

    def bring_up_to_date(self, live: dict[str, Any], running: list[Any]) -> None:
        """Take all counts anew from vLLM's requests, where steps went unseen."""
        if not self._out_of_date:
            return
        # One that has finished stays among vLLM's while its KV blocks are still being handed on.
        going_on = {id: request for id, request in live.items() if not request.is_finished()}
        for request_id in [id for id in self.requests.row_of if id not in going_on]:
            self.remove(request_id)
        for request in going_on.values():
            if request.request_id not in self.requests.row_of:
                self.add(request, Overrides())
            self.requests.restart(request)
        for request in running:
            self.requests.decoding[self.requests.row_of[request.request_id]] = not request.is_prefill_chunk
        self._out_of_date = False

    def _tell(self, call: Callable[..., None], *args: object) -> None:
        """Tell the watcher something; whatever it raises is its own affair."""
        try:
            call(*args)
        except Exception:
            if not self.faults["watcher"]:
                logger.exception("the watcher of the steps failed; the steps go on (logged once)")
            self.faults["watcher"] += 1

    def retire(self) -> None:
        """The hooks are called no more: let the last faults be seen."""
        if self.watcher is not None:
            self._tell(self.watcher.idle)

    def close(self) -> None:
        """The scheduler shuts down."""
        if self.watcher is not None:
            self._tell(self.watcher.close)
