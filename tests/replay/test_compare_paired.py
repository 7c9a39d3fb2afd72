"""Paired bootstrap: exact where it must be, and intervals that hold what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.replay.paired import PairedBootstrap, Sums


def sums(rng: np.random.Generator, texts: int, seeds: int, pace: float = 1.0) -> Sums:
    amount = rng.integers(50, 200, (texts, seeds)).astype(float)
    return Sums(amount, amount * pace * rng.lognormal(0.0, 0.2, (texts, seeds)))


@given(st.integers(1, 30), st.integers(1, 4), st.floats(0.2, 5.0), st.integers(0, 10_000))
@settings(deadline=None, max_examples=40)
def test_a_policy_that_is_faster_by_one_factor_has_no_uncertainty(
    texts: int, seeds: int, factor: float, seed: int
) -> None:
    first = sums(np.random.default_rng(seed), texts, seeds)
    second = Sums(first.amount, first.seconds / factor)
    ratio = PairedBootstrap(texts, seeds, draws=100).ratio(second, first)
    assert ratio.value == pytest.approx(factor)
    assert (ratio.low, ratio.high) == pytest.approx((factor, factor))


def test_pairing_cancels_what_texts_do_to_both_sides() -> None:
    rng = np.random.default_rng(0)
    text = rng.lognormal(0.0, 0.8, (40, 1))  # some texts are much faster than others, for everybody
    first = Sums(np.full((40, 2), 100.0), 100 * text * rng.lognormal(0.0, 0.02, (40, 2)))
    second = Sums(np.full((40, 2), 100.0), 95 * text * rng.lognormal(0.0, 0.02, (40, 2)))
    draws = PairedBootstrap(40, 2)
    alone, paired = draws.rate(first), draws.ratio(second, first)
    assert (alone.high - alone.low) / alone.value > 0.3
    assert paired.high - paired.low < 0.05
    assert paired.over


def test_a_seed_that_goes_wrong_on_all_texts_is_seen() -> None:
    amount = np.full((50, 5), 100.0)
    seconds = amount.copy()
    seconds[:, 0] *= 2.0  # locked in, under one seed of five
    interval = PairedBootstrap(50, 5).ratio(Sums(amount, seconds), Sums(amount, amount))
    assert interval.low < 0.75
    assert interval.high == pytest.approx(1.0)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    truth, held, tries = 1.1, 0, 200
    for attempt in range(tries):
        amount = rng.integers(60, 240, (30, 3)).astype(float)
        base = rng.lognormal(0.0, 0.4, (30, 1)) * np.ones((1, 3))
        # The advantage differs between texts, and a little between seeds; its mean is the truth.
        own = rng.normal(0.0, 0.15, (30, 1)) + rng.normal(0.0, 0.05, (30, 3))
        first = Sums(amount, amount * base)
        second = Sums(amount, amount * base * np.exp(own - (0.15**2 + 0.05**2) / 2) / truth)
        interval = PairedBootstrap(30, 3, draws=300, seed=attempt).ratio(second, first)
        held += interval.low <= truth <= interval.high
    assert 0.88 <= held / tries <= 1.0


def test_draws_are_the_same_for_the_same_seed_and_differ_otherwise() -> None:
    rng = np.random.default_rng(2)
    first, second = sums(rng, 12, 2), sums(rng, 12, 2, pace=1.2)

    def interval(seed: int) -> tuple[float, float]:
        found = PairedBootstrap(12, 2, draws=200, seed=seed).ratio(first, second)
        return found.low, found.high

    assert interval(3) == interval(3)
    assert interval(3) != interval(4)


def test_what_was_never_served_has_no_rate() -> None:
    nothing = Sums(np.zeros((3, 1)), np.zeros((3, 1)))
    found = PairedBootstrap(3, 1, draws=100).rate(nothing)
    assert math.isnan(found.value)
    assert math.isnan(found.low)
    with pytest.raises(ValueError, match="one of each"):
        PairedBootstrap(0, 1)
