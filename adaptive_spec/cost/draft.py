"""DraftCost: what it costs to draft to any depth, for any number of sequences."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_spec.step import FloatArray, IntArray


@dataclass(frozen=True)
class DraftCost:
    """Seconds of drafting, linear in the depth and interpolated over the number of sequences.

    Dr(0) is ``idle``; Dr(d) for d >= 1 is ``start + d * each``, and, where the drafter lags behind the
    text, ``catch_up + lag * lag_position`` on top (a drafter at depth 0 leaves its lag for later). The
    defaults are a free drafter's.

    Attributes
    ----------
    sequences : tuple of int, length m
        Numbers of sequences at which the seconds below are known, rising. Between them they are
        interpolated, above the last extrapolated on the last slope (constant if there is one only).
    idle, start, each : tuple of float, length m
        Seconds of drafting nothing, of drafting at all, and of each token of depth.
    catch_up, lag_position : float
        Seconds of the pass that catches up, and of each position in it.
    """

    sequences: tuple[int, ...] = (1,)
    idle: tuple[float, ...] = (0.0,)
    start: tuple[float, ...] = (0.0,)
    each: tuple[float, ...] = (0.0,)
    catch_up: float = 0.0
    lag_position: float = 0.0

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.sequences, self.sequences[1:], strict=False))
        if not self.sequences or self.sequences[0] < 1 or not rising:
            raise ValueError(f"sequences must be rising and at least 1, not {self.sequences}")
        for name in ("idle", "start", "each"):
            values = getattr(self, name)
            if len(values) != len(self.sequences):
                raise ValueError(
                    f"{name} has {len(values)} values for {len(self.sequences)} numbers of sequences; give one each"
                )
            _check_seconds(name, values)
        _check_seconds("catch_up", (self.catch_up,))
        _check_seconds("lag_position", (self.lag_position,))

    @classmethod
    def free(cls) -> DraftCost:
        """A drafter whose time doesn't count: table look-ups."""
        return cls()

    @classmethod
    def sequential(cls, each: float, idle: float = 0.0, catch_up: float = 0.0, lag_position: float = 0.0) -> DraftCost:
        """A drafter that makes one pass of `each` seconds per token of depth: draft models, EAGLE, MTP.

        `idle` is what a step pays although it drafts nothing (vLLM's EAGLE still makes one pass).
        """
        return cls(idle=(idle,), each=(each,), catch_up=catch_up, lag_position=lag_position)

    @classmethod
    def parallel(cls, start: float, idle: float = 0.0) -> DraftCost:
        """A drafter that drafts every depth in one pass of `start` seconds: Medusa, DSpark."""
        return cls(idle=(idle,), start=(start,))

    def seconds(self, depth: IntArray, sequences: int, lag: int = 0) -> FloatArray:
        """Seconds of drafting to each of `depth` (shape (m,)) for `sequences` sequences."""
        depth = np.asarray(depth)
        idle, start, each = self._at(sequences)
        if lag > 0:
            start += self.catch_up + lag * self.lag_position
        if idle == start == each == 0.0:
            return np.zeros(len(depth))
        seconds = np.multiply(depth, each, dtype=np.float64)
        seconds += start
        seconds[depth == 0] = idle
        return seconds

    def _at(self, sequences: int) -> tuple[float, float, float]:
        known = self.sequences
        if len(known) == 1 or sequences <= known[0]:
            return self.idle[0], self.start[0], self.each[0]
        i = min(bisect_right(known, sequences), len(known) - 1)
        part = (sequences - known[i - 1]) / (known[i] - known[i - 1])
        below, above = i - 1, i
        idle = self.idle[below] + part * (self.idle[above] - self.idle[below])
        start = self.start[below] + part * (self.start[above] - self.start[below])
        each = self.each[below] + part * (self.each[above] - self.each[below])
        return max(0.0, idle), max(0.0, start), max(0.0, each)  # a falling line would end below 0

    def to_dict(self) -> dict[str, object]:
        """The fields, as plain lists and numbers."""
        return {
            "sequences": list(self.sequences),
            "idle": list(self.idle),
            "start": list(self.start),
            "each": list(self.each),
            "catch_up": self.catch_up,
            "lag_position": self.lag_position,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, object]) -> DraftCost:
        """The inverse of :meth:`to_dict`; ValueError names a field that is unknown or no number."""
        known = cls().to_dict()
        values: dict[str, object] = {}
        for name, value in fields.items():
            if name not in known:
                raise ValueError(f"a draft cost has no {name!r}; it has {', '.join(known)}")
            try:
                if name == "sequences":
                    values[name] = tuple(int(v) for v in value)  # type: ignore[attr-defined]
                elif name in ("idle", "start", "each"):
                    values[name] = tuple(float(v) for v in value)  # type: ignore[attr-defined]
                else:
                    values[name] = float(value)  # type: ignore[arg-type]
            except (TypeError, ValueError) as error:
                raise ValueError(f"draft cost: {name} must be of numbers, not {value!r}") from error
        return cls(**values)  # type: ignore[arg-type]


def _check_seconds(name: str, values: Sequence[float]) -> None:
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"draft cost: {name} is {value}; seconds must be finite and 0 or more")
