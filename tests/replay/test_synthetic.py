"""Synthetic acceptance: the survival that was asked for, and what lies beneath it."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_spec.replay.synthetic import (
    DOMAIN_SHIFT,
    DSPARK_GLM_5_2,
    SyntheticAcceptance,
    constant_acceptance,
)


def mean_acceptance(runs, depth):
    """Accepted drafts over those judged: a run below K ends with one rejection."""
    return runs.sum() / (runs.sum() + (runs < depth).sum())


@pytest.mark.parametrize(("heterogeneity", "wander"), [(0.0, 0.0), (1.0, 0.0), (0.7, 0.9)])
def test_survival_is_the_given_one_whatever_the_spread(heterogeneity, wander):
    acceptance = SyntheticAcceptance(DSPARK_GLM_5_2, "x", heterogeneity, wander)
    trace = acceptance.trace(4000, 12, seed=1)
    # Positions of a sequence are correlated; sequences are not.
    error = 4 * np.sqrt(0.25 / 4000)
    assert np.abs(trace.survival() - DSPARK_GLM_5_2).max() < error
    assert trace.max_depth == 16


def test_heterogeneity_spreads_sequences_and_persistence_neighbours():
    def spread(**settings):
        trace = SyntheticAcceptance(constant_acceptance(0.6, 8), "x", **settings).trace(300, 201, seed=2)
        runs = trace.run.reshape(300, 200).astype(float)
        means = runs.mean(axis=1)
        left = runs - means[:, None]
        return means.std(), (left[:, 1:] * left[:, :-1]).mean() / left.var()

    plain, independent = spread(heterogeneity=0.0, wander=0.0)
    apart, _ = spread(heterogeneity=1.0, wander=0.0)
    _, sticky = spread(heterogeneity=0.0, wander=1.2, persistence=0.9)
    assert apart > 4 * plain
    assert abs(independent) < 0.02
    assert sticky > 0.15


def test_the_domain_shifts_in_the_middle_of_the_text():
    before, after = (SyntheticAcceptance(constant_acceptance(a, 8), "Hong et al. 2025", 0.0, 0.0) for a in DOMAIN_SHIFT)
    trace = before.trace(800, 101, shift_at=50, after=after, seed=3)
    runs = trace.run.reshape(800, 100).astype(int)
    assert mean_acceptance(runs[:, :49], 8) == pytest.approx(0.607, abs=0.01)
    assert mean_acceptance(runs[:, 49:], 8) == pytest.approx(0.375, abs=0.01)
    assert "from output position 50" in trace.info.synthetic
    other = after.shifted(trace, seed=4)
    assert (other.start == trace.start).all()
    assert mean_acceptance(other.run.astype(int), 8) == pytest.approx(0.375, abs=0.01)


def test_seeds_and_extremes():
    acceptance = SyntheticAcceptance((1.0, 1.0, 0.5, 0.0), "x")
    trace = acceptance.trace(50, [2, 30] * 25, seed=5)
    assert set(np.unique(trace.run)) == {2, 3}
    assert (trace.run == acceptance.trace(50, [2, 30] * 25, seed=5).run).all()
    assert (trace.run != acceptance.trace(50, [2, 30] * 25, seed=6).run).any()
    assert trace.output_tokens.tolist() == [2, 30] * 25


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"survival": (0.5, 0.6)}, "never rise"),
        ({"survival": (1.5,)}, "0..1"),
        ({"survival": ()}, "1..255 positions"),
        ({"persistence": 1.0}, "persistence is 1.0"),
        ({"wander": -1.0}, "wander is -1.0"),
    ],
)
def test_impossible_acceptance_is_refused(arguments, told):
    with pytest.raises(ValueError, match=told):
        SyntheticAcceptance(**{"survival": (0.5,), "source": "x", **arguments})
