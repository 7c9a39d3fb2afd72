"""StepCounts: what all steps of a deployment add up to, counted in plain arrays that metrics are read from."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import numpy as np

from adaptive_spec import loops
from adaptive_spec.step import NAN, BoolArray, Decision, FloatArray, IntArray

DECISION_SECONDS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
DECIDED_BY = ("policy", "explore", "override", "fallback", "guard", "off-step", "watchdog", "limits", "off", "other")
KINDS_KEPT = 16  # kinds of faults that are told apart
OTHER = "other"


class StepCounts:
    """Adds up decisions and outcomes, from whichever engine; a handful of calls a step.

    A decision and its outcome are counted apart, since engines know them at different moments. Another thread
    may read while one counts.

    Parameters
    ----------
    max_depth : int
        K.

    Attributes
    ----------
    depth : int array, shape (K + 1,)
        Sequences and steps at each depth that was put into effect.
    shadow_depth : int array, shape (K + 1,)
        The same for depths that were decided and not put into effect.
    outcomes : int array, shape (K + 1, K + 1)
        Sequences and steps by drafts verified (first axis) and accepted.
    drafted, wasted : int
        Tokens drafted; those of them that were not accepted.
    shadow_verified, shadow_accepted : int
        Drafts that would have been verified, and accepted, at depths that were decided and not put into effect.
    steps : Counter
        Steps by what decided them (one of :data:`DECIDED_BY`).
    decided : Counter
        Sequences and steps by what decided their depth.
    off_steps, explored_steps : int
        Steps in which no sequence was given a draft; in which one was drafted deeper to learn.
    seconds : int array, shape (len(DECISION_SECONDS) + 1,)
        Steps by the seconds that their decision took: up to each bound, and over the last.
    total_seconds : float
        Sum of those seconds.
    requests : dict of bool to int
        Requests whose depth is adapted, and requests that are left alone.
    faults : Counter
        Faults outside the policy, by kind.
    """

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._size = size = max_depth + 1
        self.depth: IntArray = np.zeros(size, dtype=np.int64)
        self.shadow_depth: IntArray = np.zeros(size, dtype=np.int64)
        self._outcomes: IntArray = np.zeros((size, size), dtype=np.int64)
        self.drafted = 0
        self.wasted = 0
        self.shadow_verified = 0
        self.shadow_accepted = 0
        self.steps: Counter[str] = Counter()
        self.decided: Counter[str] = Counter()
        self.off_steps = 0
        self.explored_steps = 0
        self.seconds: IntArray = np.zeros(len(DECISION_SECONDS) + 1, dtype=np.int64)
        self.total_seconds = 0.0
        self.requests = {True: 0, False: 0}
        self.faults: Counter[str] = Counter()

    @property
    def outcomes(self) -> IntArray:
        """Sequences and steps by drafts verified and accepted, a copy of shape (K + 1, K + 1)."""
        return self._outcomes.copy()

    def count_decision(self, decision: Decision, seconds: float = NAN, adapted: BoolArray | None = None) -> None:
        """Count a step's depths, and what decided them.

        Parameters
        ----------
        decision : Decision
            As it is carried out: after the last revision.
        seconds : float
            What deciding took, revisions included; NaN if nobody measured it.
        adapted : bool array, shape (B,), optional
            Sequences that were given their depth; the others kept the engine's own, for which this decision is
            only what would have been. None: all of them.

        Raises
        ------
        ValueError
            If a depth lies outside 0..K; nothing is counted then.
        """
        depth, explored = decision.depth, decision.explored
        counts = np.zeros(self._size, dtype=np.int64)
        deep, num_explored = loops.add_depths(loops.whole(depth), explored, counts)
        if deep < 0:
            lowest, deepest = int(depth.min()), int(depth.max())
            wrong = f"{lowest} is negative" if lowest < 0 else f"{deepest} is over max_depth {self.max_depth}"
            raise ValueError(f"depth {wrong}; nothing was counted")
        if adapted is not None and not adapted.all():
            given = np.bincount(depth[adapted], minlength=self._size)
            self.shadow_depth += counts - given
            counts = given
        self.depth += counts
        decided_by = decision.decided_by if decision.decided_by in DECIDED_BY else OTHER
        self.steps[decided_by] += 1
        rest = len(depth) - num_explored - decision.pinned
        if num_explored:
            self.explored_steps += 1
            self.decided["explore"] += num_explored
        if decision.pinned:
            self.decided["override"] += decision.pinned
        if rest > 0:
            self.decided[decided_by] += rest
        if not deep:
            self.off_steps += 1
        if seconds == seconds:
            self.seconds[bisect_left(DECISION_SECONDS, seconds)] += 1
            self.total_seconds += seconds

    def count_outcome(self, drafted: IntArray, verified: IntArray, accepted: IntArray) -> None:
        """Count what came of drafts; each array of shape (B,), with ``0 <= accepted <= verified <= K``.

        Raises
        ------
        ValueError
            If a count lies outside its range; nothing is counted then.
        """
        made, kept = loops.add_outcomes(
            loops.whole(drafted), loops.whole(verified), loops.whole(accepted), self._outcomes
        )
        if made < 0:
            raise ValueError(
                f"up to {int(verified.max())} drafts verified and {int(accepted.min())} to {int(accepted.max())} "
                f"accepted can't be with max_depth {self.max_depth}; nothing was counted"
            )
        self.drafted += made
        self.wasted += made - kept

    def count_shadow_outcome(self, depth: IntArray, adapted: BoolArray, verified: IntArray, accepted: IntArray) -> None:
        """Count what would have come of the depths that were decided for sequences that kept the engine's own.

        Of the drafts that were verified, the decided depth would have kept the first. What lies beyond the engine's
        own depth nobody knows, and it isn't counted.

        Parameters
        ----------
        depth : int array, shape (B,)
            As it was decided.
        adapted : bool array, shape (B,)
            Sequences that were given their depth; nothing is counted of them.
        verified, accepted : int array, shape (B,)
            Drafts as they were judged, at the engine's own depth; :meth:`count_outcome` checks them.
        """
        kept = ~adapted
        would_verify = np.minimum(verified[kept], depth[kept])
        self.shadow_verified += int(would_verify.sum())
        self.shadow_accepted += int(np.minimum(accepted[kept], would_verify).sum())

    def count_request(self, adapted: bool = True) -> None:
        """Count a request that begins: whether its depth is adapted."""
        self.requests[adapted] += 1

    def count_fault(self, kind: str) -> None:
        """Count a fault outside the policy; kinds beyond the first few are thrown together."""
        known = kind in self.faults or len(self.faults) < KINDS_KEPT - 1
        self.faults[kind if known else OTHER] += 1

    def verified_per_position(self) -> IntArray:
        """Drafts verified at each position, shape (K,)."""
        return _at_least(self.outcomes.sum(axis=1))

    def accepted_per_position(self) -> IntArray:
        """Drafts accepted at each position, shape (K,)."""
        return _at_least(self.outcomes.sum(axis=0))

    def reached_per_position(self) -> IntArray:
        """Verified drafts at each position all of whose predecessors were accepted, shape (K,).

        Accepted over reached is the acceptance of a position, accepted over verified its survival.
        """
        size = self._size
        verified, accepted = np.indices((size, size))
        reached = np.minimum(accepted + 1, verified)
        return _at_least(np.bincount(reached.ravel(), self.outcomes.ravel(), size).astype(np.int64))


def _at_least(count: IntArray | FloatArray) -> IntArray:
    """Of counts of 0..K, shape (K + 1,): how many are over k, for k in 0..K-1."""
    over: IntArray = count[::-1].cumsum()[::-1][1:].astype(np.int64)
    return over
