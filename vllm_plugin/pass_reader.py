"""PassReader: reads from vLLM's record of a step what its pass carries."""

from __future__ import annotations

from typing import Any

import numpy as np

from adaptive_spec.step import BoolArray, IntArray
from adaptive_spec.vllm_plugin.roster import Roster
from adaptive_spec.vllm_plugin.scheduled_pass import DecidedDepths, DraftsLeft, ScheduledPass
from adaptive_spec.vllm_plugin.sequence_requests import SequenceRequests


class PassReader:
    """Reads passes, and brings up to date which requests decode.

    Parameters
    ----------
    requests : SequenceRequests
    """

    def __init__(self, requests: SequenceRequests) -> None:
        self._requests = requests

    def read(
        self,
        output: Any,
        live: dict[str, Any],
        left: DraftsLeft | None,
        launched: float,
        decided: DecidedDepths | None,
        drafted_before: int,
    ) -> tuple[ScheduledPass, Roster, IntArray]:
        """The pass, its requests that will decode in the next step, and their confirmed output tokens.

        Parameters
        ----------
        output : SchedulerOutput
            Before the requests' counts are advanced.
        live : dict of str to Request
            vLLM's live requests.
        left : DraftsLeft, optional
            What was on the table when the step began.
        launched, decided, drafted_before
            As in :class:`~adaptive_spec.vllm_plugin.scheduled_pass.ScheduledPass`.
        """
        requests = self._requests
        for new in output.scheduled_new_reqs:
            requests.restart(live[new.req_id])
        for request_id in output.scheduled_cached_reqs.resumed_req_ids:
            requests.restart(live[request_id])
        roster = requests.roster(list(output.num_scheduled_tokens))
        total: int = output.total_num_scheduled_tokens
        sequences = len(roster)
        ending: tuple[int, ...] = ()
        drafting: Roster = roster
        if left is not None and left.roster is roster and total == sequences + left.made:
            # The common case: whoever was to decode does, with all drafts that were left, and nobody else.
            drafts, produced, carried, written = left.drafts, left.produced, total, left.written
        else:
            decoding = requests.decoding[roster.row]
            sequences = int(np.count_nonzero(decoding))
            sampling = decoding
            if sequences < len(roster):
                sampling, ending = self._sampling(output, live, roster, decoding)
                requests.decoding[roster.row] = sampling
            drafts = _drafts(output, roster.ids, decoding)
            carried = sequences + int(drafts[decoding].sum())
            produced = requests.produced[roster.row]
            written = int(produced.sum())
            if not sampling.all():
                drafting, produced = requests.part(roster, sampling), produced[sampling]
        passed = ScheduledPass(
            output,
            launched,
            decided,
            roster,
            drafts,
            drafting is roster,
            positions=total,
            sequences=sequences,
            context=roster.prompt_tokens + written,
            prefill_tokens=total - carried,
            sampling_prefills=len(ending),
            ending=ending,
            drafted_before=drafted_before,
        )
        return passed, drafting, produced

    @staticmethod
    def _sampling(
        output: Any, live: dict[str, Any], roster: Roster, decoding: BoolArray
    ) -> tuple[BoolArray, tuple[int, ...]]:
        """The requests whose part in the step ends with a token, shape (N,); the places of those that end a prompt."""
        sampling, ending = decoding.copy(), []
        for i in np.flatnonzero(~decoding).tolist():
            request = live[roster.ids[i]]
            reached = request.num_computed_tokens + output.num_scheduled_tokens[roster.ids[i]]
            if reached >= request.num_tokens + request.num_output_placeholders:
                sampling[i] = True
                ending.append(i)
        return sampling, tuple(ending)


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
