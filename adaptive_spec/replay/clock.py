"""VirtualClock: the time of a replay, which passes only where somebody moves it."""

from __future__ import annotations

import math


class VirtualClock:
    """Seconds that stand still until :meth:`advance` is called; called itself, it tells the time.

    Handed to the controller and the serving loop in the place of the machine's clock.

    Parameters
    ----------
    now : float
        Seconds to begin with.
    """

    __slots__ = ("now",)

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass; ValueError if it would run backwards or be no number."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"the clock was moved by {seconds} s; it must be finite and 0 or more")
        self.now += seconds

    def __repr__(self) -> str:
        return f"VirtualClock({self.now:.6f} s)"
