"""The compiled loops over the requests of a step, held against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.vllm_plugin import request_loops

NONE = np.zeros(0, dtype=np.int64)
seeds = st.integers(0, 2**31)


def draw(seed: int, *bounds: tuple[int, int]) -> list[np.ndarray]:
    """Arrays of one number a request, out of these bounds."""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(0, 9))
    return [generator.integers(low, high + 1, count) for low, high in bounds]


@settings(deadline=None)
@given(seeds, st.booleans())
def test_what_may_be_verified_ends_before_the_last_token(seed: int, flying: bool) -> None:
    before_last, offered, under_way = draw(seed, (0, 30), (0, 8), (0, 6))
    table = np.random.default_rng(seed).integers(0, 30, 20)
    row = np.random.default_rng(seed).permutation(20)[: len(offered)]
    produced, limit, written = request_loops.room_left(row, before_last, offered, under_way if flying else NONE, table)
    left = before_last - table[row] - (under_way if flying else 0)
    np.testing.assert_array_equal(produced, table[row])
    np.testing.assert_array_equal(limit, np.clip(left, 0, offered))
    assert written == table[row].sum()


@settings(deadline=None)
@given(seeds)
def test_drafts_are_cut_where_more_are_on_the_table_than_are_kept(seed: int) -> None:
    wanted, limit, offered = draw(seed, (0, 8), (0, 8), (0, 8))
    depth, over, made = request_loops.cut_drafts(wanted, limit, offered)
    np.testing.assert_array_equal(depth, np.minimum(np.minimum(wanted, limit), offered))
    np.testing.assert_array_equal(over, np.flatnonzero(depth < offered))
    assert made == depth.sum()


@settings(deadline=None)
@given(seeds, st.lists(st.integers(0, 2), max_size=3, unique=True), st.integers(0, 2))
def test_a_view_is_gathered_from_the_tables(seed: int, columns: list[int], to_come: int) -> None:
    prompt, before_last, age = draw(seed, (1, 50), (0, 30), (0, 30))
    generator = np.random.default_rng(seed)
    row, accepted, matched = (
        generator.permutation(20)[: len(age)],
        generator.integers(-1, 8, 20),
        generator.integers(1, 40, 20),
    )
    evidence, context, limit = request_loops.view_of(
        row, prompt, before_last, age, to_come, accepted, matched, np.array(columns, dtype=np.int64)
    )
    sources = [age, accepted[row], matched[row]]
    assert evidence.shape == (len(columns), len(row))
    for found, column in zip(evidence, columns, strict=True):
        np.testing.assert_array_equal(found, sources[column])
    np.testing.assert_array_equal(context, prompt + age)
    np.testing.assert_array_equal(limit, before_last - age - to_come)


def test_arrays_that_do_not_belong_together_and_rows_out_of_the_tables_are_refused() -> None:
    one, two, column = np.array([0]), np.array([0, 1]), np.array([1])
    calls = {
        request_loops.room_left: [(one, two, one, NONE, two), (one, one, one, two, two), (two, two, two, NONE, one)],
        request_loops.cut_drafts: [(one, two, two), (two, one, two), (two, two, one)],
        request_loops.view_of: [
            (one, two, one, one, 1, two, NONE, column),
            (one, one, two, one, 1, two, NONE, column),
            (one, one, one, two, 1, two, NONE, column),
            (two, two, two, two, 1, one, NONE, column),
            (one, one, one, one, 1, one, NONE, np.array([2])),
        ],
    }
    for loop, wrong in calls.items():
        for arguments in wrong:
            with pytest.raises(ValueError, match=r"one number each|outside the tables"):
                loop(*arguments)
