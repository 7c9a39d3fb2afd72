"""An n-gram table that is learned as the engine emits, and forgets what it hasn't met for longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

_TOKEN_BITS = 24

# Of one context: the leading continuation and its count, the challenger and its count, all that was seen.
_Entry: TypeAlias = list[int]


class OnlineNgramTable:
    """Most frequent continuations of the contexts of 1..`order` tokens that were emitted lately.

    Each context remembers two candidates, the leader and a challenger that takes its place once it was
    seen more often (the space-saving sketch of Metwally et al. 2005, with two counters), so an entry has a
    fixed size. Contexts live in two generations: when the young one holds half of `max_entries`, it becomes
    the old one, whose contexts are dropped at the next change unless they were met again.

    Parameters
    ----------
    order : int
        Tokens in the longest contexts (>= 1).
    max_entries : int
        The most contexts to hold (>= 2); some 250 bytes each.
    """

    def __init__(self, order: int = 4, max_entries: int = 100_000) -> None:
        if order < 1:
            raise ValueError(f"order is {order}; it must be at least 1")
        if max_entries < 2:
            raise ValueError(f"max_entries is {max_entries}; it must be at least 2")
        self.order = order
        self.max_entries = max_entries
        self._young: dict[int, _Entry] = {}
        self._old: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def learn(self, text: Sequence[int], emitted: int) -> None:
        """Count the last `emitted` tokens of `text`, each as the continuation of what stands before it."""
        for at in range(max(1, len(text) - emitted), len(text)):
            token = text[at]
            key = 1  # a leading 1, so that contexts of different lengths have different keys
            for g in range(1, min(self.order, at) + 1):
                key = key << _TOKEN_BITS | text[at - g]
                entry = self._young.get(key)
                if entry is None:
                    entry = self._old.pop(key, None)
                    if entry is None:
                        entry = [token, 0, -1, 0, 0]
                    if len(self._young) >= self.max_entries // 2:
                        self._old, self._young = self._young, {}
                    self._young[key] = entry
                entry[4] += 1
                if token == entry[0]:
                    entry[1] += 1
                elif token == entry[2]:
                    entry[3] += 1
                    if entry[3] > entry[1]:
                        entry[0], entry[1], entry[2], entry[3] = entry[2], entry[3], entry[0], entry[1]
                else:
                    entry[2], entry[3] = token, 1

    def best(self, text: Sequence[int]) -> tuple[int, int, float]:
        """Look up what follows `text`.

        Returns
        -------
        token : int
            The leading continuation of the longest known context; -1 if even the last token is unknown.
        matched : int
            Tokens in that context.
        agreement : float
            Share of the context's occurrences that the token followed, as :meth:`NgramTable.agreement`.
        """
        young, old = self._young, self._old
        found: _Entry | None = None
        matched = 0
        key = 1
        for g in range(1, min(self.order, len(text)) + 1):
            key = key << _TOKEN_BITS | text[-g]
            entry = young.get(key) or old.get(key)
            if entry is None:
                # A longer context is only ever met together with this part of it: it hardly outlives it.
                break
            found, matched = entry, g
        if found is None:
            return -1, 0, 0.0
        return found[0], matched, found[1] / (found[4] + 1.0)
