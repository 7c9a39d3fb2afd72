"""MatchedText: how much of the end of each request's text stood in it before, which lookup drafts rest on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_spec.step import IntArray
from adaptive_spec.vllm_plugin.roster import Roster

LONGEST = 32_768  # tokens kept of one text; of a longer one, its end
BUCKETS = 4096  # of the hash of two tokens, for each text


class MatchedText:
    """Texts of the requests that decode, and the length of each one's longest match: evidence of lookup drafts.

    vLLM's n-gram proposer works the match out in the worker, and doesn't hand it over. Here every text has an index
    that grows with it: of each pair of tokens, its places from the latest back (as LZ77 compressors have them,
    RFC 1951). Work per token is constant, and nothing is searched anew while a match goes on. The match is the
    longest among the sixteen latest places of the last two tokens; how long it is beyond 32 tokens is known as far as
    it was seen to grow.

    Parameters
    ----------
    most_texts : int
        Requests that decode at a time, at most.
    most_tokens : int
        Tokens of a text, at most.

    Attributes
    ----------
    length : int array, shape (capacity,)
        By row: tokens of the match. 1 where it is shorter than two tokens: drafts then rest on one.
    """

    def __init__(self, most_texts: int, most_tokens: int) -> None:
        from adaptive_spec.vllm_plugin import text_loops  # numba is loaded with the first scheduler

        self._loops = text_loops
        most_tokens = max(min(most_tokens, LONGEST), 2)
        # Zeros take no memory until they are written over.
        self._texts: NDArray[Any] = np.zeros((most_texts, most_tokens, 2), dtype=np.int32)
        self._latest: NDArray[Any] = np.zeros((most_texts, BUCKETS), dtype=np.int32)
        self._end: IntArray = np.zeros(most_texts, dtype=np.int64)
        self._behind: IntArray = np.zeros(most_texts, dtype=np.int64)
        self._free = list(range(most_texts))
        self._number: IntArray = np.zeros(0, dtype=np.int64)  # of each row's text, -1 for none
        self._ready: Roster | None = None  # whose texts are known to be there
        self.length: IntArray = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._end) - len(self._free)

    def tokens(self, row: int) -> list[int]:
        """What is kept of the text of a row; nothing if none is."""
        number = self._number[row]
        tokens: list[int] = [] if number < 0 else self._texts[number, : self._end[number], 0].tolist()
        return tokens

    def reserve(self, capacity: int) -> None:
        """Have room for so many rows."""
        more = capacity - len(self._number)
        if more > 0:
            self._number = np.concatenate((self._number, np.full(more, -1, dtype=np.int64)))
            self.length = np.concatenate((self.length, np.ones(more, dtype=np.int64)))

    def forget(self, row: int) -> None:
        """The request of this row has ended, or its text is to be read anew."""
        number = int(self._number[row])
        if number >= 0:
            self._number[row] = -1
            self._free.append(number)
        self.length[row] = 1
        self._ready = None

    def clear(self) -> None:
        """Read all texts anew."""
        for row in self._rows().tolist():
            self.forget(row)

    def _rows(self) -> IntArray:
        """Rows of which a text is kept."""
        rows: IntArray = np.flatnonzero(self._number >= 0)
        return rows

    def make_ready(self, roster: Roster, requests: Sequence[Any]) -> None:
        """Read the texts of those of these requests that none is kept of; both in the same order."""
        if roster is self._ready:
            return
        missing = np.flatnonzero(self._number[roster.row] < 0).tolist()
        if len(missing) > len(self._free):  # the others hold theirs, though they don't decode
            for row in np.setdiff1d(self._rows(), roster.row).tolist():
                self.forget(row)
        for i in missing:
            self._begin(int(roster.row[i]), requests[i].all_token_ids)
        self._ready = roster

    def _begin(self, row: int, text: Sequence[int]) -> None:
        most = self._texts.shape[1]
        kept = text[:] if len(text) < most else text[-(most // 2) :]
        new = np.fromiter(kept, np.int64, len(kept))
        number = self._number[row] = self._free.pop()
        self._latest[number] = 0
        self._end[number] = self._behind[number] = 0
        self.length[row] = 1
        self._extend(np.array([row]), np.zeros(1, dtype=np.int64), np.array([len(new)]), new)

    def extend(self, row: IntArray, start: IntArray, count: IntArray, sampled: Iterable[Sequence[int]]) -> None:
        """Append what a step has sampled, to those texts that are kept.

        Parameters
        ----------
        row : int array, shape (N,)
            The step's requests.
        start, count : int array, shape (N,)
            Where among all that was sampled each one's tokens begin, and how many of them are its text's.
        sampled : iterable of lists of int
        """
        self._extend(row, start, count, np.fromiter(chain.from_iterable(sampled), np.int64))

    def _extend(self, row: IntArray, start: IntArray, count: IntArray, new: IntArray) -> None:
        self._loops.extend_texts(
            row, start, count, new, self._number, self._texts, self._latest, self._end, self._behind, self.length
        )  # fmt: skip
