"""The arithmetic for one sequence is that of the arrays: same survival, same state after learning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.acceptance import AcceptanceModel

K = 6
EVIDENCE = ("matched_length", "agreement", "age")


def flat(state: object, name: str = "") -> dict[str, np.ndarray]:
    """The numbers of a nested state, by path."""
    if isinstance(state, dict):
        return {k: v for key, item in state.items() for k, v in flat(item, f"{name}/{key}").items()}
    if isinstance(state, (int, float, np.ndarray)):
        return {name: np.asarray(state, dtype=float)}
    return {}


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 20), st.floats(0, 1), st.integers(0, 40), st.integers(0, K), st.integers(0, K)),
        min_size=1,
        max_size=60,
    ),
    sequence_effect=st.booleans(),
)
def test_one_sequence_learns_as_in_the_arrays(steps: list, sequence_effect: bool) -> None:
    one = AcceptanceModel(K, EVIDENCE, sequence_effect=sequence_effect, half_life_steps=50)
    many = AcceptanceModel(K, EVIDENCE, sequence_effect=sequence_effect, half_life_steps=50)
    row = np.array([0])
    for model in (one, many):
        model.add(0)
    for matched, agreement, age, verified, accepted in steps:
        evidence = np.array([[float(matched), agreement, float(age)]])
        cell = one.cells(evidence)
        twice = np.repeat(evidence, 2, axis=0)
        assert (many.cells(twice) == cell[0]).all()
        survival = one.estimate(row, cell).mean()
        arrays = many.estimate(np.array([0, 0]), np.array([cell[0], cell[0]])).mean()
        np.testing.assert_allclose(survival[0], arrays[0], rtol=1e-12)
        kept = min(accepted, verified)
        one.observe(row, cell, np.array([verified]), np.array([kept]))
        many._observe_many(row, cell, np.array([verified]), np.array([kept]))
        expected = flat(many.state())
        for name, value in flat(one.state()).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("value", [float("nan"), -1.0, 0.0, 1.0, 4.9, 5.0, 1e9, float("inf")])
def test_one_cell_is_found_as_many_are(value: float) -> None:
    model = AcceptanceModel(K, EVIDENCE)
    for column in range(3):
        evidence = np.zeros((1, 3))
        evidence[0, column] = value
        assert (model.cells(np.repeat(evidence, 3, axis=0)) == model.cells(evidence)[0]).all()
