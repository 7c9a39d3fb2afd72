"""The drafter that proposes nothing: decoding without speculation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptive_spec.engine.drafters.base import Drafter, Offer, Packed, pack
from adaptive_spec.step import IntArray, SequenceId


class NoDrafter(Drafter):
    """Offers nothing, keeps nothing but the ids."""

    name = "none"

    def __init__(self) -> None:
        self._ids: set[SequenceId] = set()

    @property
    def fingerprint(self) -> str:
        return "none"

    def add(self, id: SequenceId, tokens: Sequence[int]) -> None:
        if id in self._ids:
            raise ValueError(f"sequence {id!r} was already added to drafter 'none'; remove it first")
        self._ids.add(id)

    def extend(self, id: SequenceId, tokens: Sequence[int]) -> None:
        self._check(id)

    def remove(self, id: SequenceId) -> None:
        self._check(id)
        self._ids.discard(id)

    def offer(self, ids: Sequence[SequenceId], limit: IntArray) -> Offer:
        for id in ids:
            self._check(id)
        return Offer(np.zeros(len(ids), dtype=np.int64), np.zeros((len(ids), 0)))

    def draft(self, ids: Sequence[SequenceId], depth: IntArray) -> Packed:
        for id in ids:
            self._check(id)
        if np.any(depth):
            raise ValueError(f"drafter 'none' was asked for {int(np.max(depth))} tokens, but offers nothing")
        return pack([()] * len(ids))

    def _check(self, id: SequenceId) -> None:
        if id not in self._ids:
            raise KeyError(f"drafter 'none' knows no sequence {id!r}; add it first")
