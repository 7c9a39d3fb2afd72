"""SequenceRequests: what the plugin keeps of every live request, in arrays by the controller's rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from adaptive_spec import loops
from adaptive_spec.step import BoolArray, FloatArray, IntArray
from adaptive_spec.vllm_plugin.matched_text import MatchedText
from adaptive_spec.vllm_plugin.roster import Roster

NEVER = -1  # last_accepted of a request none of whose drafts was verified yet
EVIDENCE = ("age", "last_accepted", "matched_length")
NO_TABLE: IntArray = np.zeros(0, dtype=np.int64)


class SequenceRequests:
    """Tables over the rows that the controller gives requests; a step reads them by the roster of its requests.

    Parameters
    ----------
    max_model_len, max_depth : int
    texts : MatchedText, optional
        Kept beside them, where matched lengths are evidence.

    Attributes
    ----------
    row_of : dict of str to int
        Row of each live request, by its id.
    prompt : int array, shape (capacity,)
        Tokens of its prompt.
    most : int array, shape (capacity,)
        Tokens that the request may produce in all: by ``max_tokens`` and by the model's length, whichever ends
        first.
    produced : int array, shape (capacity,)
        Confirmed output tokens.
    last_accepted : int array, shape (capacity,)
        Drafts that its latest verification kept; -1 if there was none.
    cap : int array, shape (capacity,)
        The deepest depth that its owner allows.
    weight : float array, shape (capacity,)
        Worth of one of its tokens.
    decoding : bool array, shape (capacity,)
        Whether its prompt is in the KV cache, so that it decodes in every step that it is scheduled in.
    adapted : bool array, shape (capacity,)
        Whether the plugin gives it its depth; the others keep vLLM's own.
    stock : bool array, shape (capacity,)
        Whether the controller, too, counts it with vLLM's own depth: outside the share, but not in shadow mode.
    stamp : int array, shape (capacity,)
        Differs for every request that a row has held, so that a late output isn't taken for its successor's.
    unadapted, capped : int
        Live requests that keep vLLM's own depth; whose owners allow less than K.
    version : int
        Counts the requests that began, anew or for the first time, or ended.
    """

    def __init__(self, max_model_len: int, max_depth: int, texts: MatchedText | None = None) -> None:
        from adaptive_spec.vllm_plugin import request_loops  # numba is loaded with the first scheduler

        self._loops = request_loops
        self.max_model_len = max_model_len
        self.max_depth = max_depth
        self.texts = texts
        self.row_of: dict[str, int] = {}
        self._stamps = 0
        self.unadapted = self.capped = 0
        self.version = 0
        self.prompt: IntArray = np.zeros(0, dtype=np.int64)
        self.most: IntArray = np.zeros(0, dtype=np.int64)
        self.produced: IntArray = np.zeros(0, dtype=np.int64)
        self.last_accepted: IntArray = np.zeros(0, dtype=np.int64)
        self.cap: IntArray = np.zeros(0, dtype=np.int64)
        self.weight: FloatArray = np.zeros(0)
        self.decoding: BoolArray = np.zeros(0, dtype=bool)
        self.adapted: BoolArray = np.zeros(0, dtype=bool)
        self.stock: BoolArray = np.zeros(0, dtype=bool)
        self.stamp: IntArray = np.zeros(0, dtype=np.int64)
        self._roster = self._gather([])
        self._queue: list[Any] | None = None  # the requests of the roster, where it was asked for by them

    def __len__(self) -> int:
        return len(self.row_of)

    @property
    def capacity(self) -> int:
        """Rows that the tables have."""
        return len(self.stamp)

    def add(self, request: Any, row: int, *, cap: int, weight: float, adapted: bool, stock: bool = False) -> None:
        """Begin a request of vLLM's in the row that the controller gave it."""
        if row >= self.capacity:
            self._grow(row + 1)
        self._stamps += 1
        self.row_of[request.request_id] = row
        self.stamp[row] = self._stamps
        self.cap[row] = cap
        self.weight[row] = weight
        self.adapted[row] = adapted
        self.stock[row] = stock
        self.unadapted += not adapted
        self.capped += cap < self.max_depth
        self.last_accepted[row] = NEVER
        self.restart(request)

    def restart(self, request: Any) -> None:
        """Take the counts anew from the request: it begins, or comes back after a preemption or with a new prompt."""
        row = self.row_of[request.request_id]
        produced, prompt = request.num_output_tokens, request.num_prompt_tokens
        self.produced[row] = produced
        self.prompt[row] = request.num_tokens - produced
        self.most[row] = min(request.max_tokens, self.max_model_len - prompt)
        self.decoding[row] = False
        if self.texts is not None:
            self.texts.forget(row)
        self.version += 1

    def remove(self, request_id: str) -> bool:
        """End a request; False if it is unknown."""
        row = self.row_of.pop(request_id, None)
        if row is None:
            return False
        self.unadapted -= not self.adapted[row]
        self.capped -= bool(self.cap[row] < self.max_depth)
        self.stamp[row] = 0
        self.decoding[row] = False
        if self.texts is not None:
            self.texts.forget(row)
        self.version += 1
        self._queue = None
        return True

    def roster(self, ids: list[str]) -> Roster:
        """The roster of live requests; KeyError names one that isn't live."""
        known = self._roster
        if known.version != self.version or known.ids != ids:
            self._roster = known = self._gather(ids)
            self._queue = None
        return known

    def roster_of(self, queue: list[Any]) -> Roster:
        """The roster of vLLM's requests, as its queue has them; one that isn't live is a KeyError."""
        if self._roster.version != self.version or self._queue != queue:
            self.roster([request.request_id for request in queue])
            self._queue = queue.copy()
        return self._roster

    def part(self, roster: Roster, keep: BoolArray) -> Roster:
        """The roster of some of a roster's requests; `keep` has shape (N,)."""
        return self._gather([roster.ids[i] for i in np.flatnonzero(keep).tolist()], roster.row[keep])

    def all_decode(self, roster: Roster) -> bool:
        """Whether every request of the roster decodes in each step that it is scheduled in."""
        if not (roster.decoding and roster.version == self.version):
            roster.decoding = bool(np.count_nonzero(self.decoding[roster.row]) == len(roster.ids))
        return roster.decoding

    def alive(self, roster: Roster) -> BoolArray | None:
        """Which requests of a roster are still there, shape (N,); None for all of them."""
        if roster.version == self.version:
            return None
        alive: BoolArray = self.stamp[roster.row] == roster.stamp
        return None if alive.all() else alive

    def view(
        self, roster: Roster, produced: IntArray, to_come: int, columns: tuple[str, ...]
    ) -> tuple[FloatArray, IntArray, IntArray]:
        """Evidence of a roster's next drafts, shape (B, F), names out of `EVIDENCE`; its contexts and limits, (B,).

        See :func:`~adaptive_spec.vllm_plugin.request_loops.view_of`.
        """
        matched = NO_TABLE if self.texts is None else self.texts.length
        evidence, context, limit = self._loops.view_of(
            roster.row, roster.prompt, roster.before_last, produced, to_come, self.last_accepted, matched,
            _sources(columns),
        )  # fmt: skip
        return evidence.T, context, limit

    def take_results(
        self, roster: Roster, judged: IntArray, emitted: IntArray
    ) -> tuple[IntArray, IntArray, int, int, float]:
        """See :func:`~adaptive_spec.vllm_plugin.request_loops.take_results`."""
        taken: tuple[IntArray, IntArray, int, int, float] = self._loops.take_results(
            roster.row, roster.weight, judged, emitted, self.produced, self.last_accepted
        )
        return taken

    def room(self, roster: Roster, offered: IntArray, under_way: IntArray) -> tuple[IntArray, IntArray, int]:
        """See :func:`~adaptive_spec.vllm_plugin.request_loops.room_left`."""
        room: tuple[IntArray, IntArray, int] = self._loops.room_left(
            roster.row, roster.before_last, offered, under_way, self.produced
        )
        return room

    def cut(self, wanted: IntArray, limit: IntArray, offered: IntArray) -> tuple[IntArray, IntArray, int]:
        """See :func:`~adaptive_spec.vllm_plugin.request_loops.cut_drafts`."""
        cut: tuple[IntArray, IntArray, int] = self._loops.cut_drafts(loops.whole(wanted), limit, offered)
        return cut

    def _gather(self, ids: list[str], row: IntArray | None = None) -> Roster:
        if row is None:
            row = np.fromiter(map(self.row_of.__getitem__, ids), np.int64, len(ids))
        prompt = self.prompt[row]
        return Roster(
            ids,
            row,
            self.stamp[row],
            prompt,
            self.most[row] - 1,
            self.weight[row],
            self.adapted[row],
            int(prompt.sum()),
            self.version,
        )

    def _grow(self, least: int) -> None:
        capacity = max(64, 2 * self.capacity, least)
        for name, old in list(vars(self).items()):
            if not isinstance(old, np.ndarray):
                continue
            new = np.zeros(capacity, dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
        if self.texts is not None:
            self.texts.reserve(capacity)


@lru_cache(maxsize=8)
def _sources(columns: tuple[str, ...]) -> IntArray:
    """Where each column of the evidence is taken from."""
    return np.array([EVIDENCE.index(name) for name in columns], dtype=np.int64)
