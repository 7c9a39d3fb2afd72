"""The peers that read a table do what their sources say, on examples worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from baseline_world import curve, depths, traced, view

from adaptive_spec.cost.draft import DraftCost
from adaptive_spec.experiments.baselines.dynamic_sd import DynamicSD, goodput_table, tune
from adaptive_spec.experiments.baselines.mlc_table import MLCTable
from adaptive_spec.experiments.baselines.trtllm_schedule import TensorRTSchedule


def test_dynamic_sd_carries_a_depth_over_gaps_and_beyond_the_end() -> None:
    policy = DynamicSD([(32, 128, 2), (1, 16, 3)])
    policy.reset(8, seed=0)
    assert [policy.lookup(b) for b in (1, 16, 17, 31, 32, 128, 129, 4096)] == [3, 3, 3, 3, 2, 2, 2, 2]
    policy.reset(2, seed=0)  # num_speculative_tokens caps the table
    assert policy.lookup(1) == 2


def test_dynamic_sd_drafts_for_the_batch_of_the_step_before() -> None:
    policy = DynamicSD([(1, 2, 4), (3, 8, 1), (9, 64, 0)])
    policy.reset(8, seed=0)
    assert depths(policy, view([8, 8])) == [4, 4]  # nothing before: its own batch
    assert depths(policy, view([8, 8, 8])) == [4, 4, 4]  # drafted when there were two
    assert depths(policy, view([8, 8])) == [1, 1]  # drafted when there were three
    assert depths(policy, view([8, 3], prefills=1)) == [4, 3]
    assert depths(policy, view([8, 8])) == [1, 1]  # two and a prefill that ended made three


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ([], "empty"),
        ([(2, 4, 1)], "must begin at 1"),
        ([(1, 4, 1), (4, 8, 0)], "must not overlap"),
        ([(1, 4, -1)], "depths from 0"),
        ([(4, 1, 1)], "sizes rise"),
    ],
)
def test_dynamic_sd_refuses_what_vllm_refuses(schedule: list[tuple[int, int, int]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DynamicSD(schedule).reset(8, seed=0)


def test_dynamic_sd_table_by_hand() -> None:
    # Acceptance .6 and .3 at positions 1 and 2: lengths 1, 1.6, 1.9. Milliseconds by batch size and depth:
    #   1: 10, 11, 14    -> .1, .1455, .1357: depth 1
    #   2: 10, 13, 17    (between 1 and 3) -> .1, .1231, .1118: depth 1
    #   3: 10, 15, 20    -> .1, .1067, .095: depth 1
    #   4: 10, 17.5, 25  (between 3 and 5) -> .1, .0914, .076: depth 0
    #   5: 10, 20, 30    -> .1, .08, .0633: depth 0;  6 and 7: as 5
    length = np.array([1.0, 1.6, 1.9])
    seconds = {1: {0: 10.0, 1: 11.0, 2: 14.0}, 3: {0: 10.0, 1: 15.0, 2: 20.0}, 5: {0: 10.0, 1: 20.0, 2: 30.0}}
    assert goodput_table(length, seconds, 7) == [(1, 3, 1), (4, 7, 0)]
    # Depth 1 not measured: 12 ms between 10 and 14, and 1.6 / 12 = .1333 < 1.9 / 14 = .1357.
    assert goodput_table(length, {1: {0: 10.0, 2: 14.0}}, 1) == [(1, 1, 2)]


def test_dynamic_sd_is_tuned_on_what_drafts_really_cost() -> None:
    # Runs 1, 0, 1, 0 with 2 drafts on offer. Depths 1 and 2 visit the first and the third: 2 tokens a step.
    # 2 sequences: 2, 4, 6 positions take 10, 16, 20 ms: .1, .125, .1 a ms: depth 1.
    # (The mean over all positions would be 1.5 tokens a step: .1, .094, .075, and depth 0.)
    # 4 sequences: 4, 8, 12 positions take 16, 36, 40 ms: .0625, .0556, .05: depth 0.
    trace = traced([[1, 0, 1, 0]], [[2, 2, 2, 2]])
    cost = curve([10, 10, 11, 16, 18, 20, 30, 36, 37, 38, 39, 40])
    assert tune(trace, cost, 2, (2,)) == [(1, 2, 1)]
    # Batch 3 lies between: 13, 26, 30 ms: .0769, .0769, .0667: the shallower of equals.
    assert tune(trace, cost, 2, (2, 4)) == [(1, 2, 1), (3, 4, 0)]
    # A drafter that takes 5 ms a token: 10, 21, 30 ms for 2 sequences: .1, .0952, .0667: depth 0.
    assert tune(trace, curve([10, 10, 11, 16, 18, 20], DraftCost.sequential(5e-3)), 2, (2,)) == [(1, 2, 0)]


def test_dynamic_sd_is_tuned_on_steps_of_sequences_with_and_without_drafts() -> None:
    # Depth 2 visits a position with 2 drafts on offer, both accepted, and one with none: 2 tokens a step. 2 sequences
    # have 2, 4 or 6 positions, with chances 1/4, 1/2, 1/4: 10, 10, 36 ms, 16.5 in the mean, or 22.5 if it is 60.
    # Depth 1 visits one with a draft and two without: 4/3 tokens. 2, 3 or 4 positions, 4/9, 4/9, 1/9: 12.67 ms.
    # Tokens a ms: .1 of depth 0, .105 of depth 1, and of depth 2 .121, or .089. (It would be .2 at 4 positions.)
    trace = traced([[2, 0, 0, 0]], [[2, 2, 0, 0]])
    assert tune(trace, curve([10, 10, 16, 10, 10, 36]), 2, (2,)) == [(1, 2, 2)]
    assert tune(trace, curve([10, 10, 16, 10, 10, 60]), 2, (2,)) == [(1, 2, 1)]


def test_trtllm_schedule_serves_up_to_each_key_and_nothing_beyond() -> None:
    policy = TensorRTSchedule({32: 1, 4: 4, 8: 2})
    policy.reset(8, seed=0)
    assert [policy.lookup(b) for b in (1, 4, 5, 8, 9, 32, 33, 4096)] == [4, 4, 2, 2, 1, 1, 0, 0]
    assert depths(policy, view([8, 3, 0])) == [4, 3, 0]
    assert depths(policy, view([8] * 4, prefills=1)) == [2] * 4


def test_trtllm_schedule_has_a_floor_for_drafters_that_must_be_kept_in_step() -> None:
    policy = TensorRTSchedule({4: 4, 8: 0}, min_draft_len=1)
    policy.reset(8, seed=0)
    assert [policy.lookup(b) for b in (4, 8, 9)] == [4, 1, 1]


@pytest.mark.parametrize("schedule", [{0: 4}, {4: -1}])
def test_trtllm_schedule_refuses_nonsense(schedule: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="schedule has"):
        TensorRTSchedule(schedule).reset(8, seed=0)


def test_mlc_table() -> None:
    policy = MLCTable()
    policy.reset(8, seed=0)
    assert [policy.lookup(b) for b in (1, 9, 10, 19, 20, 29, 30, 300)] == [4, 4, 3, 3, 2, 2, 0, 0]
    assert depths(policy, view([8, 2])) == [4, 2]


def test_mlc_table_keeps_the_whole_batch_within_the_engines_limit() -> None:
    policy = MLCTable(max_num_sequence=20)
    policy.reset(8, seed=0)
    assert policy.lookup(4) == 4  # 4 * (4 + 1) = 20
    assert policy.lookup(5) == 0  # 5 * (4 + 1) = 25
