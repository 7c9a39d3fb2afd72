"""The loops over the requests of a step, compiled by numba; importing this module loads them."""

from __future__ import annotations

import numpy as np

from adaptive_spec.compiled import REAL, WHOLE, compiled
from adaptive_spec.step import FloatArray, IntArray


@compiled(f"Tuple((int64[::1], int64[::1], int64))({WHOLE}, {WHOLE}, {WHOLE}, {WHOLE}, {WHOLE})")
def room_left(
    row: IntArray, before_last: IntArray, offered: IntArray, under_way: IntArray, produced: IntArray
) -> tuple[IntArray, IntArray, int]:
    """How many of the drafts on the table each request may have verified.

    Parameters
    ----------
    row, before_last : int array, shape (B,)
        Of the requests' roster.
    offered : int array, shape (B,)
        Drafts on the table.
    under_way : int array, shape (B,) or (0,)
        Tokens that the passes under way may bring for each, which are counted as if they came; none if empty.
    produced : int array, shape (capacity,)
        Confirmed output tokens, by row.

    Returns
    -------
    tuple
        Confirmed output tokens and the limit of each, shape (B,), and the sum of the former. A limit may be negative.
    """
    count = len(row)
    if not count == len(before_last) == len(offered) or len(under_way) not in (0, count):
        raise ValueError("a roster's requests must have one number each")
    mine, limit = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    written = 0
    for i in range(count):
        if not 0 <= row[i] < len(produced):
            raise ValueError("a row is outside the tables")
        mine[i] = produced[row[i]]
        written += mine[i]
        left = before_last[i] - mine[i]
        if len(under_way):
            left -= under_way[i]
        limit[i] = min(left, offered[i])
    return mine, limit, written


@compiled(f"float64[:,::1]({WHOLE}, {WHOLE}, {WHOLE}, {WHOLE}, {WHOLE})")
def evidence_of(
    row: IntArray, age: IntArray, last_accepted: IntArray, matched_length: IntArray, source: IntArray
) -> FloatArray:
    """The columns of evidence of requests, shape (F, B).

    Parameters
    ----------
    row, age : int array, shape (B,)
        Of the requests.
    last_accepted, matched_length : int array, shape (capacity,)
        By row; of the latter shape (0,) where no column is taken from it.
    source : int array, shape (F,)
        Which of the three a column is taken from: 0, 1 or 2.
    """
    if len(row) != len(age):
        raise ValueError("a roster's requests must have one number each")
    evidence = np.empty((len(source), len(row)))
    for column in range(len(source)):
        table = last_accepted if source[column] == 1 else matched_length
        for i in range(len(row)):
            if source[column] == 0:
                evidence[column, i] = age[i]
                continue
            if not 0 <= row[i] < len(table):
                raise ValueError("a row is outside the tables")
            evidence[column, i] = table[row[i]]
    return evidence


@compiled(
    f"Tuple((int64[::1], int64[::1], int64, int64, float64))({WHOLE}, {REAL}, {WHOLE}, {WHOLE}, int64[::1], int64[::1])"
)
def take_results(
    row: IntArray,
    weight: FloatArray,
    judged: IntArray,
    emitted: IntArray,
    produced: IntArray,
    last_accepted: IntArray,
) -> tuple[IntArray, IntArray, int, int, float]:
    """Work out what a pass's requests kept, and bring their tables up to date.

    Parameters
    ----------
    row, weight : array, shape (N,)
        Of the pass's roster.
    judged, emitted : int array, shape (N,)
        Drafts judged of each request that yielded anything, and tokens that each yielded: none if it is gone.
    produced, last_accepted : int array, shape (capacity,)
        The requests' tables, which are changed.

    Returns
    -------
    tuple
        Drafts verified and accepted of each, shape (N,), the sums of both, and the worth of all tokens.
    """
    count = len(row)
    if not count == len(weight) == len(judged) == len(emitted):
        raise ValueError("the results of a pass must have one number for each of its requests")
    verified, accepted = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    all_verified = all_accepted = 0
    worth = 0.0
    for i in range(count):
        if not 0 <= row[i] < len(produced):
            raise ValueError("a row is outside the tables")
        if emitted[i] <= 0:  # a prompt that goes on, or a row that may have another owner by now
            continue
        verified[i], accepted[i] = judged[i], emitted[i] - 1
        all_verified += judged[i]
        all_accepted += emitted[i] - 1
        worth += weight[i] * emitted[i]
        produced[row[i]] += emitted[i]
        if judged[i] > 0:
            last_accepted[row[i]] = accepted[i]
    return verified, accepted, all_verified, all_accepted, worth
