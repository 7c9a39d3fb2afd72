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
        Confirmed output tokens and the limit of each, shape (B,), and the sum of the former.
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
        limit[i] = max(min(left, offered[i]), 0)
    return mine, limit, written


@compiled(f"Tuple((int64[::1], int64[::1], int64))({WHOLE}, {WHOLE}, {WHOLE})")
def cut_drafts(wanted: IntArray, limit: IntArray, offered: IntArray) -> tuple[IntArray, IntArray, int]:
    """How many of its drafts on the table each request keeps, and whose drafts must be cut for it.

    Parameters
    ----------
    wanted, limit, offered : int array, shape (B,)
        Depth that was decided; drafts that may be verified at most; drafts on the table.

    Returns
    -------
    tuple
        What each keeps, shape (B,): the least of the three; places of those with more on the table; sum of the first.
    """
    count = len(wanted)
    if not count == len(limit) == len(offered):
        raise ValueError("a roster's requests must have one number each")
    depth, over = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    num_over = made = 0
    for i in range(count):
        depth[i] = min(wanted[i], limit[i], offered[i])
        made += depth[i]
        if depth[i] < offered[i]:
            over[num_over] = i
            num_over += 1
    return depth, over[:num_over], made


@compiled(
    "Tuple((float64[:,::1], int64[::1], int64[::1]))"
    f"({WHOLE}, {WHOLE}, {WHOLE}, {WHOLE}, int64, {WHOLE}, {WHOLE}, {WHOLE})"
)
def view_of(
    row: IntArray,
    prompt: IntArray,
    before_last: IntArray,
    age: IntArray,
    to_come: int,
    last_accepted: IntArray,
    matched_length: IntArray,
    source: IntArray,
) -> tuple[FloatArray, IntArray, IntArray]:
    """What is known of requests before their drafts are made.

    Parameters
    ----------
    row, prompt, before_last : int array, shape (B,)
        Of the requests' roster.
    age : int array, shape (B,)
        Confirmed output tokens.
    to_come : int
        Tokens that are sure to come for each before these drafts are verified.
    last_accepted, matched_length : int array, shape (capacity,)
        By row; of the latter shape (0,) where no column is taken from it.
    source : int array, shape (F,)
        Which of age, last_accepted and matched_length a column of the evidence is taken from: 0, 1 or 2.

    Returns
    -------
    tuple
        Columns of evidence, shape (F, B); tokens in the KV cache, shape (B,); drafts that each may have verified
        before its last token, shape (B,), which may be negative.
    """
    count = len(row)
    if not count == len(prompt) == len(before_last) == len(age):
        raise ValueError("a roster's requests must have one number each")
    evidence = np.empty((len(source), count))
    context, limit = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for i in range(count):
        context[i] = prompt[i] + age[i]
        limit[i] = before_last[i] - age[i] - to_come
    for column in range(len(source)):
        table = last_accepted if source[column] == 1 else matched_length
        for i in range(count):
            if source[column] == 0:
                evidence[column, i] = age[i]
                continue
            if not 0 <= row[i] < len(table):
                raise ValueError("a row is outside the tables")
            evidence[column, i] = table[row[i]]
    return evidence, context, limit


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
