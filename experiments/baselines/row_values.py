"""RowValues: numbers that a policy keeps of each sequence, by the controller's row."""

from __future__ import annotations

import numpy as np

from adaptive_spec.step import FloatArray, IntArray


class RowValues:
    """An array over rows that grows as rows appear, and starts anew where a fresh sequence takes a row.

    Parameters
    ----------
    fill : float
        Value of a fresh row.
    width : int
        Numbers a row.
    """

    def __init__(self, fill: float, width: int = 1) -> None:
        self.fill = fill
        self._values: FloatArray = np.full((16, width), fill)

    def start(self, row: int) -> None:
        """A fresh sequence takes this row."""
        self._reach(row)
        self._values[row] = self.fill

    def get(self, row: IntArray) -> FloatArray:
        """Values of rows, shape (B, width)."""
        if len(row):
            self._reach(int(row.max()))
        return self._values[row]

    def set(self, row: IntArray, values: FloatArray) -> None:
        """Set the values of rows, shape (B, width)."""
        if len(row):
            self._reach(int(row.max()))
            self._values[row] = values

    def _reach(self, row: int) -> None:
        rows, width = self._values.shape
        if row >= rows:
            more = np.full((max(rows, row + 1 - rows), width), self.fill)
            self._values = np.concatenate((self._values, more))
