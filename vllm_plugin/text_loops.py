"""The loops over requests' texts, compiled by numba; importing this module loads them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from adaptive_spec.compiled import WHOLE, compiled
from adaptive_spec.step import IntArray

WALK = 16  # earlier places of a text's last two tokens that are looked at, from the latest back
FARTHEST = 32  # tokens that are compared at each; one match may grow longer, token by token

# A text is an array of shape (most, 2). At each place stand its token, and the latest place before it at which the same
# two tokens ended (by their hash); 0 is none, since there nothing ends. Side by side, they are one trip to memory.
_TEXT = "int32[:,::1]"
TOKEN, BEFORE = 0, 1


@compiled(f"UniTuple(int64, 2)({_TEXT}, int64)")
def longest_match(text: NDArray[Any], end: int) -> tuple[int, int]:
    """Of a text of `end` tokens: those of its end that stood there before, and the place behind them there.

    Fewer than two count as none, which is (0, 0).
    """
    longest = behind = 0
    last, near = end - 1, end - 1
    place = text[last, BEFORE] if end > 1 else 0
    for _ in range(WALK):
        if not 0 < place < near:
            break
        length = 0
        while length < FARTHEST and length <= place and text[place - length, TOKEN] == text[last - length, TOKEN]:
            length += 1
        if length >= 2 and length > longest:
            longest, behind = length, place + 1
        near, place = place, text[place, BEFORE]
    return longest, behind


@compiled(f"void({_TEXT}, int32[::1], int64)")
def add_place(text: NDArray[Any], latest: NDArray[Any], place: int) -> None:
    """Add the place of a token that was appended; `latest` has a power of two of entries."""
    if place < 1:
        return
    mixed = text[place - 1, TOKEN] * 2654435761 + text[place, TOKEN] * 40503
    bucket = (mixed ^ (mixed >> 17)) & (len(latest) - 1)
    text[place, BEFORE] = latest[bucket]
    latest[bucket] = place


@compiled(f"int64({_TEXT}, int32[::1], int64)")
def keep_latest(text: NDArray[Any], latest: NDArray[Any], end: int) -> int:
    """Keep the later half of a text of `end` tokens; the number of those that are dropped."""
    dropped = end - end // 2
    latest[:] = 0
    for place in range(end - dropped):
        text[place, TOKEN] = text[place + dropped, TOKEN]
        add_place(text, latest, place)
    return dropped


@compiled(
    f"void({WHOLE}, {WHOLE}, {WHOLE}, {WHOLE}, int64[::1], int32[:,:,::1], int32[:,::1], int64[::1], int64[::1],"
    " int64[::1])"
)
def extend_texts(
    row: IntArray,
    start: IntArray,
    count: IntArray,
    new: IntArray,
    number: IntArray,
    texts: NDArray[Any],
    latest: NDArray[Any],
    length: IntArray,
    behind: IntArray,
    matched: IntArray,
) -> None:
    """Append new tokens to texts, and see how much of each one's end stood there before.

    Parameters
    ----------
    row, start, count : int array, shape (N,)
        Requests, and where among `new` their tokens begin, and how many there are.
    new : int array
    number : int array, shape (capacity,)
        Of each row, which text is its own; -1: none is kept.
    texts : int array of 32 bits, shape (texts, most, 2)
    latest : int array of 32 bits, shape (texts, buckets)
        The latest place of two tokens, by their hash.
    length, behind : int array, shape (texts,)
        Tokens of each text, and where its match goes on; 0 where there is none.
    matched : int array, shape (capacity,)
        By row: how long the match is, which is 1 or none if it is 1.
    """
    if not len(row) == len(start) == len(count):
        raise ValueError("each request must have one start and one count")
    for i in range(len(row)):
        if not 0 <= row[i] < min(len(number), len(matched)):
            raise ValueError("a row is outside the tables")
        t = number[row[i]]
        if t < 0 or count[i] <= 0:
            continue
        if not (t < len(texts) and 0 <= start[i] <= len(new) - count[i]):
            raise ValueError("a text, or new tokens of one, are outside the tables")
        end, goes_on, long = length[t], behind[t], matched[row[i]]
        for j in range(start[i], start[i] + count[i]):
            if end == texts.shape[1]:
                dropped = keep_latest(texts[t], latest[t], end)
                end -= dropped
                goes_on = max(goes_on - dropped, 0)
            texts[t, end, TOKEN] = new[j]
            # What was the longest match, and goes on, is the longest: a longer one would have been one before.
            if goes_on > 0 and texts[t, goes_on, TOKEN] == new[j]:
                goes_on += 1
                long += 1
            else:
                goes_on = 0
            add_place(texts[t], latest[t], end)
            end += 1
        if goes_on == 0:
            long, goes_on = longest_match(texts[t], end)
        length[t], behind[t], matched[row[i]] = end, goes_on, max(long, 1)
