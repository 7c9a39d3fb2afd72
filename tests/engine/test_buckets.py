"""Buckets: every pass that decoding can need has one, and padding is small."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.engine.buckets import LARGEST, Bucket, Buckets


def test_the_staircase_rises_by_an_eighth_at_most():
    sizes = Buckets().positions
    assert sizes[0] == 1
    assert sizes[-1] == LARGEST
    for low, high in pairwise(sizes):
        assert low < high <= max(2 * low, 8) if low < 8 else high <= low + max(8, low // 8)
    assert len(sizes) < 40


def test_a_pass_without_positions_has_none():
    assert Buckets().fitting(0, 0) is None


@given(st.integers(1, 700), st.data())
@settings(deadline=None, max_examples=200)
def test_a_bucket_holds_what_it_is_for(positions, data):
    sequences = data.draw(st.integers(1, positions))
    bucket = Buckets().fitting(positions, sequences)
    if positions > LARGEST:
        assert bucket is None
        return
    assert bucket is not None
    assert bucket.positions >= positions
    assert bucket.sequences >= sequences
    assert bucket.sequences < 4 * sequences
    larger = list(bucket.with_more_sequences())
    assert larger[0] == bucket
    assert all(one.positions == bucket.positions for one in larger)
    assert [one.sequences for one in larger] == sorted({one.sequences for one in larger})


@pytest.mark.parametrize(("most_sequences", "max_depth"), [(1, 0), (1, 8), (3, 0), (5, 2), (16, 4), (64, 8), (200, 1)])
def test_what_is_captured_is_what_decoding_can_need(most_sequences, max_depth):
    """By counting: n sequences with 0 to K drafts each have n to n (K + 1) positions, and every number between."""
    buckets = Buckets()
    needed = {
        bucket
        for sequences in range(1, most_sequences + 1)
        for positions in range(sequences, sequences * (max_depth + 1) + 1)
        if (bucket := buckets.fitting(positions, sequences)) is not None
    }
    captured = buckets.decoding(most_sequences, max_depth)
    assert set(captured) == needed
    assert captured == sorted(needed, reverse=True)
    assert len(captured) == len(needed)
    assert all(isinstance(bucket, Bucket) for bucket in captured)
