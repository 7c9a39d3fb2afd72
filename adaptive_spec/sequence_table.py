"""SequenceTable: the row of every live sequence, and what its owner set for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_spec import loops
from adaptive_spec.step import BoolArray, FloatArray, IntArray, SequenceId, StepView

UNLIMITED = int(np.iinfo(np.int64).max)
T = TypeVar("T", bound=np.generic)


class SequenceTable:
    """Maps ids to rows of arrays that grow by doubling and are used again, so that memory follows the live ones.

    Attributes
    ----------
    weight : float array, shape (capacity,)
        Worth of one token of each row's sequence.
    cap, pin : int array, shape (capacity,)
        Deepest depth allowed; depth pinned to, -1 for none.
    generation : int array, shape (capacity,)
        Counts the sequences that a row has held, so that a late outcome isn't taken for its successor's.
    removed : int
        Sequences that were ever removed.
    personal : int
        Live sequences for which a weight, a cap or a pin was set.
    """

    def __init__(self) -> None:
        self._row: dict[SequenceId, int] = {}
        self._free: list[int] = []
        self.weight: FloatArray = np.ones(0)
        self.cap: IntArray = np.zeros(0, dtype=np.int64)
        self.pin: IntArray = np.zeros(0, dtype=np.int64)
        self.generation: IntArray = np.zeros(0, dtype=np.int64)
        self.personal = 0
        self.removed = 0

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, id: SequenceId) -> bool:
        return id in self._row

    def add(self, id: SequenceId, weight: float, max_depth: int | None, pinned_depth: int | None) -> int:
        """Give a new sequence a row; ValueError if the id is known or a value out of its range."""
        if id in self._row:
            raise ValueError(f"sequence {id!r} was added already; remove it first or choose another id")
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"weight of sequence {id!r} is {weight}; it must be a finite number over 0")
        for name, value in (("max_depth", max_depth), ("pinned_depth", pinned_depth)):
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} of sequence {id!r} is {value}; it must be a finite number, 0 or more")
        cap = UNLIMITED if max_depth is None else min(int(max_depth), UNLIMITED)  # whatever is asked for fits in
        pin = -1 if pinned_depth is None else min(int(pinned_depth), UNLIMITED)
        if not self._free:
            self._grow()
        row = self._free.pop()
        self._row[id] = row
        self.weight[row], self.cap[row], self.pin[row] = weight, cap, pin
        self.personal += self._is_personal(row)
        return row

    def remove(self, id: SequenceId) -> int:
        """Free a sequence's row and return it; ValueError if the id is unknown."""
        row = self._row.pop(id, None)
        if row is None:
            raise ValueError(f"sequence {id!r} is unknown; it was never added, or removed already")
        self.personal -= self._is_personal(row)
        self.generation[row] += 1
        self.removed += 1
        self._free.append(row)
        return row

    def rows(self, ids: Iterable[SequenceId]) -> IntArray:
        """Rows of known sequences, shape (B,); ValueError names an unknown one."""
        try:
            return np.fromiter(map(self._row.__getitem__, ids), np.int64)
        except KeyError as error:
            raise ValueError(f"sequence {error.args[0]!r} is unknown; add it first") from None

    def known_rows(self, ids: Iterable[SequenceId]) -> IntArray:
        """Rows of sequences, shape (B,), with -1 where the id is unknown."""
        try:
            return np.fromiter(map(self._row.__getitem__, ids), np.int64)
        except KeyError:
            get = self._row.get
            return np.array([get(id, -1) for id in ids], dtype=np.int64)

    def resolve(self, view: StepView, max_depth: int) -> StepView:
        """Check a view, and fill in what is set for its sequences; ValueError if its arrays don't fit together.

        The view that is returned is read-only, so that a policy that scribbles on it is caught as a fault.
        """
        batch = (len(view.row),)
        if view.limit.shape != batch or view.context.shape != batch or view.evidence.shape[:1] != batch:
            raise ValueError(
                f"the view has {batch[0]} rows, but limit has shape {view.limit.shape}, context "
                f"{view.context.shape} and evidence {view.evidence.shape}; all begin with the number of rows"
            )
        limit = loops.limits(loops.whole(view.limit), loops.whole(view.row), self.cap, max_depth)
        limit.flags.writeable = False
        weight = view.weight
        if weight is None:
            weight = self.weight[view.row] if self.personal else _ones(batch[0])
        return StepView(
            _read_only(view.row),
            limit,
            _read_only(view.context),
            _read_only(view.evidence),
            _read_only(weight),
            view.prefill_tokens,
            view.sampling_prefills,
            view.lag,
            view.carried_drafts,
        )

    def spread(self, row: IntArray, value: IntArray | BoolArray, fill: int) -> IntArray:
        """An array over all rows that holds `value` at `row` and `fill` elsewhere; its last place is for row -1."""
        array = np.full(len(self.weight) + 1, fill, dtype=np.int64)
        array[row] = value
        return array

    def _grow(self) -> None:
        old, new = len(self.weight), max(16, 2 * len(self.weight))
        empty = np.zeros(new - old, dtype=np.int64)
        self.weight = np.concatenate((self.weight, np.ones(new - old)))
        self.cap = np.concatenate((self.cap, empty))
        self.pin = np.concatenate((self.pin, empty))
        self.generation = np.concatenate((self.generation, empty))
        self._free.extend(range(new - 1, old - 1, -1))

    def _is_personal(self, row: int) -> bool:
        return bool(self.weight[row] != 1.0 or self.cap[row] != UNLIMITED or self.pin[row] >= 0)


def _read_only(array: NDArray[T]) -> NDArray[T]:
    """The array itself if nobody can write to it, else a view of it by which nobody can."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


@lru_cache(maxsize=64)
def _ones(count: int) -> FloatArray:
    return _read_only(np.ones(count))
