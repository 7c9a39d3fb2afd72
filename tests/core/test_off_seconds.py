"""What a step takes without speculation is measured, and nothing else moves it."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_spec.cost import Online, Profile
from adaptive_spec.off_block import OffBlock
from adaptive_spec.off_seconds import OffSeconds
from adaptive_spec.step import StepTime, StepView

CURVE = Profile([1, 16, 1024], [0.02, 0.04, 2.0], interpolation="linear")


def view(sequences: int = 8) -> StepView:
    row = np.arange(sequences)
    return StepView(row, np.full(sequences, 8), np.full(sequences, 100), np.zeros((sequences, 0)))


def modelled(sequences: int) -> float:
    return float(CURVE.verify_range(sequences, 1, 0.0, sequences)[0])


def test_before_the_first_off_step_it_is_what_was_believed_first() -> None:
    off, cost = OffSeconds(), Online(CURVE)
    off.believe(view(), cost)
    for step in range(20):  # speculating steps fall off a cliff, and the whole machine seems slower
        cost.observe(StepTime(step, 40, 8, 800, 4, verify_seconds=5 * modelled(40), step_seconds=5 * modelled(40)))
    assert cost.verify_range(8, 1, 0.0, 8)[0] > 3 * modelled(8)
    off.believe(view(), cost)
    assert off.at(view(), cost) == pytest.approx(modelled(8))


def test_a_measured_load_is_carried_to_another_by_the_models_ratio() -> None:
    off = OffSeconds()
    for _ in range(3):
        off.observe(view(8), CURVE, 2 * modelled(8))
    assert off.knows(view(8))
    assert not off.knows(view(64))
    assert off.at(view(64), CURVE) == pytest.approx(2 * modelled(64))
    off.observe(view(64), CURVE, modelled(64))
    assert off.at(view(64), CURVE) == pytest.approx(modelled(64))
    assert off.at(view(8), CURVE) == pytest.approx(2 * modelled(8))


def test_a_stalled_step_hardly_moves_it_and_three_in_a_row_do() -> None:
    off, rng = OffSeconds(), np.random.default_rng(0)
    for _ in range(50):
        off.observe(view(), CURVE, modelled(8) * float(np.exp(rng.normal(0.0, 0.03))))
    assert off.at(view(), CURVE) == pytest.approx(modelled(8), rel=0.015)
    off.observe(view(), CURVE, 10 * modelled(8))
    assert off.surprised
    assert off.at(view(), CURVE) == pytest.approx(modelled(8), rel=0.03)
    off.observe(view(), CURVE, modelled(8))
    assert not off.surprised
    for _ in range(3):
        off.observe(view(), CURVE, 1.5 * modelled(8))
    assert off.at(view(), CURVE) == pytest.approx(1.5 * modelled(8), rel=0.01)
    assert not off.surprised


def test_what_changes_at_one_load_is_half_believed_of_the_next() -> None:
    off = OffSeconds()
    for _ in range(5):
        off.observe(view(8), CURVE, modelled(8))
        off.observe(view(12), CURVE, modelled(12))
    for _ in range(3):
        off.observe(view(8), CURVE, 2 * modelled(8))
    assert 1.2 * modelled(12) < off.at(view(12), CURVE) < 1.8 * modelled(12)


def lost(block: OffBlock) -> float:
    slower, more = block.totals()
    return slower - more


def test_one_stalled_step_of_a_block_does_not_count_and_two_do() -> None:
    block = OffBlock(8)
    for slowness in (1.0, 1.0, 20.0, 1.0):
        block.add(slowness, 1.0, 1.0, 0.04, 8.0)
    assert lost(block) == pytest.approx(1.0)
    block.add(20.0, 1.0, 1.0, 0.04, 8.0)
    assert lost(block) == pytest.approx(38.0)


def test_a_step_that_carried_more_may_take_in_proportion() -> None:
    block = OffBlock(8)
    for _ in range(3):
        block.add(1.0, 1.0, 1.0, 0.04, 8.0)
    block.add(9.0, 2.0, 5.0, 0.04, 8.0)
    assert lost(block) == pytest.approx(7.0)
    assert block.take() == pytest.approx(np.log(5 / 12))
    assert len(block) == 0


def test_steps_of_different_loads_are_one_comparison_of_tokens_and_of_seconds() -> None:
    """What speculation gains at a low load, where off is slow for each token, doesn't hide what it loses at a high."""
    block = OffBlock(8)
    block.add(2.3, 1.8, 3.0, 0.067, 32.0)
    block.add(2.7, 3.5, 3.0, 0.041, 8.0)
    on = (1.8 * 32 + 3.5 * 8) / (2.3 * 0.067 + 2.7 * 0.041)
    assert block.take() == pytest.approx(np.log(on / (40 / 0.108)))
