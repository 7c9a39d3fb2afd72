"""PassResults: counts what the results of a step say of its drafts, exactly as vLLM's own statistics do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptive_spec.step import BoolArray, IntArray
from adaptive_spec.vllm_plugin.scheduled_pass import DecidedDepths, ScheduledPass
from adaptive_spec.vllm_plugin.sequence_requests import SequenceRequests


@dataclass(slots=True)
class Counted:
    """What a step brought, over all its requests.

    Attributes
    ----------
    verified, accepted, emitted : int array, shape (N,)
        Drafts judged and kept, and tokens gained, of each request of the pass, in its order.
    worth : float
        Worth of all tokens gained.
    """

    verified: IntArray
    accepted: IntArray
    emitted: IntArray
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

    def preempted(self, ids: Iterable[str]) -> None:
        """These requests lost their KV blocks; results that are under way for them may count no more."""
        self._maybe_stale.update(ids)

    def count(self, passed: ScheduledPass, output: Any, results: Any, live: dict[str, Any]) -> Counted:
        """Count a pass's results before vLLM trims them at a stop."""
        requests = self._requests
        count = len(passed.ids)
        sampled = results.sampled_token_ids
        alive = requests.stamp[passed.row] == passed.stamp
        if sampled:
            index = results.req_id_to_index
            lengths = np.fromiter(map(len, sampled), np.int64, len(sampled))
            if passed.ids == results.req_ids:
                emitted = lengths
            else:
                emitted = lengths[np.fromiter((index[id] for id in passed.ids), np.int64, count)]
        else:
            emitted = np.zeros(count, dtype=np.int64)
        lost = not alive.all()
        if lost:
            emitted = np.where(alive, emitted, 0)
        if self._maybe_stale:
            emitted = self._without_dropped(passed, emitted, live)
        judged = passed.scheduled
        if output.num_invalid_spec_tokens:
            judged = judged.copy()
            invalid = output.num_invalid_spec_tokens  # drafts that a grammar cut after they were scheduled
            for i, request_id in enumerate(passed.ids):
                judged[i] -= invalid.get(request_id, 0)
        verified = judged * (emitted > 0)
        accepted = np.minimum(emitted - 1, verified)
        np.maximum(accepted, 0, out=accepted)
        self._bring_up_to_date(passed, emitted, verified, accepted, alive if lost else None)
        worth = float(emitted @ requests.weight[passed.row])
        return Counted(verified, accepted, emitted, worth)

    def _bring_up_to_date(
        self, passed: ScheduledPass, emitted: IntArray, verified: IntArray, accepted: IntArray, alive: BoolArray | None
    ) -> None:
        requests, row = self._requests, passed.row
        if alive is not None:  # a row may have another owner by now
            row, emitted, verified, accepted = row[alive], emitted[alive], verified[alive], accepted[alive]
        requests.confirm(row, emitted)
        seen = verified > 0
        if seen.all():
            requests.last_accepted[row] = accepted
        else:
            requests.last_accepted[row[seen]] = accepted[seen]

    def _without_dropped(self, passed: ScheduledPass, emitted: IntArray, live: dict[str, Any]) -> IntArray:
        """Leave out what vLLM drops: results of before a preemption that made it sample the same places again."""
        emitted = emitted.copy()
        for i, request_id in enumerate(passed.ids):
            if request_id in self._maybe_stale:
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
    ) -> tuple[IntArray, IntArray, IntArray, IntArray, BoolArray]:
        """Drafted, verified, accepted, emitted and who is still there, in the decision's order.

        A request that was decided on and not scheduled after all has zeros.
        """
        alive = self._requests.stamp[decided.row] == decided.stamp
        if decided.row is passed.row or decided.row.tobytes() == passed.row.tobytes():
            return decided.offered, counted.verified, counted.accepted, counted.emitted, alive
        capacity = self._requests.capacity
        place = np.full(capacity, len(passed.row), dtype=np.int64)
        place[passed.row] = np.arange(len(passed.row))
        place = place[decided.row]
        verified, accepted, emitted = (
            np.append(values, 0)[place] for values in (counted.verified, counted.accepted, counted.emitted)
        )
        return decided.offered, verified, accepted, emitted, alive
