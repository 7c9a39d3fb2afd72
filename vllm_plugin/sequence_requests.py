"""SequenceRequests: what the plugin keeps of every live request, in arrays by the controller's rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from adaptive_spec.step import BoolArray, FloatArray, IntArray

NEVER = -1  # last_accepted of a request none of whose drafts was verified yet


class SequenceRequests:
    """Tables over the rows that the controller gives requests; a step reads them in a few gathers.

    Attributes
    ----------
    row_of : dict of str to int
        Row of each live request, by its id.
    remaining : int array, shape (capacity,)
        Tokens that the request may still produce beyond its confirmed ones: by ``max_tokens`` and by the
        model's length, whichever ends first.
    tokens : int array, shape (capacity,)
        Confirmed tokens, the prompt's included.
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
    stamp : int array, shape (capacity,)
        Differs for every request that a row has held, so that a late output isn't taken for its successor's.
    unadapted, capped : int
        Live requests that keep vLLM's own depth; whose owners allow less than K.
    """

    def __init__(self, max_model_len: int, max_depth: int) -> None:
        self.max_model_len = max_model_len
        self.max_depth = max_depth
        self.row_of: dict[str, int] = {}
        self._stamps = 0
        self.unadapted = self.capped = 0
        self._known: tuple[list[str], IntArray] = ([], np.zeros(0, dtype=np.int64))
        self.remaining: IntArray = np.zeros(0, dtype=np.int64)
        self.tokens: IntArray = np.zeros(0, dtype=np.int64)
        self.produced: IntArray = np.zeros(0, dtype=np.int64)
        self.last_accepted: IntArray = np.zeros(0, dtype=np.int64)
        self.cap: IntArray = np.zeros(0, dtype=np.int64)
        self.weight: FloatArray = np.zeros(0)
        self.decoding: BoolArray = np.zeros(0, dtype=bool)
        self.adapted: BoolArray = np.zeros(0, dtype=bool)
        self.stamp: IntArray = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.row_of)

    @property
    def capacity(self) -> int:
        """Rows that the tables have."""
        return len(self.stamp)

    def add(self, request: Any, row: int, *, cap: int, weight: float, adapted: bool) -> None:
        """Begin a request of vLLM's in the row that the controller gave it."""
        if row >= self.capacity:
            self._grow(row + 1)
        self._stamps += 1
        self.row_of[request.request_id] = row
        self.stamp[row] = self._stamps
        self.cap[row] = cap
        self.weight[row] = weight
        self.adapted[row] = adapted
        self.unadapted += not adapted
        self.capped += cap < self.max_depth
        self.last_accepted[row] = NEVER
        self.restart(request)

    def restart(self, request: Any) -> None:
        """Take the counts anew from the request: it begins, or comes back after a preemption or with a new prompt."""
        row = self.row_of[request.request_id]
        produced, prompt = request.num_output_tokens, request.num_prompt_tokens
        self.produced[row] = produced
        self.tokens[row] = request.num_tokens
        self.remaining[row] = min(request.max_tokens, self.max_model_len - prompt) - produced
        self.decoding[row] = False

    def remove(self, request_id: str) -> bool:
        """End a request; False if it is unknown."""
        row = self.row_of.pop(request_id, None)
        if row is None:
            return False
        self.unadapted -= not self.adapted[row]
        self.capped -= bool(self.cap[row] < self.max_depth)
        self._known = ([], self._known[1][:0])
        self.stamp[row] = 0
        self.decoding[row] = False
        return True

    def rows(self, ids: list[str]) -> IntArray:
        """Rows of live requests, shape (len(ids),), not to be written to; KeyError names one that isn't live.

        Steps ask for the same requests again and again, so the latest answer is kept until a request ends.
        """
        if ids == self._known[0]:
            return self._known[1]
        row = np.fromiter(map(self.row_of.__getitem__, ids), np.int64, len(ids))
        self._known = (ids, row)
        return row

    def confirm(self, row: IntArray, emitted: IntArray) -> None:
        """Count the tokens that a step confirmed for these rows, no row twice."""
        self.tokens[row] += emitted
        self.produced[row] += emitted
        self.remaining[row] -= emitted

    def evidence(self, row: IntArray, columns: tuple[str, ...]) -> FloatArray:
        """What is known of these requests' next drafts, shape (B, F), column by column."""
        evidence = np.empty((len(row), len(columns)))
        for i, name in enumerate(columns):
            evidence[:, i] = self.produced[row] if name == "age" else self.last_accepted[row]
        return evidence

    def _grow(self, least: int) -> None:
        capacity = max(64, 2 * self.capacity, least)
        for name, old in list(vars(self).items()):
            if not isinstance(old, np.ndarray):
                continue
            new = np.zeros(capacity, dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
