"""Arrivals: when which text of a trace comes to be served."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from adaptive_spec.replay.trace import Trace

NEVER = math.inf


@dataclass(slots=True, frozen=True)
class Arrival:
    """One request.

    Attributes
    ----------
    seconds : float
        When it arrives.
    number : int
        The trace's sequence.
    offset : int
        Output tokens that it has already.
    prompt_tokens, max_tokens : int, optional
        In the place of the trace's own.
    """

    seconds: float
    number: int
    offset: int = 0
    prompt_tokens: int | None = None
    max_tokens: int | None = None


class ArrivalStream(ABC):
    """The arrivals of one run, in order of time."""

    @abstractmethod
    def due(self, now: float, unfinished: int) -> list[Arrival]:
        """Arrivals up to `now` that were not handed out yet; `unfinished` requests are in the system."""

    @abstractmethod
    def next_seconds(self) -> float:
        """When the next request arrives; infinity if none will while the system is empty."""


class Arrivals(ABC):
    """A process of arrivals; every run takes a stream of its own.

    Attributes
    ----------
    endless : bool
        Whether requests never cease to come.
    """

    endless: ClassVar[bool] = True

    @abstractmethod
    def stream(self, trace: Trace, seed: int) -> ArrivalStream:
        """Begin a run; the same trace and seed give the same arrivals."""

    def longest(self, trace: Trace) -> int:
        """The most tokens, prompt and output, that one of its requests may have."""
        return int((trace.prompt_tokens + trace.allowed_tokens).max())


def recurring(trace: Trace, rng: np.random.Generator) -> Iterator[int]:
    """All sequences of a trace in random order, again and again, each round in an order of its own."""
    while True:
        yield from rng.permutation(len(trace)).tolist()


@dataclass(frozen=True)
class ClosedConcurrency(Arrivals):
    """A constant number of requests: whoever finishes is replaced at once.

    Attributes
    ----------
    concurrency : int
    random_offsets : bool
        Whether the first ones start somewhere within their texts, as if they had run for a while: from the first
        step on, sequences are then of mixed ages. Those that follow start at their beginning.
    """

    concurrency: int
    random_offsets: bool = True

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; it must be 1 or more")

    def stream(self, trace: Trace, seed: int) -> ArrivalStream:
        """Begin a run."""
        return _Closed(trace, self, np.random.default_rng([seed, 2]))


class _Closed(ArrivalStream):
    def __init__(self, trace: Trace, process: ClosedConcurrency, rng: np.random.Generator) -> None:
        self._numbers = recurring(trace, rng)
        self._concurrency = process.concurrency
        self._first: list[Arrival] = []
        if process.random_offsets:
            output = trace.output_tokens
            for _ in range(process.concurrency):
                number = next(self._numbers)
                self._first.append(Arrival(0.0, number, int(rng.integers(output[number]))))

    def due(self, now: float, unfinished: int) -> list[Arrival]:
        if self._first:
            first, self._first = self._first, []
            return first
        return [Arrival(now, next(self._numbers)) for _ in range(self._concurrency - unfinished)]

    def next_seconds(self) -> float:
        return 0.0


@dataclass(frozen=True)
class SwitchingConcurrency(Arrivals):
    """A number of requests that switches: whoever finishes is replaced while there are fewer than the present level.

    Attributes
    ----------
    levels : sequence of int
        In turn, and from the first again.
    seconds_each : float
        How long a level lasts. Down to a lower one, the requests that are too many are served to their ends.
    """

    levels: Sequence[int]
    seconds_each: float

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 1:
            raise ValueError(f"levels is {self.levels}; it must be of numbers from 1 up")
        _check_rate("seconds_each", self.seconds_each)

    def stream(self, trace: Trace, seed: int) -> ArrivalStream:
        """Begin a run."""
        return _Switching(trace, self, np.random.default_rng([seed, 6]))


class _Switching(ArrivalStream):
    def __init__(self, trace: Trace, process: SwitchingConcurrency, rng: np.random.Generator) -> None:
        self._numbers = recurring(trace, rng)
        self._process = process

    def due(self, now: float, unfinished: int) -> list[Arrival]:
        levels = self._process.levels
        level = levels[int(now / self._process.seconds_each) % len(levels)]
        return [Arrival(now, next(self._numbers)) for _ in range(level - unfinished)]

    def next_seconds(self) -> float:
        return 0.0


class OpenStream(ArrivalStream):
    """Arrivals whose times don't depend on the system, from an iterator in order of time."""

    def __init__(self, arrivals: Iterator[Arrival]) -> None:
        self._arrivals = arrivals
        self._next = next(arrivals, None)

    def due(self, now: float, unfinished: int) -> list[Arrival]:
        """Arrivals up to `now`."""
        arrived = []
        while self._next is not None and self._next.seconds <= now:
            arrived.append(self._next)
            self._next = next(self._arrivals, None)
        return arrived

    def next_seconds(self) -> float:
        """When the next one comes."""
        return NEVER if self._next is None else self._next.seconds


@dataclass(frozen=True)
class Poisson(Arrivals):
    """Requests that come independently at a constant rate.

    Attributes
    ----------
    requests_per_second : float
    """

    requests_per_second: float

    def __post_init__(self) -> None:
        _check_rate("requests_per_second", self.requests_per_second)

    def stream(self, trace: Trace, seed: int) -> ArrivalStream:
        """Begin a run."""
        return OpenStream(self._arrivals(trace, np.random.default_rng([seed, 3])))

    def _arrivals(self, trace: Trace, rng: np.random.Generator) -> Iterator[Arrival]:
        now = 0.0
        for number in recurring(trace, np.random.default_rng(rng.integers(2**63))):
            now += rng.exponential(1 / self.requests_per_second)
            yield Arrival(now, number)


@dataclass(frozen=True)
class OnOffBursts(Arrivals):
    """A Poisson process whose rate switches between two values (a Markov-modulated Poisson process).

    Attributes
    ----------
    on_requests_per_second, off_requests_per_second : float
        The latter may be 0.
    mean_on_seconds, mean_off_seconds : float
        The lengths of both phases are exponential; a run begins with a quiet one.
    """

    on_requests_per_second: float
    off_requests_per_second: float
    mean_on_seconds: float
    mean_off_seconds: float

    def __post_init__(self) -> None:
        _check_rate("on_requests_per_second", self.on_requests_per_second)
        if self.off_requests_per_second:
            _check_rate("off_requests_per_second", self.off_requests_per_second)
        for name in ("mean_on_seconds", "mean_off_seconds"):
            _check_rate(name, getattr(self, name))

    def stream(self, trace: Trace, seed: int) -> ArrivalStream:
        """Begin a run."""
        return OpenStream(self._arrivals(trace, np.random.default_rng([seed, 4])))

    def _arrivals(self, trace: Trace, rng: np.random.Generator) -> Iterator[Arrival]:
        numbers = recurring(trace, np.random.default_rng(rng.integers(2**63)))
        now, on = 0.0, False
        while True:
            ends = now + rng.exponential(self.mean_on_seconds if on else self.mean_off_seconds)
            rate = self.on_requests_per_second if on else self.off_requests_per_second
            # An exponential wait forgets, so that what is left of one may be drawn anew in the next phase.
            while rate and (now := now + rng.exponential(1 / rate)) < ends:
                yield Arrival(now, next(numbers))
            now, on = ends, not on


@dataclass(frozen=True)
class GivenArrivals(Arrivals):
    """Requests at given times.

    Attributes
    ----------
    arrivals : sequence of Arrival
        In order of time.
    """

    endless: ClassVar[bool] = False
    arrivals: Sequence[Arrival]

    def __post_init__(self) -> None:
        seconds = [arrival.seconds for arrival in self.arrivals]
        if any(later < earlier for earlier, later in pairwise(seconds)):
            raise ValueError("arrivals must be in order of time")

    @classmethod
    def at_once(cls, trace: Trace) -> GivenArrivals:
        """Every sequence of a trace at the beginning, in its order."""
        return cls([Arrival(0.0, number) for number in range(len(trace))])

    def stream(self, trace: Trace, seed: int) -> ArrivalStream:
        """Begin a run; the seed changes nothing."""
        return OpenStream(iter(self.arrivals))

    def longest(self, trace: Trace) -> int:
        """The most tokens that one of the requests may have."""
        allowed = trace.allowed_tokens
        return max(
            int(trace.prompt_tokens[a.number] if a.prompt_tokens is None else a.prompt_tokens) + int(allowed[a.number])
            for a in self.arrivals
        )


def _check_rate(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}; it must be finite and over 0")
