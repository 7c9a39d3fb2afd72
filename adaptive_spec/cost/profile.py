"""Profile: what a pass costs, from measured points."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import numpy as np

from adaptive_spec.cost.curve import CurveCost
from adaptive_spec.cost.draft import DraftCost
from adaptive_spec.step import FloatArray, IntArray

Interpolation = Literal["staircase", "linear"]
_FILE_KEYS = (
    "verify_ms_by_tokens",
    "draft_ms_by_requests",
    "draft_ms_per_depth_by_requests",
    "draft_idle_ms_by_requests",
    "draft_ms_per_lag_position",
    "source",
)


class Profile(CurveCost):
    """Measured seconds by positions, dips and cliffs kept as measured.

    Parameters
    ----------
    positions : sequence of int, length m
        Positions of the measured passes, rising.
    seconds : sequence of float, length m
        Seconds of each.
    interpolation : {"staircase", "linear"}
        ``staircase``: a pass is padded to the smallest measured point that holds it, as engines pad to
        captured graphs. ``linear``: straight between the points, and level below the smallest.
    staircase_until : int, optional
        The largest captured graph, one of `positions`: staircase up to it, linear between the points
        above. The last point if not given. Only for ``staircase``.
    context_seconds_per_token : float
        Seconds that each KV token adds to what was measured, read once a pass whatever the positions.
    attention_seconds_per_pair : float
        Seconds that each pair of a position and a KV token that it attends to adds, every sequence taken to
        have the mean context and the mean positions.
    draft_cost : DraftCost, optional
        Free if not given.

    Notes
    -----
    Above the last point the line through the last two goes on, level if they fall (a falling line would
    reach 0); a single point is level everywhere.
    """

    def __init__(
        self,
        positions: Sequence[int] | IntArray,
        seconds: Sequence[float] | FloatArray,
        interpolation: Interpolation = "staircase",
        staircase_until: int | None = None,
        context_seconds_per_token: float = 0.0,
        attention_seconds_per_pair: float = 0.0,
        draft_cost: DraftCost | None = None,
    ) -> None:
        super().__init__(draft_cost or DraftCost.free(), context_seconds_per_token)
        if not (math.isfinite(attention_seconds_per_pair) and attention_seconds_per_pair >= 0):
            raise ValueError(
                f"attention_seconds_per_pair is {attention_seconds_per_pair}; it must be finite and 0 or more"
            )
        self.attention_seconds_per_pair = float(attention_seconds_per_pair)
        if interpolation not in get_args(Interpolation):
            raise ValueError(f"interpolation is {interpolation!r}; it must be 'staircase' or 'linear'")
        self.positions, self.seconds = _points(positions, seconds)
        if staircase_until is not None:
            if interpolation != "staircase":
                raise ValueError("staircase_until is only for interpolation 'staircase', not 'linear'")
            if staircase_until not in self.positions:
                nearest = self.positions[np.abs(self.positions - staircase_until).argmin()]
                raise ValueError(
                    f"staircase_until is {staircase_until}, which was not measured; the nearest point is {nearest}"
                )
        self.interpolation: Interpolation = interpolation
        self.staircase_until = staircase_until

    def curve(self, positions: IntArray) -> FloatArray:
        """Seconds of a pass over each of `positions` with an empty KV cache."""
        known, seconds = self.positions, self.seconds
        count = np.asarray(positions)
        line = np.interp(count, known, seconds)
        if self.interpolation == "staircase":
            step = seconds[np.minimum(np.searchsorted(known, count), len(known) - 1)]
            until = known[-1] if self.staircase_until is None else self.staircase_until
            line = np.where(count <= until, step, line)
        if len(known) > 1:
            slope = max(0.0, float((seconds[-1] - seconds[-2]) / (known[-1] - known[-2])))
            line += slope * np.maximum(count - known[-1], 0)
        return np.asarray(line)

    def context_seconds(self, positions: IntArray, context: float, sequences: int) -> float | FloatArray:
        """Seconds that a KV cache of `context` tokens in all adds at each of `positions`."""
        each = context / max(sequences, 1) * self.attention_seconds_per_pair
        return context * self.context_seconds_per_token + np.asarray(positions, dtype=float) * each

    def _with_context(self, seconds: FloatArray, first: int, context: float, sequences: int) -> FloatArray:
        level = context * self.context_seconds_per_token
        if self.attention_seconds_per_pair == 0.0:
            return seconds + level
        each = context / max(sequences, 1) * self.attention_seconds_per_pair
        total = self._positions[first : first + len(seconds)] * each
        total += seconds
        total += level
        return total

    @classmethod
    def measure(
        cls,
        run: Callable[[int], object],
        positions: Sequence[int],
        repeats: int = 5,
        clock: Callable[[], float] = time.perf_counter,
        *,
        warmup: int = 1,
        interpolation: Interpolation = "staircase",
        staircase_until: int | None = None,
        draft_cost: DraftCost | None = None,
    ) -> Profile:
        """Time real passes.

        Every round runs each number of positions once, upwards and downwards in turn, so that a machine
        that slows down meanwhile tilts no part of the curve; each point is the median of its rounds.

        Parameters
        ----------
        run : callable
            ``run(n)`` does a pass over n positions and returns when it is done.
        positions : sequence of int
            What to time, rising.
        repeats, warmup : int
            Timed rounds, and rounds before them whose times are thrown away.
        clock : callable
            Seconds from any origin.
        """
        if repeats < 1 or warmup < 0:
            raise ValueError(f"repeats is {repeats} and warmup {warmup}; they must be at least 1 and at least 0")
        wanted = _points(positions, [1.0] * len(positions))[0].tolist()
        taken: dict[int, list[float]] = {n: [] for n in wanted}
        for cycle in range(warmup + repeats):
            for n in wanted if cycle % 2 == 0 else reversed(wanted):
                begin = clock()
                run(n)
                if (spent := clock() - begin) >= 0 and cycle >= warmup:
                    taken[n].append(spent)
        seconds = [median(taken[n]) if taken[n] else math.nan for n in wanted]
        for n, value in zip(wanted, seconds, strict=True):
            if not value > 0:
                raise ValueError(
                    f"a pass over {n} positions took {value} s by this clock; it must tick finer than a pass takes"
                )
        return cls(wanted, seconds, interpolation, staircase_until, draft_cost=draft_cost)

    def with_draft_cost(self, draft_cost: DraftCost) -> Profile:
        """Return the same profile with another cost of drafting."""
        return Profile(
            self.positions,
            self.seconds,
            self.interpolation,
            self.staircase_until,
            self.context_seconds_per_token,
            self.attention_seconds_per_pair,
            draft_cost,
        )

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain lists, numbers and strings."""
        return {
            "positions": self.positions.tolist(),
            "seconds": self.seconds.tolist(),
            "interpolation": self.interpolation,
            "staircase_until": self.staircase_until,
            "context_seconds_per_token": self.context_seconds_per_token,
            "attention_seconds_per_pair": self.attention_seconds_per_pair,
            "draft_cost": self.draft_cost.to_dict(),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Profile:
        """The inverse of :meth:`to_dict`; ValueError names what is unknown, missing or wrong."""
        known = (
            "positions",
            "seconds",
            "interpolation",
            "staircase_until",
            "context_seconds_per_token",
            "attention_seconds_per_pair",
            "draft_cost",
        )
        if unknown := sorted(set(fields) - set(known)):
            raise ValueError(f"a profile has no {unknown[0]!r}; it has {', '.join(known)}")
        if missing := [name for name in ("positions", "seconds") if name not in fields]:
            raise ValueError(f"the profile has no {missing[0]!r}")
        values = dict(fields)
        if values.get("draft_cost") is not None:
            values["draft_cost"] = DraftCost.from_dict(values["draft_cost"])
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path, staircase_until: int | None = None) -> Profile:
        """Read a published or measured cost curve.

        Parameters
        ----------
        path : str or Path
            JSON: ``verify_ms_by_tokens`` (milliseconds of a step by its positions), and optionally, each by the
            number of sequences, ``draft_ms_by_requests`` (milliseconds of drafting at all, whatever the depth: a
            parallel draft), ``draft_ms_per_depth_by_requests`` (milliseconds of each token of depth: a sequential
            one) and ``draft_idle_ms_by_requests`` (milliseconds of a step that drafts nothing); further
            ``draft_ms_per_lag_position`` (milliseconds of each position that the drafter catches up on), and
            ``source``.
        staircase_until : int, optional
            The largest captured graph; see the class.

        Raises
        ------
        ValueError
            If the file isn't of that form; the message names file and key.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: not valid JSON: {error}") from error
        if not isinstance(content, dict) or "verify_ms_by_tokens" not in content:
            raise ValueError(f"{path}: must be a JSON object with the key 'verify_ms_by_tokens'")
        if unknown := sorted(set(content) - set(_FILE_KEYS)):
            raise ValueError(f"{path}: key {unknown[0]!r} is unknown; known are {', '.join(_FILE_KEYS)}")
        positions, seconds = _milliseconds(path, content, "verify_ms_by_tokens")
        draft_cost = _draft_cost(path, content)
        try:
            return cls(positions, seconds, staircase_until=staircase_until, draft_cost=draft_cost)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def __repr__(self) -> str:
        return (
            f"Profile({len(self.positions)} points, {self.positions[0]}..{self.positions[-1]} positions, "
            f"{self.seconds[0] * 1e3:.3g}..{self.seconds[-1] * 1e3:.3g} ms, {self.interpolation})"
        )


def _points(positions: Sequence[int] | IntArray, seconds: Sequence[float] | FloatArray) -> tuple[IntArray, FloatArray]:
    given = np.asarray(positions)
    values = np.array(seconds, dtype=float)
    if given.ndim != 1 or given.shape != values.shape or not given.size:
        raise ValueError(
            f"a profile needs as many seconds as positions, and at least one; it has {values.size} and {given.size}"
        )
    known = given.astype(np.int64)
    if not (known == given).all() or known.min() < 1:
        raise ValueError(f"positions must be whole numbers from 1 up, not {given.tolist()}")
    if (falls := np.flatnonzero(np.diff(known) <= 0)).size:
        i = int(falls[0])
        raise ValueError(
            f"positions must rise; {known[i + 1]} follows {known[i]}"
            + (" (a duplicate)" if known[i + 1] == known[i] else "")
        )
    if (wrong := np.flatnonzero(~(np.isfinite(values) & (values > 0)))).size:
        i = int(wrong[0])
        raise ValueError(f"{values[i]} seconds at {known[i]} positions; seconds must be finite and positive")
    return known, values


def _milliseconds(path: str | Path, content: Mapping[str, Any], key: str) -> tuple[list[int], list[float]]:
    table = content[key]
    if not isinstance(table, dict) or not table:
        raise ValueError(f"{path}: key {key!r} must be an object of milliseconds by whole numbers")
    try:
        points = sorted((int(n), float(ms) / 1e3) for n, ms in table.items())
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: key {key!r}: {error}; milliseconds by whole numbers are needed") from error
    return [n for n, _ in points], [s for _, s in points]


def _draft_cost(path: str | Path, content: Mapping[str, Any]) -> DraftCost:
    """Read what a file says of drafting; free if it says nothing."""
    tables: dict[str, tuple[float, ...]] = {}
    sequences: list[int] = []
    for name, key in (
        ("start", "draft_ms_by_requests"),
        ("each", "draft_ms_per_depth_by_requests"),
        ("idle", "draft_idle_ms_by_requests"),
    ):
        if key in content:
            known, seconds = _milliseconds(path, content, key)
            if sequences and known != sequences:
                raise ValueError(f"{path}: key {key!r} must have the numbers of requests of the other draft tables")
            sequences, tables[name] = known, tuple(seconds)
    none = (0.0,) * max(len(sequences), 1)
    lag = content.get("draft_ms_per_lag_position", 0.0)
    if isinstance(lag, bool) or not isinstance(lag, int | float):
        raise ValueError(f"{path}: key 'draft_ms_per_lag_position' must be a number of milliseconds, not {lag!r}")
    try:
        return DraftCost(
            tuple(sequences) or (1,),
            tables.get("idle", none),
            tables.get("start", none),
            tables.get("each", none),
            lag_position=lag / 1e3,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
