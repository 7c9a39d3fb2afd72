"""CurveCost: a cost that is a curve over positions, kept in a table, and a term for the context beside it."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.cost.draft import DraftCost
from adaptive_spec.step import FloatArray, IntArray

_FIRST_TABLE = 1024  # positions that the table covers before it first grows


class CurveCost(StepCost):
    """A step cost V(T, context) = curve(T) + context term, with the curve tabulated over positions.

    Subclasses write :meth:`curve`. Because the context only adds, the table never has to be rebuilt as
    contexts grow, and :meth:`verify_range` is a slice and one addition.

    Parameters
    ----------
    draft_cost : DraftCost
        What drafting costs.
    context_seconds_per_token : float
        Seconds that each KV token of the pass adds.
    """

    def __init__(self, draft_cost: DraftCost, context_seconds_per_token: float = 0.0) -> None:
        if not (np.isfinite(context_seconds_per_token) and context_seconds_per_token >= 0):
            raise ValueError(
                f"context_seconds_per_token is {context_seconds_per_token}; it must be finite and 0 or more"
            )
        self.draft_cost = draft_cost
        self.context_seconds_per_token = float(context_seconds_per_token)
        self._table: FloatArray = np.zeros(0)  # seconds by positions; entry 0 is never asked for
        self._positions: FloatArray = np.zeros(0)  # 0.0, 1.0, ..., as far as the table goes

    @abstractmethod
    def curve(self, positions: IntArray) -> FloatArray:
        """Seconds of a pass over each of `positions` (shape (n,), each at least 1) with an empty KV cache."""

    def context_seconds(self, positions: IntArray, context: float, sequences: int) -> float | FloatArray:
        """Seconds that reading `context` KV tokens adds at each of `positions`; one number if the same at all."""
        return context * self.context_seconds_per_token

    def verify(self, positions: IntArray, context: float, sequences: int) -> FloatArray:
        """Seconds of one target pass; see :meth:`StepCost.verify`. ValueError for a count below 1."""
        positions = np.asarray(positions)
        if positions.size and positions.min() < 1:
            raise ValueError(f"a pass over {positions.min()} positions has no cost; there must be at least 1")
        return self.curve(positions) + self.context_seconds(positions, context, sequences)

    def verify_range(self, first: int, count: int, context: float, sequences: int) -> FloatArray:
        """Seconds at `count` consecutive positions from `first`; see :meth:`StepCost.verify_range`."""
        end = first + count
        if end > len(self._table):
            self._grow(end)
        if first < 1:
            raise ValueError(f"a pass over {first} positions has no cost; there must be at least 1")
        seconds = self._table[first:end]
        if context == 0.0:
            return seconds
        return self._with_context(seconds, first, context, sequences)

    def _with_context(self, seconds: FloatArray, first: int, context: float, sequences: int) -> FloatArray:
        return seconds + context * self.context_seconds_per_token

    def draft(self, depth: IntArray, sequences: int, lag: int = 0) -> FloatArray:
        """Seconds of drafting to each of `depth`; see :meth:`DraftCost.seconds`."""
        return self.draft_cost.seconds(depth, sequences, lag)

    def _grow(self, end: int) -> None:
        size = max(_FIRST_TABLE, len(self._table))
        while size < end:
            size *= 2
        table = self.curve(np.maximum(np.arange(size, dtype=np.int64), 1))
        table.flags.writeable = False  # slices of it are handed out
        self._table = table
        self._positions = np.arange(size, dtype=float)
