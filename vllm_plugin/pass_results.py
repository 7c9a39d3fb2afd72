"""PassResults: counts what the results of a step say of its drafts, exactly as vLLM's own statistics do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive_spec.step import BoolArray, IntArray
from adaptive_spec.vllm_plugin.roster import Roster
from adaptive_spec.vllm_plugin.scheduled_pass import DecidedDepths, ScheduledPass
from adaptive_spec.vllm_plugin.sequence_requests import SequenceRequests


@dataclass(slots=True)
class Counted:
    """What a step brought, over all its requests.

    Attributes
    ----------
    verified, accepted, emitted : int array, shape (N,)
        Drafts judged and kept, and tokens gained, of each request of the pass, in its order.
    all_verified, all_accepted : int
        Sums of the first two.
    worth : float
        Worth of all tokens gained.
    """

    verified: IntArray
    accepted: IntArray
    emitted: IntArray
    all_verified: int
    all_accepted: int
    worth: float


class PassResults:
    """Counts results, and brings the requests' tables up to date.

    Parameters
    ----------
    requests : SequenceRequests
    """

    def __init__(self, requests: SequenceRequests) -> None:
        self._requests = requests
        self._maybe_stale: set[str] = set()  # were preempted with results under way
        self._sessions: set[str] = set()  # go on after a stop, whose results under way vLLM drops

    def preempted(self, ids: Iterable[str]) -> None:
        """These requests lost their KV blocks; results that are under way for them may count no more."""
        self._maybe_stale.update(ids)

    def session(self, request_id: str) -> None:
        """This request goes on with another prompt after each stop."""
        self._sessions.add(request_id)

    def forget(self, request_id: str) -> None:
        """This request has ended."""
        self._maybe_stale.discard(request_id)
        self._sessions.discard(request_id)

    def count(self, passed: ScheduledPass, output: Any, results: Any, live: dict[str, Any]) -> Counted:
        """Count a pass's results before vLLM trims them at a stop."""
        requests, roster = self._requests, passed.roster
        assert roster is not None
        lengths, place = self._sampled(roster, results)
        emitted = lengths if place is None else lengths[place]
        alive = requests.alive(roster)
        if alive is not None:
            emitted = np.where(alive, emitted, 0)
        if self._maybe_stale or self._sessions:
            emitted = self._without_dropped(roster, emitted, live)
        judged = passed.scheduled
        if output.num_invalid_spec_tokens:
            judged = judged.copy()
            invalid = output.num_invalid_spec_tokens  # drafts that a grammar cut after they were scheduled
            for i, request_id in enumerate(roster.ids):
                judged[i] -= invalid.get(request_id, 0)
        verified, accepted, all_verified, all_accepted, worth = requests.take_results(roster, judged, emitted)
        texts = requests.texts
        if texts is not None and len(texts) and results.sampled_token_ids:
            start = np.add.accumulate(lengths) - lengths
            if place is not None:
                start = start[place]
            texts.extend(roster.row, start, emitted, results.sampled_token_ids)
        return Counted(verified, accepted, emitted, all_verified, all_accepted, worth)

    @staticmethod
    def _sampled(roster: Roster, results: Any) -> tuple[IntArray, IntArray | None]:
        """How many tokens were sampled, in the results' order, and the place there of each request; None: its own."""
        sampled = results.sampled_token_ids
        if not sampled:
            return np.zeros(len(roster), dtype=np.int64), None
        lengths = np.fromiter(map(len, sampled), np.int64, len(sampled))
        if roster.ids == results.req_ids:
            return lengths, None
        index = results.req_id_to_index
        return lengths, np.fromiter((index[id] for id in roster.ids), np.int64, len(roster))

    def _without_dropped(self, roster: Roster, emitted: IntArray, live: dict[str, Any]) -> IntArray:
        """Leave out what vLLM drops: results that were under way when it began to sample the same places again.

        That happens after some preemptions, and after a session's stop, which is known when the next prompt begins.
        """
        emitted = emitted.copy()
        for i, request_id in enumerate(roster.ids):
            if request_id in self._maybe_stale or request_id in self._sessions:
                request = live.get(request_id)
                # Since vLLM 0.30; before, such results were always delivered.
                stale = 0 if request is None else getattr(request, "num_stale_output_tokens", 0)
                if stale <= 0:
                    self._maybe_stale.discard(request_id)
                elif getattr(request, "drop_stale_output", False):
                    emitted[i] = 0
        return emitted

    def of_decision(
        self, passed: ScheduledPass, decided: DecidedDepths, counted: Counted
    ) -> tuple[IntArray, IntArray, IntArray, BoolArray | None]:
        """Verified, accepted, emitted and who is still there (None: all), in the decision's order.

        A request that was decided on and not scheduled after all has zeros.
        """
        mine, theirs = decided.roster, passed.roster
        assert theirs is not None
        alive = self._requests.alive(mine)
        if mine is theirs or mine.row.tobytes() == theirs.row.tobytes():
            return counted.verified, counted.accepted, counted.emitted, alive
        place = np.full(self._requests.capacity, len(theirs), dtype=np.int64)
        place[theirs.row] = np.arange(len(theirs))
        place = place[mine.row]
        verified, accepted, emitted = (
            np.append(values, 0)[place] for values in (counted.verified, counted.accepted, counted.emitted)
        )
        return verified, accepted, emitted, alive
