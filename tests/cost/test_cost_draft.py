"""The draft's cost: its shapes, its interpolation over sequences, its errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cost import DraftCost

DEPTHS = np.arange(5)


def test_the_three_shapes():
    np.testing.assert_array_equal(DraftCost.free().seconds(DEPTHS, 9), np.zeros(5))
    np.testing.assert_allclose(DraftCost.sequential(2.0, idle=2.0).seconds(DEPTHS, 9), [2, 2, 4, 6, 8])
    np.testing.assert_allclose(DraftCost.parallel(3.0).seconds(DEPTHS, 9), [0, 3, 3, 3, 3])


def test_lag_is_caught_up_only_where_something_is_drafted():
    cost = DraftCost.sequential(1.0, catch_up=0.5, lag_position=0.01)
    np.testing.assert_allclose(cost.seconds(DEPTHS, 1, lag=20), [0, 1.7, 2.7, 3.7, 4.7])
    np.testing.assert_allclose(cost.seconds(DEPTHS, 1, lag=0), [0, 1, 2, 3, 4])


def test_sequences_are_interpolated_and_extrapolated():
    cost = DraftCost((2, 4, 8), idle=(0.0, 0.0, 0.4), start=(1.0, 2.0, 3.0), each=(0.1, 0.1, 0.1))
    at = {n: cost.seconds(np.array([0, 1]), n) for n in (1, 2, 3, 6, 16)}
    np.testing.assert_allclose(at[1], [0.0, 1.1])
    np.testing.assert_allclose(at[2], [0.0, 1.1])
    np.testing.assert_allclose(at[3], [0.0, 1.6])
    np.testing.assert_allclose(at[6], [0.2, 2.6])
    np.testing.assert_allclose(at[16], [1.2, 5.1])


@settings(deadline=None, max_examples=40)
@given(
    start=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    each=st.floats(0, 1),
    sequences=st.integers(1, 1000),
)
def test_never_negative_and_rising_in_depth(start, each, sequences):
    cost = DraftCost((1, 4, 9), (0.0,) * 3, tuple(start), (each, each, each))
    seconds = cost.seconds(DEPTHS, sequences)
    assert (seconds >= 0).all()
    assert (np.diff(seconds[1:]) >= 0).all()


def test_round_trip():
    cost = DraftCost((2, 4), (0.0, 0.1), (1.0, 2.0), (0.1, 0.2), catch_up=0.3, lag_position=0.4)
    assert DraftCost.from_dict(cost.to_dict()) == cost


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequences": [4, 2], "idle": [0, 0], "start": [0, 0], "each": [0, 0]}, "sequences must be rising"),
        ({"each": [-1.0]}, "each is -1.0"),
        ({"start": [float("nan")]}, "start is nan"),
        ({"each": [1.0, 2.0]}, "each has 2 values for 1 numbers"),
        ({"eech": [1.0]}, "no 'eech'"),
        ({"each": 3.0}, "each must be of numbers"),
        ({"catch_up": -1}, "catch_up is -1.0"),
    ],
)
def test_errors(fields, message):
    with pytest.raises(ValueError, match=message):
        DraftCost.from_dict(fields)
