"""Awaited: what a policy remembers of its decisions until their outcome or time is known."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import numpy as np

from adaptive_spec.step import BoolArray, Decision, IntArray

T = TypeVar("T")

KEPT = 8  # decisions; engines have two in flight


class Awaited(Generic[T]):
    """Finds by its step what was kept with a decision, which the controller numbers only after it was made."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Decision, T]] = deque(maxlen=KEPT)

    def keep(self, decision: Decision, item: T) -> None:
        """Keep `item` with a decision; the oldest goes if there are too many."""
        self._kept.append((decision, item))

    def find(self, step: int) -> tuple[Decision, T] | None:
        """The decision of a step and what was kept with it; None if it isn't kept."""
        return next((pair for pair in self._kept if pair[0].step == step), None)

    def take(self, step: int) -> tuple[Decision, T] | None:
        """As :meth:`find`, and let it go."""
        found = self.find(step)
        if found is not None:
            self._kept = deque((pair for pair in self._kept if pair is not found), KEPT)
        return found


def matching(row: IntArray, wanted: IntArray) -> tuple[IntArray, BoolArray]:
    """Places in `row` of the rows in `wanted`, and whether each is there at all."""
    if not len(row):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
    order = np.argsort(row)
    index = order[np.searchsorted(row, wanted, sorter=order).clip(max=len(row) - 1)]
    return index, row[index] == wanted
