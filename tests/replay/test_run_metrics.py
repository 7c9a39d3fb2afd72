"""What runs come to: quantiles, load buckets, the split of a gain."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cost import DraftCost, Profile
from adaptive_spec.policies.batch_threshold import BatchThreshold
from adaptive_spec.policies.fixed import Fixed
from adaptive_spec.replay import (
    BareController,
    ClosedConcurrency,
    Machine,
    SwitchingConcurrency,
    SyntheticAcceptance,
    simulate,
)
from adaptive_spec.replay.gain_split import best_fixed, load_table, split_gain
from adaptive_spec.replay.log_histogram import ERROR, LogHistogram
from adaptive_spec.replay.metrics import LoadBucket, RunMetrics, load_bucket
from adaptive_spec.replay.synthetic import DSPARK_GLM_5_2


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.floats(1e-6, 1e5), min_size=1, max_size=200),
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
)
def test_quantiles_are_within_the_stated_error(values, shares):
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    for share, value in zip(shares, histogram.quantiles(shares), strict=True):
        exact = ordered[math.floor(share * (len(values) - 1))]
        assert abs(value / exact - 1) <= ERROR * 1.001
    assert histogram.mean == pytest.approx(np.mean(values))


def test_a_histogram_of_nothing_and_of_nonsense():
    histogram = LogHistogram()
    assert math.isnan(histogram.mean)
    assert np.isnan(histogram.quantiles([0.5])).all()
    with pytest.raises(ValueError, match="0 or more"):
        histogram.add(-1.0)
    histogram.add(0.0)
    assert histogram.quantiles([0.5])[0] < 1e-6


def test_load_buckets_cover_every_load_once():
    end = 0
    for load in range(1, 2000):
        number, first, last = load_bucket(load)
        assert first <= load <= last
        if load > end:
            assert first == end + 1
            end = last
        assert load_bucket(first)[0] == load_bucket(last)[0] == number
    assert [load_bucket(n)[1:] for n in (1, 2, 3, 4, 6, 8)] == [(1, 1), (2, 2), (3, 3), (4, 5), (6, 7), (8, 11)]


def metrics(goodput, seconds=10.0, saved=0.0, loads=()):
    made = RunMetrics(tokens=round(goodput * seconds), seconds=seconds, off_saving_seconds=saved)
    for load, speed in loads:
        number, first, last = load_bucket(load)
        made.by_load[number] = LoadBucket(first, last, tokens=round(speed * 100), seconds=100.0)
    return made


def test_steps_with_next_to_no_prompt_judge_a_depth_where_there_are_enough_of_them():
    def run(pure_steps, pure_speed, speed=10):
        made = metrics(1, loads=[(64, speed)])
        (bucket,) = made.by_load.values()
        bucket.steps, bucket.pure_steps = 100, pure_steps
        bucket.pure_seconds, bucket.pure_tokens = float(pure_steps), round(pure_speed * pure_steps)
        return [made]

    # Depth 2 is behind but for its pure steps: nine are too few to say so, ten are not; each depth needs them.
    assert load_table({0: run(90, 10), 2: run(9, 20, speed=9)}) == [(1, None, 0)]
    assert load_table({0: run(90, 10), 2: run(10, 20, speed=9)}) == [(1, None, 2)]
    assert load_table({0: run(1, 10), 2: run(90, 20, speed=9)}) == [(1, None, 0)]


def test_a_prompt_position_in_a_large_batch_leaves_a_step_pure():
    """Prompts that come computed from elsewhere leave one position for each new request."""
    trace = SyntheticAcceptance(DSPARK_GLM_5_2[:8], "test").trace(40, 20)
    machine = Machine("m", Profile([1, 512], [0.01, 0.02]), max_num_seqs=128, prefill_elsewhere=True)
    reports = []
    run = simulate(
        trace, BareController(Fixed(1), 8), ClosedConcurrency(64), machine, steps=100, observer=reports.append
    )
    counted = [report for report in reports[20:] if report.sequences]
    pure = [report for report in counted if report.prefill_tokens <= 0.1 * len(report.sequences)]
    assert sum(bucket.pure_steps for bucket in run.metrics.by_load.values()) == len(pure)
    assert len(pure) > 2 * sum(report.prefill_tokens == 0 for report in counted)


def test_the_best_depth_at_each_load():
    fixed = {
        0: metrics(100, loads=[(1, 10), (4, 40), (32, 90)]),
        2: metrics(110, loads=[(1, 15), (4, 60), (32, 80)]),
        4: metrics(105, loads=[(1, 20), (4, 50)]),
    }
    assert best_fixed(fixed) == 2
    table = load_table({depth: [run] for depth, run in fixed.items()})
    assert table == [(1, 3, 4), (4, 31, 2), (32, None, 0)]
    BatchThreshold(table).reset(4, 0)  # takes it
    assert load_table({3: [metrics(1, loads=[(8, 5)])]}) == [(1, None, 3)]
    # Several runs of a depth are put together.
    slow, fast = metrics(1, loads=[(8, 5)]), metrics(1, loads=[(8, 20)])
    assert load_table({1: [slow, fast], 2: [metrics(1, loads=[(8, 12)])]}) == [(1, None, 1)]
    with pytest.raises(ValueError, match="decoded anything"):
        load_table({1: [metrics(1)]})


def test_the_parts_of_a_gain_add_up():
    fixed = {0: metrics(100, saved=1.0), 2: metrics(110)}
    split = split_gain(metrics(140, saved=2.0), fixed, metrics(120, saved=0.5))
    assert split.best_depth == 2
    assert split.total == pytest.approx(math.log(140 / 110))
    assert split.load == pytest.approx(math.log(1200 / 10.5 / 110))
    assert split.requests == pytest.approx(math.log((1400 / 12) / (1200 / 10.5)))
    assert split.not_drafting == pytest.approx(math.log(12 / 10))
    # A table that lost against the best fixed depth gives load no share; a free drafter, not drafting none.
    split = split_gain(metrics(120), fixed, metrics(90))
    assert (split.load, split.not_drafting) == (0.0, 0.0)
    assert split.requests == pytest.approx(math.log(120 / 110))
    # Against a base that never drafts, nothing is gained by not drafting.
    never = split_gain(metrics(120), {0: metrics(110, saved=1.0)}, metrics(110, saved=1.0))
    assert never.not_drafting < 0
    assert never.total == pytest.approx(math.log(120 / 110))


def test_a_load_table_gains_from_load_alone():
    """A uniform policy by load, split against fixed depths: all of its gain is load's."""
    trace = SyntheticAcceptance(DSPARK_GLM_5_2[:8], "test", heterogeneity=0.0, wander=0.0).trace(40, 60)
    cost = Profile([1, 16, 32, 512], [0.010, 0.011, 0.02, 0.32], "linear", draft_cost=DraftCost.sequential(0.0005))
    machine = Machine("knee", cost, max_num_seqs=128, prefill_elsewhere=True)
    arrivals = SwitchingConcurrency((2, 64), 5.0)

    def run(policy, arrivals=arrivals, **end):
        return simulate(
            trace, BareController(policy, 8), arrivals, machine, seed=1, **(end or {"duration": 30.0})
        ).metrics

    loads = [ClosedConcurrency(n) for n in (1, 4, 16, 64)]
    table = load_table({depth: [run(Fixed(depth), load, steps=150) for load in loads] for depth in (0, 2, 4)})
    fixed = {depth: run(Fixed(depth)) for depth in (0, 2, 4)}
    assert len(table) > 1
    assert table[0][2] > table[-1][2]  # deep while few decode
    by_load = run(BatchThreshold(table))
    split = split_gain(by_load, fixed, by_load)
    assert by_load.goodput > 1.02 * fixed[split.best_depth].goodput
    assert split.requests == 0.0
    assert split.load > 0
    assert split.total == pytest.approx(math.log(by_load.goodput / fixed[split.best_depth].goodput))
    assert "from load" in str(split)
