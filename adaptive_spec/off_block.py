"""OffBlock: a few speculating steps, held against the same steps without speculation."""

from __future__ import annotations

import math


class OffBlock:
    """Pools speculating steps into one comparison with off, that one stalled step can't decide.

    Parameters
    ----------
    steps : int
        The most that it pools.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._slowness: list[float] = []  # seconds over the off-seconds of the same step
        self._gain: list[float] = []  # tokens over the off-tokens of the same step
        self._size: list[float] = []  # positions over the off-positions of the same step
        self._off: list[float] = []  # off-seconds
        self._base: list[float] = []  # off-tokens
        self._weight: list[float] = []

    def __len__(self) -> int:
        return len(self._off)

    def add(self, slowness: float, gain: float, size: float, off: float, base: float, weight: float = 1.0) -> None:
        """Take in a step.

        Parameters
        ----------
        slowness, gain, size : float
            Its seconds, tokens and positions over those of the same step at depth 0.
        off, base : float
            Seconds and tokens of the same step at depth 0.
        weight : float
            What the step counts for, in 0..1: the less, the more of its seconds are its prefill's. What is wrong with
            those, in time or in what was expected of them, would be laid to the drafts, and divided by the little
            that is left.
        """
        self._slowness.append(slowness)
        self._gain.append(gain)
        self._size.append(size)
        self._off.append(off)
        self._base.append(base)
        self._weight.append(weight)

    def totals(self) -> tuple[float, float]:
        """Sums of its steps' seconds and tokens, over those of the same steps at depth 0, by their weights.

        Their difference is how many steps without speculation could have been made besides, had it been off.
        """
        return _dot(self._true_slowness(), self._weight), _dot(self._gain, self._weight)

    def take(self) -> float:
        """Log(goodput on / goodput off) over its steps, whose loads may differ; the block is empty then."""
        off, base = _times(self._off, self._weight), _times(self._base, self._weight)
        slower = _dot(self._true_slowness(), off) / sum(off)
        more = _dot(self._gain, base) / sum(base)
        self.clear()
        return math.log(more / slower)

    def clear(self) -> None:
        """Begin anew."""
        self._slowness, self._gain, self._size, self._off, self._base, self._weight = [], [], [], [], [], []

    def _true_slowness(self) -> list[float]:
        """Slowness without stalls.

        One step over twice as slow as the median one is a stall (paging, another process), which neither state is
        to blame for, unless its positions explain it: seconds in proportion to them are what a full machine takes.
        Two such steps are no stalls.
        """
        middle = sorted(self._slowness)[(len(self._off) - 1) // 2]
        most = [2.0 * max(middle, size) for size in self._size]
        if sum(slow > bound for slow, bound in zip(self._slowness, most, strict=True)) > 1:
            return self._slowness
        return list(map(min, self._slowness, most))


def _times(a: list[float], b: list[float]) -> list[float]:
    return [x * y for x, y in zip(a, b, strict=True)]


def _dot(a: list[float], b: list[float]) -> float:
    return sum(_times(a, b))
