"""DepthControl: between vLLM's scheduler and the controller; decides, cuts, observes, step by step."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from adaptive_spec.controller import Controller
from adaptive_spec.step import BoolArray, IntArray, Outcome
from adaptive_spec.vllm_plugin.awaited_prefill import awaited_prefill
from adaptive_spec.vllm_plugin.drafters import Drafter
from adaptive_spec.vllm_plugin.overrides import Overrides
from adaptive_spec.vllm_plugin.pass_results import PassResults
from adaptive_spec.vllm_plugin.scheduled_pass import DecidedDepths, ScheduledPass
from adaptive_spec.vllm_plugin.sequence_requests import SequenceRequests
from adaptive_spec.vllm_plugin.share import is_in_share
from adaptive_spec.vllm_plugin.step_clock import StepClock
from adaptive_spec.vllm_plugin.step_planner import StepPlanner
from adaptive_spec.vllm_plugin.step_report import StepReport, Watcher

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
        self._results = PassResults(requests)
        self._passes: dict[int, ScheduledPass] = {}
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

    def add(self, request: Any, overrides: Overrides) -> None:
        """Begin a request of vLLM's; one that is known already brings a session's next prompt, which waits its turn."""
        if request.request_id in self.requests.row_of:
            return
        adapted = self.steers and is_in_share(request.request_id, self.share)
        decided = adapted or not self.steers  # a shadow decides for those that it doesn't adapt
        pin = overrides.pin if decided else self.max_depth
        cap = overrides.cap if decided else None
        row = self.controller.add(request.request_id, weight=overrides.weight, max_depth=cap, pinned_depth=pin)
        self.requests.add(
            request,
            row,
            cap=self.max_depth if cap is None else min(cap, self.max_depth),
            weight=overrides.weight,
            adapted=adapted,
        )
        if self.watcher is not None:
            self._tell(self.watcher.request, adapted)

    def remove(self, request_id: str) -> None:
        """End a request; one that is unknown is none of the plugin's."""
        if self.requests.remove(request_id):
            self.controller.remove(request_id)

    # ---------------------------------------------------------------- before vLLM schedules a step

    def begin(self, running: list[Any], waiting: Any, token_budget: int, slots: int) -> None:
        """A step begins: decide on it, or lower what was planned, and cut the drafts on the table to the depths.

        Parameters
        ----------
        running, waiting : Requests
            vLLM's queues.
        token_budget, slots : int
            Tokens that the step may carry, and waiting requests that it may admit.
        """
        self._launched, ended = self.clock.launch()
        if ended is not None:
            self._settle(ended)
        if self.watcher is not None:
            self._tell(self.watcher.tick, self._launched)
        self.planner.take()
        ids = [request.request_id for request in running]
        row = self.requests.rows(ids)
        decoding = self.requests.decoding[row]
        requests, prefill = running, (0, 0)
        if not decoding.all():
            requests = [running[i] for i in np.flatnonzero(decoding).tolist()]
            ids = [request.request_id for request in requests]
            row = row[decoding]
        if waiting or len(requests) < len(running):
            prefill = awaited_prefill(running, waiting, token_budget - len(requests), slots)
        if not requests:
            self.planner.forget()
            return
        drafts = [request.spec_token_ids for request in requests]
        offered = np.fromiter(map(len, drafts), np.int64, len(drafts))
        if self.mode == "off":
            depth = np.zeros(len(row), dtype=np.int64)
        else:
            limit = self.requests.remaining[row] - 1
            if self.asynchronous:
                # Placeholders of the steps whose results are still to come, accepted or not: so no draft is
                # ever verified for nothing because the request had reached its last token.
                limit -= np.fromiter([request.num_output_placeholders for request in requests], np.int64, len(row))
            np.minimum(limit, offered, out=limit)
            np.maximum(limit, 0, out=limit)
            depth = self.planner.begin(ids, row, offered, limit, prefill)
        if not self.steers:
            return
        over = offered > depth
        if self.requests.unadapted:
            over &= self.requests.adapted[row]
        wanted = depth.tolist()
        for i in np.flatnonzero(over).tolist():
            # A new list: with asynchronous scheduling all requests share one list of placeholders.
            requests[i].spec_token_ids = drafts[i][: wanted[i]]

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
        requests = self.requests
        for new in output.scheduled_new_reqs:
            requests.restart(live[new.req_id])
        for request_id in output.scheduled_cached_reqs.resumed_req_ids:
            requests.restart(live[request_id])
        if self.asynchronous and output.preempted_req_ids:
            self._results.preempted(output.preempted_req_ids)
        ids = list(output.num_scheduled_tokens)
        row = requests.rows(ids)
        decoding = requests.decoding[row]
        drafting = decoding
        ends = 0
        sequences = int(np.count_nonzero(decoding))
        if sequences < len(ids):
            drafting = decoding.copy()
            for i in np.flatnonzero(~decoding).tolist():
                request = live[ids[i]]
                reached = request.num_computed_tokens + output.num_scheduled_tokens[ids[i]]
                if reached >= request.num_tokens + request.num_output_placeholders:
                    drafting[i] = True
                    ends += 1
            requests.decoding[row] = drafting
        drafts = self._drafts(output, ids, decoding)
        carried = sequences + int(drafts[decoding].sum())
        passed = ScheduledPass(
            output,
            self._launched,
            self.planner.take(),
            ids,
            row,
            requests.stamp[row],
            drafts,
            decoding,
            positions=output.total_num_scheduled_tokens,
            sequences=sequences,
            context=int(requests.tokens[row].sum()),
            prefill_tokens=output.total_num_scheduled_tokens - carried,
            sampling_prefills=ends,
            drafted_before=self._asked,
        )
        asked: int = output.num_spec_tokens_to_schedule
        if self.mode == "off":
            self.planner.forget()
            if self.drafter.drafts_fewer:
                asked = self.max_depth if requests.unadapted else 0
        else:
            wanted = self.planner.plan(passed, drafting)
            if self.drafter.drafts_fewer and self.steers:
                asked = wanted
        passed.drafts_asked = self._asked = asked
        self._passes[id(output)] = passed
        if len(self._passes) > KEPT:
            del self._passes[next(iter(self._passes))]
        self.clock.launched(passed)
        return asked

    @staticmethod
    def _drafts(output: Any, ids: list[str], decoding: BoolArray) -> IntArray:
        """Drafts that each request of a step carries, shape (N,)."""
        spec = output.scheduled_spec_decode_tokens
        if not spec:
            return np.zeros(len(ids), dtype=np.int64)
        # A decoding request has one position and its drafts, so the sums must agree; if not, count one by one.
        drafts = np.fromiter(output.num_scheduled_tokens.values(), np.int64, len(ids))
        drafts -= 1
        drafts *= decoding
        if int(drafts.sum()) != sum(map(len, spec.values())):
            drafts = np.fromiter((len(spec.get(id, ())) for id in ids), np.int64, len(ids))
        return drafts

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
        self.clock.complete(passed)
        counted = self._results.count(passed, output, results, live)
        self.verified += int(counted.verified.sum())
        self.accepted += int(counted.accepted.sum())
        passed.tokens = counted.worth
        passed.answered = True
        decided = passed.decided
        if decided is not None:
            drafted, verified, accepted, emitted, alive = self._results.of_decision(passed, decided, counted)
            self._teach(decided, drafted, verified, accepted, alive)
            if self.watcher is not None:
                self._tell(
                    self.watcher.step,
                    StepReport(
                        self.mode,
                        decided.decision,
                        decided.ids,
                        self.requests.adapted[decided.row] if self.steers else np.zeros(len(decided.row), dtype=bool),
                        alive,
                        drafted,
                        verified,
                        accepted,
                        emitted,
                        max(passed.drafted_before, int(drafted.max())),  # a request may have waited with older drafts
                        passed.prefill_tokens,
                        passed.sampling_prefills,
                        decided.seconds,
                    ),
                )
        self._settle(passed)

    def _teach(
        self, decided: DecidedDepths, drafted: IntArray, verified: IntArray, accepted: IntArray, alive: BoolArray
    ) -> None:
        """Tell the controller what its own depths brought, or would have brought where others were in effect."""
        verified = np.minimum(verified, decided.decision.depth)
        accepted = np.minimum(accepted, verified)
        ids = decided.ids
        if not alive.all():
            keep = np.flatnonzero(alive)
            ids = [ids[i] for i in keep.tolist()]
            drafted, verified, accepted = drafted[keep], verified[keep], accepted[keep]
        self.controller.observe(Outcome(decided.decision.step, ids, drafted, verified, accepted))

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
        decided = self.planner.unscheduled()
        if decided is not None:
            nothing = np.zeros(len(decided.row), dtype=np.int64)
            alive = self.requests.stamp[decided.row] == decided.stamp
            self._teach(decided, nothing, nothing, nothing, alive)

    def end(self, busy: bool) -> None:
        """A step's results were handed out; `busy` says whether any request is left."""
        if not busy:
            self.clock.idle()
            self.planner.forget()

    # ---------------------------------------------------------------- faults and the end

    def recover(self, where: str, error: Exception) -> None:
        """Forget the steps under way after a fault, so that they go on as stock vLLM would have them."""
        self.faults[where] += 1
        self.planner.forget()
        self._passes.clear()
        self.clock.idle()
        self._out_of_date = True
        if self.watcher is not None:
            self._tell(self.watcher.fault, where, error)

    def bring_up_to_date(self, live: dict[str, Any], running: list[Any]) -> None:
        """Take all counts anew from vLLM's requests, where steps went unseen."""
        if not self._out_of_date:
            return
        for request_id in [id for id in self.requests.row_of if id not in live]:
            self.remove(request_id)
        for request in live.values():
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

    def close(self) -> None:
        """The scheduler shuts down."""
        if self.watcher is not None:
            self._tell(self.watcher.close)
