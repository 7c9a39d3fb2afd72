"""The loops that check outcomes, and add them up."""

from __future__ import annotations

from adaptive_spec.compiled import REAL, WHOLE, compiled
from adaptive_spec.step import BoolArray, FloatArray, IntArray


@compiled(f"boolean({WHOLE}, {WHOLE}, {WHOLE}, {WHOLE})")
def in_order(accepted: IntArray, verified: IntArray, drafted: IntArray, depth: IntArray) -> bool:
    """Whether ``0 <= accepted <= verified <= min(depth, drafted)`` everywhere; each of shape (B,)."""
    right = len(accepted) == len(verified) == len(drafted) == len(depth)
    for i in range(len(accepted) if right else 0):
        right &= 0 <= accepted[i] <= verified[i] <= min(depth[i], drafted[i])
    return right


@compiled(f"UniTuple(int64, 2)({WHOLE}, {WHOLE})")
def first_drafts(verified: IntArray, accepted: IntArray) -> tuple[int, int]:
    """How many first drafts were judged, and how many of them kept; both of shape (B,)."""
    judged = kept = 0
    for i in range(min(len(verified), len(accepted))):
        judged += verified[i] > 0
        kept += accepted[i] > 0
    return judged, kept


@compiled(f"float64({REAL}, {WHOLE})")
def worth_of(weight: FloatArray, accepted: IntArray) -> float:
    """Worth of the tokens of sequences that accepted so many drafts each; both of shape (B,)."""
    worth = 0.0
    for i in range(min(len(weight), len(accepted))):
        worth += weight[i] * (accepted[i] + 1)
    return worth


@compiled(f"UniTuple(int64, 2)({WHOLE}, Array(boolean, 1, 'C', readonly=True), int64[::1])")
def add_depths(depth: IntArray, explored: BoolArray, counts: IntArray) -> tuple[int, int]:
    """Add each depth to its count, shape (K + 1,); how many are over 0, and how many are explored.

    -1 says that a depth is out of range; nothing is added then.
    """
    for value in depth:
        if not 0 <= value < len(counts):
            return -1, 0
    deep = 0
    for value in depth:
        counts[value] += 1
        deep += value > 0
    return deep, explored.sum()


@compiled(f"UniTuple(int64, 2)({WHOLE}, {WHOLE}, {WHOLE}, int64[:,::1])")
def add_outcomes(drafted: IntArray, verified: IntArray, accepted: IntArray, counts: IntArray) -> tuple[int, int]:
    """Add each outcome to its count, shape (K + 1, K + 1); how many were drafted, and how many accepted.

    -1 says that a number is out of range; nothing is added then.
    """
    right = len(drafted) == len(verified) == len(accepted)
    for i in range(len(verified) if right else 0):
        right &= 0 <= accepted[i] <= verified[i] < len(counts)
    if not right:
        return -1, 0
    for i in range(len(verified)):
        counts[verified[i], accepted[i]] += 1
    return drafted.sum(), accepted.sum()
