"""Turns: several runs on one machine that take turns of a second or so, so that its moods meet all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

Result = TypeVar("Result")


class TurnClock:
    """Seconds that pass while its owner has its turn, and no others.

    Parameters
    ----------
    clock : callable
        Seconds from any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._passed = 0.0
        self._since = clock()
        self.running = True

    def __call__(self) -> float:
        return self._passed + (self._clock() - self._since if self.running else 0.0)

    def pause(self) -> None:
        """Stand still from now on."""
        if self.running:
            self._passed = self()
            self.running = False

    def resume(self) -> None:
        """Go on from now on."""
        if not self.running:
            self._since = self._clock()
            self.running = True


def take_turns(
    plays: Mapping[str, Generator[None, None, Result]],
    clocks: Mapping[str, TurnClock],
    turn_seconds: float = 1.0,
    finished: Callable[[str], None] | None = None,
) -> dict[str, Result]:
    """Play several runs to their ends, each for `turn_seconds` of its own clock at a time, in the mapping's order.

    Parameters
    ----------
    plays : mapping of str to generator
        Runs that yield where they may be left for a while.
    clocks : mapping of str to TurnClock
        One for each; only the clock of the run whose turn it is runs.
    finished : callable, optional
        Receives the name of every run that ends.

    Returns
    -------
    dict
        What the generators returned.
    """
    results: dict[str, Result] = {}
    for clock in clocks.values():
        clock.pause()
    try:
        while len(results) < len(plays):
            for name in plays:
                if name in results:
                    continue
                clock = clocks[name]
                clock.resume()
                until = clock() + turn_seconds
                try:
                    while clock() < until:
                        next(plays[name])
                except StopIteration as end:
                    results[name] = end.value
                    if finished is not None:
                        finished(name)
                finally:
                    clock.pause()
    finally:
        for name, play in plays.items():
            clocks[name].resume()
            play.close()
    return results
