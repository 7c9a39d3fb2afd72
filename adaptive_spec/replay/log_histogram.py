"""LogHistogram: quantiles of positive numbers within a stated relative error, in memory that doesn't grow with them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from adaptive_spec.step import FloatArray

ERROR = 0.005  # relative, of a quantile
SMALLEST = 1e-7


class LogHistogram:
    """Counts numbers in buckets of equal width in logarithms (Masson, Rim and Lee, "DDSketch", VLDB 2019).

    A quantile is off by half a per cent at most; what is below 1e-7 counts as that.
    """

    def __init__(self) -> None:
        self._gamma = math.log((1 + ERROR) / (1 - ERROR))
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a number; ValueError if it is negative or no number."""
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{value} can't be counted; it must be finite and 0 or more")
        bucket = math.ceil(math.log(max(value, SMALLEST)) / self._gamma)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total += value

    @property
    def mean(self) -> float:
        """Mean, exact; NaN of nothing."""
        return self.total / self.count if self.count else math.nan

    def quantiles(self, shares: Sequence[float]) -> FloatArray:
        """The values below which these shares of the numbers lie; NaN of nothing."""
        if not self.count:
            return np.full(len(shares), math.nan)
        buckets = np.array(sorted(self._counts))
        below = np.cumsum([self._counts[int(bucket)] for bucket in buckets])
        rank = np.asarray(shares) * (self.count - 1)
        at = buckets[np.searchsorted(below, rank, side="right").clip(max=len(buckets) - 1)]
        value: FloatArray = 2 * np.exp(at * self._gamma) / (math.exp(self._gamma) + 1)
        return value
