"""StepCost: what a step costs, in seconds."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from adaptive_spec.step import FloatArray, IntArray, StepTime, StepView


class StepCost(ABC):
    """Seconds of a target pass over any number of positions, and of drafting to any depth."""

    @abstractmethod
    def verify(self, positions: IntArray, context: float, sequences: int) -> FloatArray:
        """Seconds of one target pass.

        Parameters
        ----------
        positions : int array, shape (n,)
            Tokens in the pass; any order, not necessarily contiguous.
        context : float
            Sum of the KV tokens that the pass reads, over its sequences.
        sequences : int
            Decoding sequences in the pass.

        Returns
        -------
        float array, shape (n,)
            Seconds, positive and finite; not necessarily monotone in `positions`.
        """

    def verify_range(self, first: int, count: int, context: float, sequences: int) -> FloatArray:
        """Seconds of one target pass over first, first + 1, ..., first + count - 1 positions.

        What a decision asks at every step; costs override it where a table makes it cheaper than
        :meth:`verify`, with the same values.

        Parameters
        ----------
        first : int
            Smallest number of positions, at least 1.
        count : int
            How many counts of positions, at least 0.
        context, sequences
            As in :meth:`verify`.

        Returns
        -------
        float array, shape (count,)
            It may be a read-only view of a table: copy it before writing into it.
        """
        return self.verify(np.arange(first, first + count, dtype=np.int64), context, sequences)

    def prefill_share(self, view: StepView) -> float:
        """Share of a pass's seconds at depth 0 that its prefill adds, at least 0 and under 1."""
        if not view.prefill_tokens:
            return 0.0
        without, whole = (
            float(self.verify_range(positions, 1, view.total_context, view.sequences)[0])
            for positions in (view.decode_positions, view.base_positions)
        )
        return max(1.0 - without / whole, 0.0)

    @abstractmethod
    def draft(self, depth: IntArray, sequences: int, lag: int = 0) -> FloatArray:
        """Seconds of drafting to each of `depth` (shape (m,)), for `sequences` sequences and a catch-up of `lag`.

        ``draft([0])`` is what a step pays although it drafts nothing; it need not be 0.
        """

    def observe(self, time: StepTime) -> None:  # noqa: B027 - a fixed cost has nothing to learn
        """Learn from the time that a step really took; a fixed cost ignores it."""

    def state(self) -> dict[str, object]:
        """What was learned, as plain numbers, strings and arrays (empty for a fixed cost)."""
        return {}

    def restore(self, state: dict[str, object]) -> None:
        """Take over what :meth:`state` returned; ValueError when it is another cost's."""
        if state:
            raise ValueError(f"{type(self).__name__} learns nothing, but the saved state has {sorted(state)}")
