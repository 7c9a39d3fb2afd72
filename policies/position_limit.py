"""PositionLimit: how many positions a step may have on a machine whose curve nobody knows."""

from __future__ import annotations

import math

LEAP = 1.5  # times the positions of any step that went well: what the next may have
FALL = 0.4  # by which the log seconds of a step off a cliff exceed what its positions are in proportion to
BLOCKS, DOUBLINGS = 100, 4  # for which a cliff is kept clear of at first; how often that doubles
NEAR = 1.2  # within which steps tell what the largest one would take now


class PositionLimit:
    """Some more positions than any step had that went well, and fewer than two that fell off a cliff.

    Seconds may rise in proportion to positions and some more; a step that took far more than that has fallen. One may
    have stalled, two are believed. Some hundred blocks later the edge is tried again, and ever more rarely where it is
    found unmoved.

    Attributes
    ----------
    largest : int
        Positions of the largest step that went well.
    cliff : float
        Positions at which steps fell; infinite where none is known.
    """

    def __init__(self) -> None:
        self.largest = 0
        self.cliff = math.inf
        self._log_seconds = 0.0  # of a step with `largest` positions, as far as is known
        self._suspect = math.inf  # positions of a step that fell: another one makes it sure
        self._blocks = 0  # for which the cliff is still kept clear of
        self._doublings = 0

    def drafts(self, sequences: int, prefill: int) -> int:
        """Most drafts of a step in which so many sequences decode, and so many positions of prompts are computed."""
        largest = max(self.largest, sequences)
        most: float = max(int(LEAP * largest), largest + 1)
        below = self.cliff - 1 - prefill
        if sequences <= below:  # else the step falls anyway
            most = min(most, below)
        return int(most) - sequences

    def observe(self, positions: int, seconds: float, paid: bool) -> None:
        """Take in what a step with so many positions took, and whether that paid; else it allows no larger one."""
        log_seconds = math.log(seconds)
        in_proportion = log_seconds + math.log(max(self.largest, 1) / positions)
        if positions > self.largest > 0 and in_proportion > self._log_seconds + FALL:
            self._fell(positions)
            return
        if paid and positions >= self.largest:
            self.largest, self._log_seconds = positions, log_seconds
        elif self.largest >= positions >= self.largest / NEAR:
            self._log_seconds = in_proportion
        if positions >= self._suspect:  # that one had stalled, or the cliff is no more
            self.cliff = self._suspect = math.inf
            self._doublings = 0

    def _fell(self, positions: int) -> None:
        if self._suspect == math.inf:
            self._suspect = positions
            return
        self.cliff = self._suspect = min(self._suspect, positions)
        self._blocks = BLOCKS << self._doublings
        self._doublings = min(self._doublings + 1, DOUBLINGS)

    def age(self) -> None:
        """A block has been played: a cliff may be tried again, and one more fall brings it back."""
        self._blocks -= 1
        if self._blocks <= 0:
            self.cliff = math.inf
