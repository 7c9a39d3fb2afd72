"""Adaptive verification, DSpark's Algorithm 1 and their stand-in confidence, on examples worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from baseline_world import NoEstimate, curve, depths, outcome, random_trace, traced, view
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cost.draft import DraftCost
from adaptive_spec.experiments.baselines.adaptive_verification import AcceptanceEstimator, AdaptiveVerification
from adaptive_spec.experiments.baselines.confidence import ConfidenceTable
from adaptive_spec.experiments.baselines.dspark import DSparkEarlyStop, admit


def table(*acceptance: float) -> ConfidenceTable:
    """The same confidences at every matched length."""
    return ConfidenceTable(np.tile(np.array(acceptance), (7, 1)))


# ---------------------------------------------------------------- the stand-in


def test_confidence_counts_acceptance_by_matched_length_and_position() -> None:
    # Matched 1: runs 0 and 2 of 2 drafts; matched 2: run 1 of 2; no match: nothing on offer.
    trace = traced([[0, 2, 1, 0]], [[2, 2, 2, 0]], [np.array([1.0, 1.0, 2.0, 0.0])])  # type: ignore[list-item]
    confidence = ConfidenceTable.fit(trace, 2, weight=1.0)
    # Position 1: matched 1: 1 of 2 right, matched 2: 1 of 1; together 2 of 3.
    # Position 2 (reached by runs >= 1): matched 1: 1 of 1, matched 2: 0 of 1; together 1 of 2.
    expected = {
        1.0: [(1 + 2 / 3) / 3, (1 + 1 / 2) / 2],
        2.0: [(1 + 2 / 3) / 2, (0 + 1 / 2) / 2],
        20.0: [2 / 3, 1 / 2],  # never seen: the average
    }
    for matched, row in expected.items():
        assert confidence.confidence(np.array([[matched]]))[0] == pytest.approx(row)
    assert confidence.confidence(np.array([[np.nan]]))[0] == pytest.approx([2 / 3, 1 / 2])


def test_confidence_finds_its_column_and_is_calibrated_on_other_texts() -> None:
    training, served = random_trace(5, texts=200).split(seed=0)
    confidence = ConfidenceTable.fit(training, 4)
    sure = confidence.confidence(served.evidence["matched_length"][:, None])
    for k in range(4):
        reached = (served.offered > k) & (served.run >= k)
        assert sure[reached, k].mean() == pytest.approx((served.run[reached] > k).mean(), abs=0.03)


def test_confidence_without_matches_goes_by_position() -> None:
    # 3 drafts at each of 4 positions, runs 0, 1, 3, 2: 3 of 4 right, then 2 of 3, then 1 of 2.
    trace = replace(traced([[0, 1, 3, 2]], [[3, 3, 3, 3]]), evidence={})
    confidence = ConfidenceTable.fit(trace, 3)
    assert confidence.confidence(np.zeros((2, 0))) == pytest.approx(np.array([[3 / 4, 2 / 3, 1 / 2]] * 2))


def test_confidence_needs_drafts_and_enough_of_them() -> None:
    with pytest.raises(ValueError, match="no draft"):
        ConfidenceTable.fit(traced([[0, 0]]), 2)
    with pytest.raises(ValueError, match="table for 2 drafts"):
        DSparkEarlyStop(table(0.9, 0.5)).reset(3, seed=0)


# ---------------------------------------------------------------- adaptive verification


def test_estimator_starts_cold_and_refits_by_hand() -> None:
    # Features 1 and 0, both drafts verified, one accepted. Slope .5, intercepts -.2:
    #   p = sigmoid(.3) = .574443, sigmoid(-.2) = .450166; residuals 1 - p1 = .425557, 0 - p2 = -.450166
    #   weights p(1-p) = .244458, .247517. With the ridge .001:
    #   a = .245458 (feature 1 at position 1 only), b = (.244458, 0), c = (.245458, .248517), g0 = .425557
    #   arrow: (.425557 - .244458 * .425557 / .245458) / (.245458 - .244458^2 / .245458)
    #        = (.425557 - .423824) / (.245458 - .243462) = .868632;  damped by 2 / (2 + 50): .033409
    #   intercepts: (.425557 - .244458 * .033409) / .245458 / 51 = .033342;  -.450166 / .248517 / 51 = -.035518
    estimator = AcceptanceEstimator(2)
    feature = np.array([[1.0, 0.0]])
    predicted = estimator.predict(feature)
    assert predicted[0] == pytest.approx([0.574443, 0.450166], abs=1e-6)
    estimator.observe(feature, predicted, np.array([2]), np.array([1]))
    for _ in range(98):
        estimator.observe(feature[:0], predicted[:0], np.array([], dtype=int), np.array([], dtype=int))
    assert estimator.refits == 0
    assert estimator.slope == 0.5
    estimator.observe(feature[:0], predicted[:0], np.array([], dtype=int), np.array([], dtype=int))
    assert estimator.refits == 1  # after a hundred steps
    assert estimator.slope == pytest.approx(0.533409, abs=1e-6)
    assert estimator.intercept == pytest.approx([-0.166658, -0.235518], abs=1e-6)
    estimator.refit()  # the round's statistics are gone
    assert estimator.slope == pytest.approx(0.533409, abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(1, 4))
def test_estimators_arrow_solves_the_whole_system(seed: int, requests: int, depth: int) -> None:
    """The slope's step is that of a ridge logistic regression in all parameters, damped."""
    rng = np.random.default_rng(seed)
    feature = rng.normal(1.0, 1.0, (requests, depth))
    verified = rng.integers(0, depth + 1, requests)
    kept = rng.random((requests, depth)) < 1.0 / (1.0 + np.exp(-feature))
    accepted = np.minimum(np.cumprod(kept, axis=1).sum(axis=1), verified)
    estimator = AcceptanceEstimator(depth)
    predicted = estimator.predict(feature)
    estimator.observe(feature, predicted, verified, accepted)
    information, gradient, count = np.zeros((depth + 1, depth + 1)), np.zeros(depth + 1), 0
    for i in range(requests):
        for k in range(min(accepted[i] + 1, verified[i])):
            x = np.zeros(depth + 1)
            x[0], x[k + 1] = feature[i, k], 1.0
            p = predicted[i, k]
            information += p * (1 - p) * np.outer(x, x)
            gradient += (float(k < accepted[i]) - p) * x
            count += 1
    step = np.linalg.solve(information + 1e-3 * np.eye(depth + 1), gradient)[0] * count / (count + 50)
    estimator.refit()
    assert estimator.slope == pytest.approx(0.5 + step if step >= -0.5 else 0.5)


def test_estimator_never_lets_the_slope_turn_negative() -> None:
    estimator = AcceptanceEstimator(1)
    feature = np.array([[4.0], [-4.0]] * 500)  # confident drafts fail, doubtful ones hold
    predicted = estimator.predict(feature)
    estimator.observe(feature, predicted, np.ones(1000, dtype=int), np.tile([0, 1], 500))
    estimator.refit()
    assert estimator.slope == 0.5


def test_verification_sizes_by_stale_predictions_and_fills_by_present_ones() -> None:
    # Confidences .9 and .5: log-odds 2.1972 and 0; predicted .710664 and .450166; survival .710664, .319917.
    # 10, 10, 14 ms at 1, 2, 3 positions. A fresh request's drafts count as certain:
    #   1 / 10, 2 / 10, 3 / 14 = .2143: both are verified. Then by what was predicted a step ago:
    #   1 / 10, 1.7107 / 10 = .1711, 2.0306 / 14 = .1450: one.
    policy = AdaptiveVerification(table(0.9, 0.5))
    policy.reset(2, seed=0)
    policy.add(0)
    cost = curve([10, 10, 14])
    decision = policy.decide(view([2]), NoEstimate(), cost)
    assert decision.depth.tolist() == [2]
    assert decision.draft_depth == 2
    decision = policy.decide(view([2]), NoEstimate(), cost)
    assert decision.depth.tolist() == [1]
    assert decision.draft_depth == 2  # every draft is made, whatever is verified
    policy.add(0)  # another request takes the row
    assert depths(policy, view([2]), cost) == [2]


def test_verification_gives_slots_to_the_likeliest_requests() -> None:
    acceptance = np.tile(np.array([0.5, 0.5]), (7, 1))
    acceptance[2] = [0.99, 0.99]  # matched length 2
    policy = AdaptiveVerification(ConfidenceTable(acceptance))
    policy.reset(2, seed=0)
    # 2 requests; stale survivals 1, 1, 1, 1: 2/10, 3/10, 4/10, 5/20, 6/30: two slots, both to the second request,
    # whose survival is sigmoid(.5 * 4.595 - .2) = .8907 and .7933, against .4502 of the first.
    assert depths(policy, view([2, 2], [1, 2]), curve([10, 10, 10, 10, 20, 30])) == [0, 2]


def test_verification_forces_costs_monotone() -> None:
    # Confidences .1: predicted sigmoid(.5 * -2.1972 - .2) = .214399; survival .2144, .0460.
    # 10, 20, 11 ms. Truly 1.2604 / 11 = .1146 > 1 / 10, but the curve is taken for 10, 20, 20.
    policy = AdaptiveVerification(table(0.1, 0.1))
    policy.reset(2, seed=0)
    cost = curve([10, 20, 11])
    assert depths(policy, view([2]), cost) == [2]  # fresh: 3 / 20 = .15
    assert depths(policy, view([2]), cost) == [0]
    # A draft of 100 ms a step: 1 / 110, 1.2144 / 120, 1.2604 / 120 = .0105: it is paid for anyway.
    slow = curve([10, 20, 11], DraftCost.parallel(0.1))
    assert depths(policy, view([2]), slow) == [2]


def test_verification_grades_what_it_predicted_for_that_step() -> None:
    policy = AdaptiveVerification(table(0.9, 0.5))
    policy.reset(2, seed=0)
    cost = curve([10] * 9)
    first = policy.decide(view([2, 2, 2]), NoEstimate(), cost)
    first.step = 1
    policy.decide(view([2]), NoEstimate(), cost).step = 2  # in flight before the first is judged
    told = outcome([2, 2], [2, 1], step=1)
    told.row = np.array([2, 0])
    policy.observe(told)
    policy.observe(outcome([2], [0], step=99))  # not its own
    policy.estimator_.refit()
    alone = AcceptanceEstimator(2)
    feature = np.log(np.array([[0.9, 0.5]] * 2) / np.array([[0.1, 0.5]] * 2))
    alone.observe(feature, alone.predict(feature), np.array([2, 2]), np.array([2, 1]))
    alone.refit()
    assert policy.estimator_.slope == alone.slope
    assert policy.estimator_.intercept == pytest.approx(alone.intercept)


# ---------------------------------------------------------------- DSpark


def test_algorithm_1_by_hand() -> None:
    # Two requests, survivals .9, .5 and .6, .1; 10, 12, 13, 16, 17 ms at 2 to 6 positions.
    #   2 / 10 = .2; + .9: 2.9 / 12 = .2417; + .6: 3.5 / 13 = .2692; + .5: 4.0 / 16 = .25: stop, with two admitted.
    survival = np.array([[0.9, 0.5], [0.6, 0.1]])
    limit = np.array([2, 2])
    assert admit(survival, limit, 2.0, 1.0 / np.array([10.0, 12, 13, 16, 17])).tolist() == [1, 1]
    # A stair: 2.9 / 15 = .1933 < .2 ends it at once, though 4.1 / 15 = .2733 were to be had.
    assert admit(survival, limit, 2.0, 1.0 / np.array([10.0, 15, 15, 15, 15])).tolist() == [0, 0]
    # Only offered drafts are candidates, and equal throughput is a fall: 2 / 10 = .2 = 2.6 / 13.
    assert admit(survival, np.array([0, 2]), 2.0, 1.0 / np.array([10.0, 13, 13])).tolist() == [0, 0]
    assert admit(survival, np.array([0, 2]), 2.0, 1.0 / np.array([10.0, 12, 12])).tolist() == [0, 2]


def test_dspark_reads_the_curve_and_always_drafts_in_full() -> None:
    # Survival .9, .45: one request: 1 / 10 = .1, 1.9 / 12 = .1583, 2.35 / 16 = .1469.
    policy = DSparkEarlyStop(table(0.9, 0.5))
    policy.reset(2, seed=0)
    decision = policy.decide(view([2]), NoEstimate(), curve([10, 12, 16]))
    assert decision.depth.tolist() == [1]
    assert decision.draft_depth == 2
    # 10 ms of drafting in every step: 1 / 20 = .05, 1.9 / 22 = .0864, 2.35 / 26 = .0904.
    assert depths(policy, view([2]), curve([10, 12, 16], DraftCost.parallel(0.01))) == [2]


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 4))
def test_algorithm_1_equals_the_loop_of_the_paper(seed: int, sequences: int, depth: int) -> None:
    rng = np.random.default_rng(seed)
    survival = np.cumprod(rng.random((sequences, depth)), axis=1)
    limit = rng.integers(0, depth + 1, sequences)
    rate = 1.0 / np.cumsum(rng.random(int(limit.sum()) + 1) + np.append(3.0, np.zeros(int(limit.sum()))))
    candidates = sorted(
        ((-survival[r, j], r, j) for r in range(sequences) for j in range(limit[r])),
    )
    lengths, tokens, best = [0] * sequences, float(sequences), sequences * rate[0]
    for n, (minus, r, j) in enumerate(candidates, start=1):
        tokens -= minus
        if tokens * rate[n] <= best:
            break
        best, lengths[r] = tokens * rate[n], j + 1
    assert admit(survival, limit, float(sequences), rate).tolist() == lengths
