"""Surprises: tells an outlier from a new fact, and learns how noisy ordinary observations are."""

from __future__ import annotations

import math

_SURPRISE = 3.0  # standard deviations beyond which an observation is held back until others confirm it
_CONFIRMATIONS = 3  # agreeing surprises in a row, at one place, that make a new fact
_NOISE_RATE = 0.05  # how fast the estimate of the noise moves, in logs an observation
_GAUSSIAN_MEDIAN = 0.6745  # of the absolute value of a standard normal
NOISE_RANGE = (0.005, 0.5)


class Surprises:
    """Judges observations of one kind, by their error against what was expected.

    An error of more than three standard deviations is held back until three in a row at the same place
    agree (same sign, within half of the larger). The noise is tracked by its median: each observation
    moves it by a fixed step up or down, so that no outlier moves it further than any other.

    Attributes
    ----------
    noise : float
        Standard deviation of an observation's log.
    held : int
        Observations that were held back.
    """

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self.held = 0
        self._last: dict[int, tuple[int, float]] = {}  # by place: surprises in a row, and the last error

    def accept(self, place: int, near: tuple[int, ...], error: float, variance: float) -> bool:
        """Whether to learn from an `error` at `place`; `near` are the places whose surprises count with it.

        `variance` is that of what was expected, before the observation's own noise.
        """
        square = self.noise * self.noise
        deviation = math.sqrt(variance + square)
        if variance < square:  # else the error says more of what was expected than of the noise
            larger = abs(error) > _GAUSSIAN_MEDIAN * deviation
            noise = self.noise * math.exp(_NOISE_RATE if larger else -_NOISE_RATE)
            self.noise = min(max(noise, NOISE_RANGE[0]), NOISE_RANGE[1])
        if abs(error) <= _SURPRISE * deviation:
            if self._last:
                self._last.pop(place, None)
            return True
        times = 1
        for other in (place, *near):
            count, last = self._last.get(other, (0, 0.0))
            if error * last > 0.0 and abs(error - last) <= 0.5 * max(abs(error), abs(last)):
                times = max(times, count + 1)
        if times < _CONFIRMATIONS:
            self._last[place] = (times, error)
            self.held += 1
            return False
        for other in (place, *near):
            self._last.pop(other, None)
        return True

    def doubt(self, error: float, variance: float) -> float:
        """Variance to add to an expectation that an accepted `error` has refuted; 0 if it hasn't."""
        square = self.noise * self.noise
        if variance >= square or abs(error) <= _SURPRISE * math.sqrt(variance + square):
            return 0.0
        return 0.25 * error * error - variance - square  # so that the error becomes one of two deviations

    def forget_held(self) -> None:
        """Drop the surprises that wait for confirmation."""
        self._last.clear()
