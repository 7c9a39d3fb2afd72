"""The clairvoyant, the shortest path and the ceiling of causal signals."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from baseline_world import curve, depths, random_trace, traced, view
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cost.draft import DraftCost
from adaptive_spec.experiments.baselines.causal_features import causal_features
from adaptive_spec.experiments.baselines.clairvoyant import Clairvoyant
from adaptive_spec.experiments.baselines.shortest_path import shortest_path
from adaptive_spec.experiments.baselines.signal_ceiling import SignalCeiling, predict_survival
from adaptive_spec.replay.trace import TraceSequence

# ---------------------------------------------------------------- clairvoyant


def test_clairvoyant_buys_what_will_be_accepted_while_it_pays() -> None:
    # Runs 2 and 0. 10, 11, 12 ms at 2, 3, 4 positions: 2 / 10 = .2, 3 / 11 = .2727, 4 / 12 = .3333: both right drafts.
    # At 10, 16, 16: .2, .1875, .25: both; at 10, 16, 21: .2, .1875, .1905: none.
    policy = Clairvoyant(lambda: np.array([2, 0]))
    policy.reset(2, seed=0)
    assert depths(policy, view([2, 2]), curve([9, 10, 11, 12, 13, 14])) == [2, 0]
    assert depths(policy, view([2, 2]), curve([9, 10, 16, 16, 16, 16])) == [2, 0]
    assert depths(policy, view([2, 2]), curve([9, 10, 16, 21, 30, 30])) == [0, 0]
    assert depths(policy, view([1, 2]), curve([9, 10, 11, 12, 13, 14])) == [1, 0]
    with pytest.raises(ValueError, match="present_runs told of"):
        depths(policy, view([2]), curve([9, 10, 11]))


# ---------------------------------------------------------------- shortest path


def test_shortest_path_by_hand() -> None:
    # Five tokens: positions 1 to 4 with runs 1, 2, 1, 0. 10, 12, 20 ms at 1, 2, 3 positions, K = 2. From the end:
    #   4: no draft allowed: 10.   3: none: 10 + 10, one: 12 -> 5 tokens: 12.
    #   2: none: 10 + 12, one: 12 + 10, two: 20 -> 20.   1: none: 10 + 20, one: 12 + 12 = 24, two: 20 + 12.
    sequence = traced([[1, 2, 1, 0]], [[2, 2, 2, 2]])[0]
    path = shortest_path(sequence, curve([10, 12, 20]), 2)
    assert path.seconds == pytest.approx(0.024)
    assert path.position.tolist() == [1, 3]
    assert path.depth.tolist() == [1, 1]


def test_shortest_path_takes_a_dip_of_the_curve() -> None:
    # 10, 30, 10 ms: two drafts are cheaper than one, though only one is right; then one is left to emit.
    sequence = traced([[1, 0, 0, 0]], [[3, 3, 3, 3]])[0]
    path = shortest_path(sequence, curve([10, 30, 10]), 2)
    assert path.depth.tolist()[0] == 2
    assert path.seconds == pytest.approx(0.030)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 3))
def test_shortest_path_equals_brute_force(seed: int, positions: int, max_depth: int) -> None:
    rng = np.random.default_rng(seed)
    offered = rng.integers(0, max_depth + 1, positions)
    run = rng.integers(0, offered + 1)
    sequence = traced([run.tolist()], [offered.tolist()])[0]
    draft = DraftCost.sequential(float(rng.random()) * 5e-3) if rng.random() < 0.5 else None
    cost = curve((5 + 10 * rng.random(max_depth + 1)).tolist(), draft)
    best = np.inf
    for plan in product(range(max_depth + 1), repeat=positions):
        p, seconds = 1, 0.0
        while p < sequence.output_tokens:
            d = min(plan[p - 1], int(offered[p - 1]), sequence.max_tokens - p - 1)
            seconds += float(cost.verify(np.array([1 + d]), float(9 + p), 1)[0]) + float(
                cost.draft(np.array([d]), 1)[0]
            )
            p += 1 + min(d, int(run[p - 1]))
        best = min(best, seconds)
    path = shortest_path(sequence, cost, max_depth)
    assert path.seconds == pytest.approx(best)
    assert (path.depth <= offered[path.position - 1]).all()


# ---------------------------------------------------------------- signal ceiling


def test_features_by_hand() -> None:
    # Runs 3, 0, 1: at position 2 the run of position 1 shows 1 of its 3, at position 3 two of them, and position 2's 0.
    sequence = traced([[3, 0, 1]], [[4, 2, 1]], [np.array([7.0, 5.0, 6.0])], prompt_tokens=20)[0]  # type: ignore[list-item]
    features = causal_features(sequence)
    assert features[:, 0].tolist() == [7.0, 5.0, 6.0]  # evidence
    assert features[:, 1].tolist() == [4.0, 2.0, 1.0]  # on offer
    assert features[:, 2].tolist() == [1.0, 2.0, 3.0]  # age
    assert features[:, 3].tolist() == [20.0, 21.0, 22.0]  # context
    lags = features[:, 10:26]  # after three earlier evidences and offers
    assert np.isnan(lags[0]).all()
    assert lags[1, 0] == 1.0
    assert lags[2, :2].tolist() == [0.0, 2.0]
    assert lags[2, 8:10].tolist() == [1.0, 2.0]  # possible: min(2, 1), min(4, 2)
    assert features[2, 26] == 1.0  # of two lags, one without a fault


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**31), st.integers(2, 40))
def test_features_never_look_ahead(seed: int, positions: int) -> None:
    """Two texts that an engine couldn't tell apart at p have the same features at p."""
    rng = np.random.default_rng(seed)
    run = rng.integers(0, 9, positions)
    offered = np.maximum(run, rng.integers(0, 9, positions))
    evidence = rng.integers(0, 20, positions).astype(float)

    def text(r: np.ndarray, o: np.ndarray, e: np.ndarray) -> TraceSequence:
        return traced([r.tolist()], [o.tolist()], [e])[0]  # type: ignore[list-item]

    before = causal_features(text(run, offered, evidence))
    p = int(rng.integers(1, positions + 1))
    distance = p - np.arange(1, positions + 1)  # p - j
    later_run, later_offered, later_evidence = run.copy(), offered.copy(), evidence.copy()
    # What is seen of j < p is min(L[j], p - j): a run that reached p may go on otherwise. From p on all may differ,
    # but for what is known at p itself: evidence and offer.
    open_run = (distance > 0) & (run >= distance)
    later_run[open_run] = rng.integers(distance[open_run], np.maximum(offered[open_run], distance[open_run]) + 1)
    future = distance <= 0
    later_run[future] = rng.integers(0, 9, int(future.sum()))
    later_offered[distance < 0] = rng.integers(0, 9, int((distance < 0).sum()))
    later_evidence[distance < 0] = 99.0
    later_run = np.minimum(later_run, later_offered)
    after = causal_features(text(later_run, later_offered, later_evidence))
    np.testing.assert_array_equal(before[p - 1], after[p - 1])


def test_ceiling_predicts_unseen_texts_better_than_their_average() -> None:
    training, served = random_trace(11, texts=60).split(seed=2)
    survival = predict_survival(training, served, 4, seed=0)
    assert survival.shape == (served.positions, 4)
    assert (np.diff(survival, axis=1) <= 0).all()
    assert (predict_survival(training, served, 4, seed=0) == survival).all()
    for k in range(3):
        asked = served.offered > k
        truth = served.run[asked] > k
        p, average = survival[asked, k], truth.mean()
        assert p.mean() == pytest.approx(average, abs=0.05)
        score = -np.log(np.where(truth, p, 1 - p)).mean()
        plain = -(average * np.log(average) + (1 - average) * np.log(1 - average))
        assert score < 0.95 * plain


def test_ceiling_refuses_texts_that_it_was_trained_on() -> None:
    trace = random_trace(0, texts=4)
    with pytest.raises(ValueError, match="in both halves"):
        predict_survival(trace, trace, 4)
    with pytest.raises(ValueError, match="survival has shape"):
        SignalCeiling(np.ones((3, 5)), lambda: np.array([0])).reset(4, seed=0)


def test_ceiling_splits_by_what_was_predicted_for_the_place() -> None:
    # Place 1: .9, .8; place 0: .1, .1. 10, 12, 14, 16, 18 ms at 2 to 6: 2 / 10, 2.9 / 12 = .2417, 3.7 / 14 = .2643,
    # 3.8 / 16 = .2375.
    policy = SignalCeiling(np.array([[0.1, 0.1], [0.9, 0.8]]), lambda: np.array([1, 0]))
    policy.reset(2, seed=0)
    assert depths(policy, view([2, 2]), curve([9, 10, 12, 14, 16, 18])) == [2, 0]


def test_ceiling_of_a_drafter_that_is_always_right() -> None:
    training, served = traced([[2] * 5, [2] * 5]).split(seed=0)
    assert (predict_survival(training, served, 2) == 1.0).all()
