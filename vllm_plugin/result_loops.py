"""The loop over the results of a pass, compiled by numba; importing this module loads it."""

from __future__ import annotations

import numpy as np

from adaptive_spec.compiled import REAL, WHOLE, compiled
from adaptive_spec.step import FloatArray, IntArray


@compiled(
    f"Tuple((int64[::1], int64[::1], int64, int64, float64))({WHOLE}, {WHOLE}, {REAL}, {WHOLE}, {WHOLE}, int64[::1],"
    " int64[::1], int64[::1])"
)
def take_results(
    row: IntArray,
    stamp: IntArray,
    weight: FloatArray,
    judged: IntArray,
    emitted: IntArray,
    stamps: IntArray,
    produced: IntArray,
    last_accepted: IntArray,
) -> tuple[IntArray, IntArray, int, int, float]:
    """Work out what a pass's requests kept, and bring the tables of those that are still there up to date.

    Parameters
    ----------
    row, stamp, weight : array, shape (N,)
        Of the pass's roster.
    judged, emitted : int array, shape (N,)
        Drafts judged of each request that yielded anything, and tokens that each yielded.
    stamps, produced, last_accepted : int array, shape (capacity,)
        The requests' tables; the last two are changed.

    Returns
    -------
    tuple
        Drafts verified and accepted of each, shape (N,), the sums of both, and the worth of all tokens.
    """
    count = len(row)
    if not count == len(stamp) == len(weight) == len(judged) == len(emitted):
        raise ValueError("the results of a pass must have one number for each of its requests")
    verified, accepted = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    all_verified = all_accepted = 0
    worth = 0.0
    for i in range(count):
        if not 0 <= row[i] < len(stamps):
            raise ValueError("a row is outside the tables")
        if emitted[i] <= 0 or stamps[row[i]] != stamp[i]:  # a prompt that goes on, or a row with another owner by now
            continue
        verified[i], accepted[i] = judged[i], emitted[i] - 1
        all_verified += judged[i]
        all_accepted += emitted[i] - 1
        worth += weight[i] * emitted[i]
        produced[row[i]] += emitted[i]
        if judged[i] > 0:
            last_accepted[row[i]] = accepted[i]
    return verified, accepted, all_verified, all_accepted, worth
