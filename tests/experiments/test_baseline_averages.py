"""TurboSpec, SGLang's tiers and Hugging Face's rules, on examples worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from baseline_world import NoEstimate, curve, depths, outcome, traced, view
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.cost.draft import DraftCost
from adaptive_spec.experiments.baselines import Offline, baselines
from adaptive_spec.experiments.baselines.confidence import ConfidenceTable
from adaptive_spec.experiments.baselines.hf_confidence import HFConfidence, best_thresholds
from adaptive_spec.experiments.baselines.hf_heuristic import HFHeuristic
from adaptive_spec.experiments.baselines.sglang_ema import BY_BATCH_SIZE, SGLangEMA, Tiers
from adaptive_spec.experiments.baselines.turbospec import TurboSpec, generated

# ---------------------------------------------------------------- TurboSpec


def test_turbospec_expects_a_geometric_length() -> None:
    assert generated(0.7, 0) == 1.0
    assert generated(0.7, 2) == pytest.approx(1 + 0.7 + 0.49)
    assert generated(1.0, 3) == 4.0


def test_turbospec_chooses_by_goodput_every_twenty_steps() -> None:
    # Rate .7, two requests: 1, 1.7, 2.19 tokens each at depth 0, 1, 2; 10, 14, 20 ms at 2, 4, 6 positions.
    #   1.1 * 2 / 10 = .22; 3.4 / 14 = .2429; 4.38 / 20 = .219: depth 1.
    policy = TurboSpec()
    policy.reset(2, seed=0)
    cost = curve([9, 10, 12, 14, 17, 20])
    assert [depths(policy, view([2, 2]), cost) for _ in range(19)] == [[0, 0]] * 19
    assert depths(policy, view([2, 2]), cost) == [1, 1]
    # 15 ms there: 3.4 / 15 = .2267 still wins; 16: .2125 doesn't, for depth 0 counts a tenth more.
    for at_four, chosen in ((15, 1), (16, 0)):
        policy.reset(2, seed=0)
        for _ in range(20):
            depth = depths(policy, view([2, 2]), curve([9, 10, 12, at_four, 18, 20]))
        assert depth == [chosen] * 2


def test_turbospec_counts_requests_without_drafts_and_the_drafters_time() -> None:
    # One of two requests drafts: (1.7 + 1) / 12 = .225 > .22, (2.19 + 1) / 14 = .2279: depth 2 at 2, 3, 4 positions.
    policy = TurboSpec()
    policy.reset(2, seed=0)
    for _ in range(20):
        depth = depths(policy, view([2, 0]), curve([9, 10, 12, 14, 17, 20]))
    assert depth == [2, 0]
    # 1 ms a draft token: 2.7 / 13 = .2077 < .22: depth 0.
    policy.reset(2, seed=0)
    for _ in range(20):
        depth = depths(policy, view([2, 0]), curve([9, 10, 12, 14, 17, 20], DraftCost.sequential(1e-3)))
    assert depth == [0, 0]


def test_turbospec_stops_at_the_first_depth_that_is_no_better() -> None:
    # 10, 10, 40, 10 ms at 1 to 4 positions: 1.1 / 10, 1.7 / 10 = .17, 2.19 / 40 = .055; depth 3's .2533 is not seen.
    policy = TurboSpec()
    policy.reset(3, seed=0)
    for _ in range(20):
        depth = depths(policy, view([3]), curve([10, 10, 40, 10]))
    assert depth == [1]


def test_turbospec_smooths_the_rate_of_accepted_over_drafted() -> None:
    policy = TurboSpec()
    policy.reset(4, seed=0)
    policy.observe(outcome([3, 1], [1, 0]))
    assert policy.rate_ == pytest.approx(0.85 * 0.7 + 0.15 * 0.25)  # .6325
    policy.observe(outcome([0, 0], [0, 0]))
    assert policy.rate_ == pytest.approx(0.6325)


def test_turbospec_counts_off_for_what_it_is_where_drafts_are_looked_up() -> None:
    looked_up = traced([[1, 2, 0]])
    drafted = replace(looked_up, evidence={})
    factory = baselines(8)["turbospec"]
    for trace, factor in ((looked_up, 1.0), (drafted, 1.1)):
        assert factory(Offline(trace, trace, 8), None).off_factor == factor
    assert factory(Offline(looked_up, looked_up, 8), None, off_factor=1.2).off_factor == 1.2


# ---------------------------------------------------------------- SGLang


def test_sglang_tiers_by_hand() -> None:
    # Start at 3 with length 2. Three accepted each time: 3 - .8^n. The warm-up ends after 10 batches, the first
    # update comes with the 15th: 3 - .8^15 = 2.9648 > 3 - .5: up to 7; not further.
    policy = SGLangEMA()
    policy.reset(8, seed=0)
    for _ in range(14):
        assert depths(policy, view([8, 8])) == [3, 3]
        policy.observe(outcome([3, 3], [3, 3]))
    policy.observe(outcome([3, 3], [3, 3]))
    assert depths(policy, view([8, 2])) == [7, 2]
    # One accepted: 1 + 1.9648 * .8^5 = 1.6438 <= 3 - .5 - .25 = 2.25: down to 3; and 1.6438 > 1 - .5 - .25: not to 1.
    for _ in range(5):
        policy.observe(outcome([7], [1]))
    assert depths(policy, view([8])) == [3]
    # None accepted: 1.6438 * .8^5 = .5386 > .25, then .5386 * .8^5 = .1765: down to 1.
    for _ in range(5):
        policy.observe(outcome([3], [0]))
    assert depths(policy, view([8])) == [3]
    for _ in range(5):
        policy.observe(outcome([3], [0]))
    assert depths(policy, view([8])) == [1]


def test_sglang_average_is_over_sequences_that_drafted() -> None:
    policy = SGLangEMA()
    policy.reset(8, seed=0)
    policy.observe(outcome([3, 0, 1], [3, 0, 0]))
    assert policy.slot(3).length == pytest.approx(0.8 * 2 + 0.2 * 1.5)
    policy.observe(outcome([0, 0], [0, 0]))
    assert policy.slot(3).batches == 1


def test_sglang_newer_tiers_by_batch_size() -> None:
    policy = SGLangEMA(BY_BATCH_SIZE)
    policy.reset(8, seed=0)
    assert [depths(policy, view([8] * n))[0] for n in (1, 7, 8, 31, 32, 63, 64, 100)] == [3, 3, 3, 3, 1, 1, 0, 0]
    # 0 and 1 from 32 on. Nothing accepted: length 0 <= .5: off; at the next update 1 is tried again.
    for _ in range(15):
        policy.observe(outcome([1] * 40, [0] * 40))
    assert depths(policy, view([8] * 40))[0] == 0
    for _ in range(5):
        policy.observe(outcome([0] * 40, [0] * 40))
    assert depths(policy, view([8] * 40))[0] == 1


def test_sglang_deeper_tiers_than_the_deployment_stand_at_its_depth() -> None:
    policy = SGLangEMA({1: Tiers((1, 3, 7))}, initial_steps=7)
    policy.reset(4, seed=0)
    assert depths(policy, view([4])) == [4]
    with pytest.raises(ValueError, match="tiers"):
        SGLangEMA({}).reset(4, seed=0)


# ---------------------------------------------------------------- Hugging Face


def test_hf_heuristic_by_hand() -> None:
    policy = HFHeuristic()
    policy.reset(8, seed=0)
    for row in range(3):
        policy.add(row)
    assert depths(policy, view([8, 8, 4])) == [5, 5, 4]
    policy.observe(outcome([5, 5, 4], [5, 4, 4]))
    assert depths(policy, view([8, 8, 8])) == [7, 4, 7]  # all it was given counts as all
    policy.observe(outcome([7, 4, 0], [7, 0, 0]))
    assert depths(policy, view([8, 8, 8])) == [8, 3, 7]  # K caps; without a draft nothing changes
    for _ in range(5):
        policy.observe(outcome([8, 3, 7], [8, 0, 7]))
    assert depths(policy, view([8, 8, 8])) == [8, 1, 8]
    policy.add(1)
    assert depths(policy, view([8, 8])) == [8, 5]


def test_hf_confidence_keeps_the_draft_that_it_stops_at() -> None:
    # .9 and .5 are at least .4; .3 is not, but was drafted; .8 was not.
    confidence = ConfidenceTable(np.tile(np.array([0.9, 0.5, 0.3, 0.8]), (7, 1)))
    policy = HFConfidence(confidence)
    policy.reset(4, seed=0)
    assert depths(policy, view([4, 2, 0])) == [3, 2, 0]
    policy = HFConfidence(confidence, threshold=0.95)
    policy.reset(4, seed=0)
    assert depths(policy, view([4])) == [1]
    policy = HFConfidence(confidence, threshold=0.1, num_assistant_tokens=2)
    policy.reset(4, seed=0)
    assert depths(policy, view([4])) == [2]


def threshold(confidence: np.ndarray, right: np.ndarray) -> float:
    values = np.append(np.unique(confidence)[::-1], 0.05)  # and one that no draft had
    values = np.sort(np.append(values, 0.99))[::-1]
    counts = [[((confidence == v) & (right == hit)).sum() for v in values] for hit in (True, False)]
    return float(best_thresholds(values, np.array([counts[0]], dtype=float), np.array([counts[1]], dtype=float))[0])


def test_hf_threshold_by_hand() -> None:
    # From the most confident down, right ones made / wrong ones made: .9: 2 of 3 / 0: cost 3 * 1/3 = 1;
    # .8: 3 of 3 / 0: cost 0, the least; .6, .3, .2: 1/3, 2/3, 1.
    confidence = np.array([0.9, 0.8, 0.3, 0.9, 0.6, 0.2])
    right = np.array([True, True, False, True, False, False])
    assert threshold(confidence, right) == 0.8


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.integers(2, 40))
def test_hf_threshold_is_that_of_the_roc_curve(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = rng.integers(1, 10, count) / 10
    right = np.append(rng.random(count - 2) < confidence[2:], [True, False])
    false_rate, true_rate, thresholds = roc_curve(right, confidence)
    theirs = thresholds[np.argmin(false_rate + 3 * (1 - true_rate))]
    assert threshold(confidence, right) == theirs


def test_hf_threshold_adapts_to_each_sequence() -> None:
    confidence = ConfidenceTable(np.tile(np.array([0.9, 0.5, 0.45]), (7, 1)))
    policy = HFConfidence(confidence)
    policy.reset(3, seed=0)
    policy.add(0)
    policy.add(1)
    for step in range(1, 5):
        decision = policy.decide(view([3, 3]), NoEstimate(), None)
        decision.step = step
        # The first sequence's second draft is always wrong; the other's drafts are all right.
        policy.observe(outcome(decision.depth.tolist(), [1, int(decision.depth[1])], step))
    # Six judged: .9 right three times, .5 wrong three times: from .9 on costs nothing.
    assert policy.thresholds_.get(np.array([0, 1]))[:, 0].tolist() == [0.9, 0.4]
    assert depths(policy, view([3, 3])) == [2, 3]
    policy.add(0)
    assert depths(policy, view([3, 3])) == [3, 3]


# ---------------------------------------------------------------- told of fresh sequences


def test_the_controller_tells_a_policy_of_fresh_sequences() -> None:
    policy = HFHeuristic()
    controller = Controller(policy, AcceptanceModel(8, ("matched_length",)))
    for answered, wanted in (("first", 7), ("second", 5)):
        row = controller.add(answered)
        step = view([8])
        step.row[:] = row
        assert row == 0  # both in the same row
        decision = controller.plan(step)
        assert decision.depth.tolist() == [5]
        if answered == "first":
            told = outcome([5], [5], decision.step)
            told.ids, told.row = [answered], None
            controller.observe(told)
        assert controller.plan(step).depth.tolist() == [wanted]
        controller.remove(answered)


def test_a_policy_that_fails_at_a_fresh_sequence_is_counted_and_no_more() -> None:
    class Forgetful(HFHeuristic):
        def add(self, row: int) -> None:
            raise KeyError(row)

    controller = Controller(Forgetful(), AcceptanceModel(8, ("matched_length",)))
    controller.add("a")
    assert controller.fallback.faults == {"add": 1}
    assert controller.plan(view([8])).depth.tolist() == [5]
