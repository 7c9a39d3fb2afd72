"""SuffixIndex against brute force, on random, repetitive and pathological texts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.suffix import SuffixIndex


def brute_force(text: list[int]) -> tuple[int, int, float]:
    """Length of the longest suffix that occurred before, its last end there, the agreement of all ends."""
    size = len(text)
    for length in range(size - 1, 0, -1):
        suffix = text[size - length :]
        ends = [end for end in range(length, size) if text[end - length : end] == suffix]
        if ends:
            proposed = text[ends[-1]]
            return length, ends[-1], sum(text[end] == proposed for end in ends) / len(ends)
    return 0, size, 0.0


def found(index: SuffixIndex) -> tuple[int, int, float]:
    return index.matched_length, index.match_end, index.agreement


@st.composite
def texts(draw: st.DrawFn, longest: int = 40) -> list[int]:
    alphabet = draw(st.sampled_from([1, 2, 3, 9]))
    token = st.integers(0, alphabet - 1)
    if draw(st.booleans()):
        return draw(st.lists(token, max_size=longest))
    head = draw(st.lists(token, max_size=5))
    period = draw(st.lists(token, min_size=1, max_size=5))
    tail = draw(st.lists(token, max_size=4))
    return (head + period * longest)[: longest - 4] + tail


@given(texts())
@settings(deadline=None, max_examples=300)
def test_equals_brute_force_after_every_token(text: list[int]) -> None:
    index = SuffixIndex(walk=len(text) + 1)
    assert found(index) == (0, 0, 0.0)
    for size, token in enumerate(text, start=1):
        index.extend([token])
        assert found(index) == brute_force(text[:size])


@given(texts(), st.integers(1, 3))
@settings(deadline=None, max_examples=200)
def test_a_short_walk_keeps_the_length_exact_and_the_place_true(text: list[int], walk: int) -> None:
    index = SuffixIndex(walk=walk)
    for size, token in enumerate(text, start=1):
        index.extend([token])
        length, _, _ = brute_force(text[:size])
        assert index.matched_length == length
        if length:
            end = index.match_end
            assert length <= end < size
            assert text[end - length : end] == text[size - length : size]
            assert 0 < index.agreement <= 1


@given(texts(), st.integers(1, 12))
@settings(deadline=None, max_examples=200)
def test_extending_in_pieces_is_extending_at_once(text: list[int], piece: int) -> None:
    whole = SuffixIndex(text)
    parts = SuffixIndex()
    for at in range(0, len(text), piece):
        parts.extend(text[at : at + piece])
    parts.extend([])
    assert found(parts) == found(whole)
    assert parts.continuation(9) == whole.continuation(9)
    assert parts.tokens == text
    assert len(parts) == len(text)


@given(texts(), st.integers(0, 30))
@settings(deadline=None, max_examples=200)
def test_the_continuation_copies_from_the_match_including_what_it_just_proposed(text: list[int], n: int) -> None:
    index = SuffixIndex(text)
    draft = index.continuation(n)
    if not index.matched_length:
        assert draft == []
        return
    assert len(draft) == n
    grown = list(text)
    for offset, token in enumerate(draft):
        assert token == grown[index.match_end + offset]
        grown.append(token)


@pytest.mark.parametrize("period", [[7], [1, 2], [1, 2, 3, 4, 5, 6, 7]])
def test_periodic_text_matches_all_but_one_period_and_goes_on_for_ever(period: list[int]) -> None:
    text = (period * 5000)[:5000]
    index = SuffixIndex(text)
    assert index.matched_length == 5000 - len(period)
    assert index.agreement == 1.0
    assert index.continuation(20) == (period * 5020)[5000:5020]


def test_prefers_the_latest_occurrence_and_reports_how_many_agree() -> None:
    index = SuffixIndex([1, 2, 9, 1, 2, 9, 1, 2, 8, 3, 1, 2])
    assert index.matched_length == 2
    assert index.continuation(4) == [8, 3, 1, 2]
    assert index.agreement == pytest.approx(1 / 3)


def test_makes_no_more_states_than_an_automaton_may_have() -> None:
    # Nothing may grow faster than the text, or the cost per token would: 2n - 1 states, 3n - 4 transitions.
    for text in ([3] * 3000 + [4], [i % 7 for i in range(3000)], [i * i % 11 for i in range(3000)]):
        index = SuffixIndex(text)
        assert len(index._length) <= 2 * len(text)
        assert sum(len(out) for out in index._edges if out is not None) <= 3 * len(text)


def test_a_walk_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SuffixIndex(walk=0)
