"""Measured profiles: staircases, dips and cliffs as measured, timing of real passes, files."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cost import DraftCost, Profile
from adaptive_spec.step import StepView

POINTS = ([1, 4, 8, 16], [1.0, 3.0, 2.0, 4.0])


def at(profile, *positions):
    return profile.verify(np.array(positions), 0.0, 1).tolist()


def test_a_staircase_pads_to_the_next_measured_point_and_keeps_dips():
    assert at(Profile(*POINTS), 1, 2, 4, 5, 8, 9, 16) == [1.0, 3.0, 3.0, 2.0, 2.0, 4.0, 4.0]


def test_linear_goes_straight():
    assert at(Profile(*POINTS, interpolation="linear"), 1, 2, 4, 6, 12) == pytest.approx([1, 5 / 3, 3, 2.5, 3])


def test_the_share_of_a_prefill_is_what_it_adds_at_depth_0():
    empty = np.zeros(4, dtype=np.int64)
    view = StepView(empty, empty, empty, np.zeros((4, 0)), prefill_tokens=12, carried_drafts=4)
    linear, staircase = Profile(*POINTS, interpolation="linear"), Profile([1, 8, 20], [1.0, 2.0, 1.0])
    assert linear.prefill_share(view) == pytest.approx((5.0 - 2.0) / 5.0)  # from 8 to 20 positions
    assert linear.prefill_share(replace(view, prefill_tokens=0)) == 0.0
    assert staircase.prefill_share(view) == 0.0  # a dip: prompts cost nothing there


def test_below_the_first_point_it_is_level():
    profile = Profile([4, 8], [1.0, 2.0], interpolation="linear")
    assert at(profile, 1, 4) == [1.0, 1.0]


def test_above_the_last_point_the_last_line_goes_on():
    assert at(Profile(*POINTS), 17, 24) == pytest.approx([4.25, 6.0])
    assert at(Profile([1, 4], [2.0, 1.0]), 5, 4000) == [1.0, 1.0]  # a falling line would reach 0
    assert at(Profile([3], [2.0]), 1, 3, 99) == [2.0, 2.0, 2.0]


def test_a_staircase_up_to_the_largest_graph_and_lines_above():
    profile = Profile(*POINTS, staircase_until=8)
    assert at(profile, 7, 8, 9, 12, 16, 24) == pytest.approx([2, 2, 2.25, 3, 4, 6])


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    data=st.data(),
    interpolation=st.sampled_from(["staircase", "linear"]),
)
def test_measured_points_are_kept_and_every_cost_is_positive(steps, data, interpolation):
    positions = np.cumsum(steps)
    seconds = data.draw(st.lists(st.floats(1e-6, 10), min_size=len(steps), max_size=len(steps)), label="seconds")
    profile = Profile(positions, seconds, interpolation)
    np.testing.assert_allclose(profile.verify(positions, 0.0, 1), seconds, rtol=1e-12)
    span = profile.verify_range(1, int(positions[-1]) * 3, 0.0, 1)
    assert (span > 0).all()
    assert np.isfinite(span).all()
    np.testing.assert_array_equal(span, profile.verify(np.arange(1, len(span) + 1), 0.0, 1))


def test_context_adds_its_seconds():
    profile = Profile(*POINTS, context_seconds_per_token=0.5)
    assert profile.verify(np.array([4]), 10.0, 2).tolist() == [8.0]
    assert profile.verify_range(4, 2, 10.0, 2).tolist() == [8.0, 7.0]


def test_attention_adds_its_seconds_for_every_pair_of_a_position_and_a_token():
    profile = Profile(*POINTS, context_seconds_per_token=0.5, attention_seconds_per_pair=0.25)
    bare = Profile(*POINTS)
    # Two sequences of five tokens each: every position attends to five.
    assert profile.verify(np.array([4]), 10.0, 2).item() == bare.verify(np.array([4]), 0.0, 2).item() + 5.0 + 4 * 1.25
    positions = np.arange(3, 2000)
    np.testing.assert_allclose(profile.verify_range(3, 1997, 10.0, 2), profile.verify(positions, 10.0, 2), rtol=1e-12)


def test_dict_round_trip_through_json():
    profile = Profile(
        *POINTS,
        staircase_until=8,
        context_seconds_per_token=1e-3,
        attention_seconds_per_pair=1e-4,
        draft_cost=DraftCost.sequential(0.25, idle=0.5),
    )
    again = Profile.from_dict(json.loads(json.dumps(profile.to_dict())))
    positions = np.arange(1, 40)
    np.testing.assert_array_equal(profile.verify(positions, 7.0, 1), again.verify(positions, 7.0, 1))
    np.testing.assert_array_equal(profile.draft(np.arange(4), 2), again.draft(np.arange(4), 2))


class FakeMachine:
    """A clock that passes advance; pass n takes `cost(n)`, and the first of each a compilation on top."""

    def __init__(self, cost):
        self.now, self.cost, self.runs = 0.0, cost, []

    def run(self, positions):
        self.now += self.cost(positions) + (0 if positions in self.runs else 100.0)
        self.runs.append(positions)

    def clock(self):
        return self.now


def test_measure_finds_the_median_of_real_passes_without_their_warm_up():
    rng = np.random.default_rng(3)
    machine = FakeMachine(lambda n: (2.0 if n <= 8 else 3.0) * (50 if rng.random() < 0.1 else 1))
    profile = Profile.measure(machine.run, [1, 8, 16], repeats=9, clock=machine.clock)
    assert at(profile, 1, 8, 9) == pytest.approx([2, 2, 3])
    assert machine.runs == [1, 8, 16, 16, 8, 1] * 5


def test_measure_is_not_tilted_by_a_machine_that_slows_down():
    machine = FakeMachine(lambda n: 1.0 + 0.01 * len(machine.runs))
    seconds = Profile.measure(machine.run, [1, 2, 4, 8], repeats=10, clock=machine.clock).seconds
    assert seconds.max() - seconds.min() < 0.005


def test_measure_refuses_a_clock_that_stands_still():
    with pytest.raises(ValueError, match=r"a pass over 1 positions took 0.0 s .* tick finer"):
        Profile.measure(lambda n: None, [1, 2], clock=lambda: 1.0)


def test_measure_really_times():
    profile = Profile.measure(lambda n: sum(range(n * 200)), [1, 500], repeats=5)
    assert profile.seconds[1] > 5 * profile.seconds[0] > 0


@pytest.fixture
def curve_file(tmp_path):
    def write(content):
        path = tmp_path / "curve.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def test_a_curve_file(curve_file):
    path = curve_file(
        {
            "verify_ms_by_tokens": {"8": 3.0, "1": 2.0, "1025": 20.0, "1537": 100.0},
            "draft_ms_by_requests": {"1": 1.0, "3": 2.0},
            "source": "a figure",
        }
    )
    profile = Profile.from_file(path, staircase_until=1025)
    assert at(profile, 1, 2, 9, 1025, 1281) == pytest.approx([2e-3, 3e-3, 20e-3, 20e-3, 60e-3])
    assert profile.draft(np.array([0, 1, 7]), 2).tolist() == pytest.approx([0, 1.5e-3, 1.5e-3])


def test_a_curve_file_of_a_sequential_drafter(curve_file):
    path = curve_file(
        {
            "verify_ms_by_tokens": {"1": 2.0, "64": 4.0},
            "draft_ms_per_depth_by_requests": {"1": 1.0, "5": 3.0},
            "draft_idle_ms_by_requests": {"1": 0.5, "5": 0.5},
            "draft_ms_by_requests": {"1": 0.25, "5": 0.25},
            "draft_ms_per_lag_position": 0.125,
        }
    )
    profile = Profile.from_file(path)
    assert profile.draft(np.array([0, 1, 4]), 3).tolist() == pytest.approx([0.5e-3, 2.25e-3, 8.25e-3])
    assert profile.draft(np.array([0, 1]), 1, lag=8).tolist() == pytest.approx([0.5e-3, 2.25e-3])
    assert Profile.from_dict(profile.to_dict()).draft_cost == profile.draft_cost


def test_another_draft_cost_leaves_the_rest_as_it_was():
    profile = Profile([1, 8, 32], [1.0, 2.0, 1.5], staircase_until=8, context_seconds_per_token=1e-3)
    other = profile.with_draft_cost(DraftCost.sequential(0.5))
    assert other.draft(np.array([0, 2]), 1).tolist() == [0.0, 1.0]
    assert profile.draft(np.array([0, 2]), 1).tolist() == [0.0, 0.0]
    assert other.with_draft_cost(profile.draft_cost).to_dict() == profile.to_dict()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ({}, "the key 'verify_ms_by_tokens'"),
        ({"verify_ms_by_tokens": [1, 2]}, "'verify_ms_by_tokens' must be an object"),
        ({"verify_ms_by_tokens": {"one": 2}}, "key 'verify_ms_by_tokens'.*'one'"),
        ({"verify_ms_by_tokens": {"1": -2}}, r"-0.002 seconds at 1 positions"),
        ({"verify_ms_by_tokens": {"1": 2}, "more": 1}, "key 'more' is unknown"),
        ({"verify_ms_by_tokens": {"1": 2}, "draft_ms_by_requests": {"0": 2}}, "at least 1"),
        ({"verify_ms_by_tokens": {"1": 2}, "draft_ms_per_lag_position": "x"}, "draft_ms_per_lag_position.*'x'"),
        ({"verify_ms_by_tokens": {"1": 2}, "draft_ms_per_lag_position": -1}, "lag_position is -0.001"),
        (
            {
                "verify_ms_by_tokens": {"1": 2},
                "draft_ms_by_requests": {"1": 2},
                "draft_idle_ms_by_requests": {"2": 2},
            },
            "'draft_idle_ms_by_requests' must have the numbers of requests",
        ),
    ],
)
def test_a_bad_curve_file_names_file_and_fault(curve_file, content, message):
    path = curve_file(content)
    with pytest.raises(ValueError, match=message) as raised:
        Profile.from_file(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [1.0]), "as many seconds as positions"),
        (([], []), "at least one"),
        (([2, 1], [1.0, 1.0]), "1 follows 2"),
        (([1, 1], [1.0, 1.0]), "duplicate"),
        (([0, 1], [1.0, 1.0]), "from 1 up"),
        (([1.5, 2], [1.0, 1.0]), "whole numbers"),
        (([1, 2], [1.0, float("nan")]), "nan seconds at 2 positions"),
        (([1, 2], [-1.0, 1.0]), "-1.0 seconds at 1 positions"),
        (([1, 2], [1.0, 1.0], "cubic"), "'staircase' or 'linear'"),
        (([1, 4], [1.0, 1.0], "staircase", 3), "the nearest point is 4"),
        (([1, 4], [1.0, 1.0], "linear", 4), "only for interpolation 'staircase'"),
        (([1], [1.0], "staircase", None, -1.0), "context_seconds_per_token is -1.0"),
        (([1], [1.0], "staircase", None, 0.0, -1.0), "attention_seconds_per_pair is -1.0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Profile(*arguments)


def test_a_bad_dict():
    with pytest.raises(ValueError, match="no 'second'; it has positions"):
        Profile.from_dict({"positions": [1], "second": [1.0]})
    with pytest.raises(ValueError, match="the profile has no 'seconds'"):
        Profile.from_dict({"positions": [1]})
