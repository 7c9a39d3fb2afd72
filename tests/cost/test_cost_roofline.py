"""The roofline: its sanity figures, its corner, and the project's founding example."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cost import DraftCost, ModelGeometry, Roofline, hardware

LLAMA_31_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
MIXTURE = ModelGeometry("m", 10**9, expert_layers=32, experts=64, experts_per_token=4, expert_parameters=10**7)


def best_depths(cost, sequences, deepest, acceptance):
    """The goodput-optimal depths of one step, by trying all."""
    worth = np.concatenate([[0.0], np.cumsum(acceptance ** np.arange(1, deepest + 1))])
    best = max(
        itertools.product(range(deepest + 1), repeat=sequences),
        key=lambda depths: (
            (sequences + worth[list(depths)].sum())
            / float(cost.verify_range(sequences + sum(depths), 1, 0.0, sequences)[0])
        ),
    )
    return list(best)


def test_the_founding_example():
    """A ridge of five positions gives depth 4 to one sequence, and none to each of five."""
    cost = Roofline.from_numbers(27e9, bytes_per_second=1e12, flops_per_second=5e12)
    assert cost.ridge_point == pytest.approx(5.0)
    assert best_depths(cost, 1, 8, 0.8) == [4]
    assert best_depths(cost, 5, 4, 0.8) == [0] * 5


def test_27e9_parameters_at_16_bit_are_54_gb_a_pass():
    cost = Roofline.from_numbers(27e9, bytes_per_second=1e12, flops_per_second=5e12)
    assert float(cost.weight_bytes()) == 54e9
    assert cost.verify(np.array([1]), 0.0, 1)[0] == pytest.approx(0.054)
    assert float(Roofline(hardware("H200-SXM"), ModelGeometry.dense(27e9)).weight_bytes(64)) == 54e9


def test_sharp_is_the_maximum_of_both_roofs():
    cost = Roofline.from_numbers(1e9, 1e12, 40e12, launch_seconds=1e-3)
    positions = np.arange(1, 200)
    expected = 1e-3 + np.maximum(2e9 / 1e12, positions * 2e9 / 40e12)
    np.testing.assert_allclose(cost.verify(positions, 0.0, 1), expected, rtol=1e-14)


def test_smoothing_rounds_only_the_stated_width():
    sharp = Roofline.from_numbers(1e9, 1e12, 100e12)
    smooth = Roofline.from_numbers(1e9, 1e12, 100e12, smoothing=0.5)
    positions = np.arange(1, 401)
    added = smooth.verify(positions, 0.0, 1) - sharp.verify(positions, 0.0, 1)
    inside = (positions > 50) & (positions < 150)
    assert (added[inside] > 0).all()
    assert np.abs(added[~inside]).max() < 1e-15
    assert added[99] == pytest.approx(0.5 / 4 * 2e-3)
    slopes = np.diff(smooth.verify(positions, 0.0, 1))
    assert (np.diff(slopes) > -1e-15).all()  # convex, as the sharp one is


def test_context_adds_the_reading_of_the_kv_cache():
    geometry = ModelGeometry.from_config(LLAMA_31_8B)
    cost = Roofline(hardware("A100-SXM-80GB"), geometry)
    empty, full = (cost.verify(np.array([8]), context, 8)[0] for context in (0.0, 64_000.0))
    assert full - empty == pytest.approx(64_000 * 131_072 / 2.039e12)


def test_attention_becomes_arithmetic_when_a_pass_carries_many_positions_a_sequence():
    geometry = ModelGeometry.from_config(LLAMA_31_8B)
    cost = Roofline(hardware("A100-SXM-80GB"), geometry)
    positions = np.array([4096])
    added = cost.verify(positions, 16_000.0, 1) - cost.verify(positions, 0.0, 1)
    assert added[0] == pytest.approx(4096 * 16_000 * 32 * 4 * 4096 / 312e12)


def test_the_first_positions_of_a_mixture_are_expensive():
    cost = Roofline(hardware("H100-SXM"), MIXTURE)
    dense = Roofline(hardware("H100-SXM"), ModelGeometry.dense(MIXTURE.multiplied_parameters))
    seconds, flat = cost.verify(np.array([1, 2]), 0.0, 1), dense.verify(np.array([1, 2]), 0.0, 1)
    assert seconds[0] == pytest.approx(flat[0])
    read = 32 * 10**7 * 4 * (1 - 4 / 64) * 2 / 3.35e12  # the second token's experts that are new
    assert seconds[1] - seconds[0] == pytest.approx(read)
    assert flat[1] == flat[0]


@settings(deadline=None, max_examples=40)
@given(
    bandwidth=st.floats(1e10, 1e13),
    intensity=st.floats(2.0, 2000.0),
    mixture=st.booleans(),
)
def test_the_ridge_is_where_the_roofs_meet(bandwidth, intensity, mixture):
    geometry = MIXTURE if mixture else ModelGeometry.dense(10**9)
    cost = Roofline.from_numbers(10**9, bandwidth, bandwidth * intensity)
    cost.geometry = geometry
    ridge = cost.ridge_point
    assert float(cost.compute_seconds(ridge)) == pytest.approx(float(cost.memory_seconds(ridge)), rel=1e-9)
    if not mixture:
        assert ridge == pytest.approx(intensity, rel=1e-9)


def test_efficiencies_and_sizes():
    machine, geometry = hardware("H100-SXM"), ModelGeometry.dense(1e9)
    half = Roofline(machine, geometry, memory_efficiency=0.5)
    assert half.ridge_point == pytest.approx(Roofline(machine, geometry).ridge_point * 2)
    quarter = Roofline(machine, geometry, bytes_per_parameter=0.5)
    assert float(quarter.weight_bytes()) == 0.5e9
    assert Roofline(machine, geometry, "fp8").ridge_point == pytest.approx(1978.9e12 / 2 / 3.35e12)


@pytest.mark.parametrize(("context", "sequences"), [(0.0, 1), (500.0, 1), (64_000.0, 16), (2e6, 2)])
def test_range_equals_verify_also_as_its_table_grows(context, sequences):
    cost = Roofline(hardware("RTX-4090"), ModelGeometry.from_config(LLAMA_31_8B), smoothing=0.3)
    for first, count in ((1, 9), (300, 2000), (5000, 7), (4, 0)):
        expected = cost.verify(np.arange(first, first + count), context, sequences)
        np.testing.assert_allclose(cost.verify_range(first, count, context, sequences), expected, rtol=1e-14)


def test_a_range_at_no_context_is_a_view_that_cannot_be_written():
    cost = Roofline.from_numbers(1e9, 1e12, 1e14)
    with pytest.raises(ValueError, match="read-only"):
        cost.verify_range(1, 5, 0.0, 1)[0] = 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "bf16"}, "dtype 'bf16' is unknown; known are float32"),
        ({"dtype": "fp4"}, "H100-SXM has no peak for dtype 'fp4'"),
        ({"smoothing": 1.5}, "smoothing is 1.5"),
        ({"memory_efficiency": 0.0}, "memory_efficiency is 0.0"),
        ({"bytes_per_parameter": -1.0}, "bytes_per_parameter is -1.0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Roofline(hardware("H100-SXM"), ModelGeometry.dense(1e9), **arguments)


def test_no_positions_have_no_cost():
    cost = Roofline.from_numbers(1e9, 1e12, 1e14)
    with pytest.raises(ValueError, match="at least 1"):
        cost.verify(np.array([1, 0]), 0.0, 1)
    with pytest.raises(ValueError, match="at least 1"):
        cost.verify_range(0, 3, 0.0, 1)


def test_its_draft_cost_is_the_one_given():
    cost = Roofline.from_numbers(1e9, 1e12, 1e14, draft_cost=DraftCost.sequential(1e-3, idle=5e-4))
    np.testing.assert_allclose(cost.draft(np.arange(4), 3), [5e-4, 1e-3, 2e-3, 3e-3])
