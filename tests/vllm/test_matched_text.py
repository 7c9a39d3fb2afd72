"""How much of the end of each request's text stood in it before, held against looking at every place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.suffix import SuffixIndex
from adaptive_spec.vllm_plugin import text_loops
from adaptive_spec.vllm_plugin.matched_text import MatchedText
from adaptive_spec.vllm_plugin.roster import Roster

ROOM = 64  # of the texts below


def roster(*rows: int) -> Roster:
    row = np.array(rows, dtype=np.int64)
    zeros = np.zeros(len(row), dtype=np.int64)
    return Roster([str(r) for r in rows], row, zeros, zeros, zeros, np.ones(len(row)), zeros > 0, 0, 0)


def request(tokens: list[int]) -> Any:
    return SimpleNamespace(all_token_ids=tokens)


def texts(tokens: dict[int, list[int]], most: int = ROOM) -> MatchedText:
    """Texts of these rows."""
    made = MatchedText(len(tokens), most)
    made.reserve(1 + max(tokens))
    made.make_ready(roster(*tokens), [request(text) for text in tokens.values()])
    return made


def extend(made: MatchedText, rows: list[int], new: list[list[int]]) -> None:
    counts = np.array([len(tokens) for tokens in new])
    made.extend(np.array(rows), np.cumsum(counts) - counts, counts, new)


def matches(text: list[int]) -> list[int]:
    """Of each earlier place of the text's last two tokens, from the latest back: how much of the end stood there."""
    found = []
    for end in range(len(text) - 1, 1, -1):
        length = 0
        while length < end and text[end - 1 - length] == text[len(text) - 1 - length]:
            length += 1
        if length >= 2:
            found.append(length)
    return found


small = st.lists(st.integers(0, 3), min_size=1, max_size=24)


@settings(deadline=None, max_examples=200)
@given(small, st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=12))
def test_it_is_the_longest_match_among_the_latest_places(text: list[int], steps: list[list[int]]) -> None:
    made = texts({0: text}, most=256)
    whole = text.copy()
    for new in [[], *steps]:
        extend(made, [0], [new])
        whole += new
        places = matches(whole)
        found = int(made.length[0])
        assert made.tokens(0) == whole
        assert found <= max([*places, 1])
        assert found >= max([*places[: text_loops.WALK], 1])
        index = SuffixIndex(whole)
        if len(places) <= text_loops.WALK:
            assert found == max(index.matched_length, 1)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2**17), min_size=2, max_size=40), st.integers(2, 30))
def test_a_text_that_repeats_itself_is_matched_as_far_as_it_does(text: list[int], again: int) -> None:
    made = texts({0: text}, most=256)
    for token in (text + text)[:again]:
        extend(made, [0], [[token]])
    assert made.length[0] >= min(again, len(text))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 3), max_size=9), max_size=40))
def test_of_a_long_text_the_end_is_kept(steps: list[list[int]]) -> None:
    made, whole = texts({0: [1, 2, 3]}), [1, 2, 3]
    for new in steps:
        extend(made, [0], [new])
        whole += new
        kept = made.tokens(0)
        assert len(kept) <= ROOM
        assert len(kept) >= min(len(whole), ROOM // 2)
        assert kept == whole[len(whole) - len(kept) :]
        places = matches(kept)
        assert max([*places[: text_loops.WALK], 1]) <= made.length[0] <= max([*matches(whole), 1])


def test_a_prompt_that_is_too_long_is_kept_in_part() -> None:
    prompt = list(range(1000))
    made = texts({0: prompt})
    assert made.tokens(0) == prompt[-ROOM // 2 :]
    exact = texts({0: prompt[:ROOM]})
    assert exact.tokens(0) == prompt[ROOM // 2 : ROOM]


def test_texts_are_apart() -> None:
    made = texts({2: [5, 6, 7, 5, 6], 0: [5, 6, 8], 1: [9]})
    assert made.length.tolist() == [1, 1, 2]
    extend(made, [0, 1, 2], [[5, 6], [], [7, 5]])
    assert made.length.tolist() == [2, 1, 4]
    assert [made.tokens(row) for row in range(3)] == [[5, 6, 8, 5, 6], [9], [5, 6, 7, 5, 6, 7, 5]]


def test_a_place_that_is_used_again_remembers_nothing() -> None:
    made = texts({0: [5, 6, 7, 8] * 4})
    assert made.length[0] == 12
    made.forget(0)
    assert (made.length[0], made.tokens(0), len(made)) == (1, [], 0)
    made.make_ready(roster(0), [request([7, 8])])
    assert made.length[0] == 1
    extend(made, [0], [[5, 6]])
    assert made.length[0] == 1
    extend(made, [0], [[7, 8]])
    assert made.length[0] == 2


def test_those_that_do_not_decode_make_room() -> None:
    made = MatchedText(2, ROOM)
    made.reserve(5)
    for rows in ((0, 1), (1, 2), (3, 4), (0, 1)):
        made.make_ready(roster(*rows), [request([row, 9, row, 9]) for row in rows])
        assert [made.tokens(row) for row in rows] == [[row, 9, row, 9] for row in rows]
        assert made.length[list(rows)].tolist() == [2, 2]
        assert len(made) == 2
    made.clear()
    assert len(made) == 0


def test_those_that_decode_keep_their_texts_when_others_make_room() -> None:
    """What is known of a long match is how far it was seen to grow, which reading the text anew forgets."""
    made = MatchedText(2, 4 * ROOM)
    made.reserve(5)
    text = list(range(50))
    made.make_ready(roster(0, 1), [request(text), request([1])])
    for token in text:
        extend(made, [0], [[token]])
    assert made.length[0] == 50
    made.make_ready(roster(2, 0), [request([2, 9, 2, 9]), request([])])  # nobody looks
    assert made.length[[2, 0]].tolist() == [2, 50]
    assert (made.tokens(1), made.tokens(0), made.tokens(2)) == ([], text + text, [2, 9, 2, 9])


def test_a_text_is_read_once() -> None:
    made = texts({0: [1, 2, 1, 2]})
    known = roster(0)
    made.make_ready(known, [request([1, 2, 1, 2])])
    made.make_ready(known, [request([])])  # nobody looks
    assert made.tokens(0) == [1, 2, 1, 2]


def test_what_is_outside_the_tables_is_an_error_and_changes_nothing() -> None:
    made = texts({0: [1, 2, 1]})
    with pytest.raises(ValueError, match="a row is outside the tables"):
        made.extend(np.array([1]), np.array([0]), np.array([1]), [[4]])
    with pytest.raises(ValueError, match="new tokens of one"):
        made.extend(np.array([0]), np.array([0]), np.array([2]), [[4]])
    with pytest.raises(ValueError, match="one start and one count"):
        made.extend(np.array([0]), np.array([0, 0]), np.array([1]), [[4]])
    assert made.tokens(0) == [1, 2, 1]
