"""How passes and moments are paired to step times, and how target and drafter are told apart."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from adaptive_spec.cost import DraftCost, Profile
from adaptive_spec.step import Decision
from adaptive_spec.vllm_plugin.awaited_prefill import AwaitedPrefill
from adaptive_spec.vllm_plugin.draft_split import DraftSplit
from adaptive_spec.vllm_plugin.scheduled_pass import DecidedDepths, ScheduledPass
from adaptive_spec.vllm_plugin.sequence_requests import SequenceRequests
from adaptive_spec.vllm_plugin.step_clock import StepClock


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def a_pass(clock: Clock, step: int, positions: int = 8, before: int = 0, asked: int = 0) -> ScheduledPass:
    row = np.zeros(1, dtype=np.int64)
    decided = DecidedDepths(Decision(step, row, row, 0), SequenceRequests(512, 8).roster([]), row)
    return ScheduledPass(
        None, clock.now, decided, positions=positions, sequences=2, drafted_before=before, drafts_asked=asked
    )


def test_by_launches_a_pass_lasts_until_the_next_one() -> None:
    """The target verifies one decision's drafts, and then the drafter works for the next."""
    clock = Clock()
    steps = StepClock(clock, by_completions=False, split=None)
    assert steps.launch() == (100.0, None)
    first = a_pass(clock, 1, before=4, asked=3)
    steps.launched(first)
    clock.now += 0.25
    assert steps.launch() == (100.25, first)
    time = steps.time(first)
    assert time is not None
    assert (time.step, time.step_seconds, time.draft_depth, time.positions) == (1, 0.25, 3, 8)


def test_a_time_tells_the_prompts_that_the_pass_really_carried() -> None:
    """They are estimated when the pass is decided on."""
    clock = Clock()
    steps = StepClock(clock, by_completions=False, split=None)
    steps.launch()
    first = a_pass(clock, 1)
    first.prefill_tokens, first.sampling_prefills = 40, 2
    steps.launched(first)
    clock.now += 0.25
    steps.launch()
    time = steps.time(first)
    assert time is not None
    assert (time.prefill_tokens, time.sampling_prefills) == (40, 2)


def test_who_was_not_admitted_is_not_awaited_until_somebody_is() -> None:
    def prompt(tokens: int, known: int = 0) -> SimpleNamespace:
        return SimpleNamespace(num_tokens=tokens, num_computed_tokens=known, is_prefill_chunk=known > 0)

    awaited, waiting = AwaitedPrefill(), [prompt(30), prompt(50)]
    assert awaited.estimate([], waiting, 60, 4) == (60, 1)
    awaited.scheduled(1)
    assert awaited.estimate([], waiting, 60, 4) == (60, 1)
    awaited.scheduled(0)  # its KV blocks are used up, say
    for _ in range(3):
        assert awaited.estimate([], waiting, 60, 4) == (0, 0)
        awaited.scheduled(0)
    assert awaited.estimate([prompt(25, 5)], waiting, 60, 4) == (20, 1)  # a prompt that was begun goes on
    awaited.scheduled(1)
    assert awaited.estimate([], waiting, 60, 4) == (60, 1)
    awaited.scheduled(1)
    for budget, slots in ((0, 4), (60, 0)):  # nobody could have been admitted, so it says nothing
        assert awaited.estimate([], waiting, budget, slots) == (0, 0)
        awaited.scheduled(0)
    awaited.none_waits()
    awaited.scheduled(0)
    assert awaited.estimate([], waiting, 60, 4) == (60, 1)


def test_by_completions_a_pass_lasts_from_its_predecessors_completion() -> None:
    """The interval holds the drafting for the pass itself."""
    clock = Clock()
    steps = StepClock(clock, by_completions=True, split=None)
    first, second = a_pass(clock, 1, before=0, asked=2), a_pass(clock, 2, before=2, asked=5)
    clock.now += 0.5
    steps.complete(first)
    assert steps.time(first) is None  # when its work began, nobody knows
    clock.now += 0.125
    steps.complete(second)
    time = steps.time(second)
    assert time is not None
    assert (time.step, time.step_seconds, time.draft_depth) == (2, 0.125, 2)
    late = a_pass(clock, 3)
    late.launched = clock.now + 0.5  # the device had run dry before it was launched
    clock.now += 1.0
    steps.complete(late)
    assert steps.time(late) is None


@pytest.mark.parametrize("by_completions", [False, True])
def test_an_interval_across_an_idle_engine_is_dropped(by_completions: bool) -> None:
    clock = Clock()
    steps = StepClock(clock, by_completions, split=None)
    first = a_pass(clock, 1)
    steps.launch()
    steps.launched(first)
    clock.now += 0.1
    steps.complete(first)
    steps.idle()
    clock.now += 3600.0
    assert steps.launch()[1] is None
    second = a_pass(clock, 2)
    steps.launched(second)
    clock.now += 0.1
    steps.complete(second)
    assert steps.time(first) is None
    if by_completions:
        assert steps.time(second) is None
    else:
        assert steps.launch()[1] is second
        assert second.seconds == pytest.approx(0.1)


@pytest.mark.parametrize(("sequences", "scale"), [(1, 1.0), (16, 1.0), (16, 40.0)])
def test_target_and_drafter_are_told_apart(sequences: int, scale: float) -> None:
    """The machine is slower than believed, its knee lies elsewhere, and its drafter costs three times as much."""
    belief = Profile([1, 4096], [0.010, 0.200], "linear", draft_cost=DraftCost(idle=(0.001,), each=(0.001,)))
    split = DraftSplit(belief)
    random = np.random.default_rng(0)
    shares = []
    depth = 4
    for step in range(1500):
        before, depth = depth, int(np.clip(depth + random.integers(-2, 3), 0, 8))
        positions = sequences + int(random.binomial(sequences * before, 0.8)) if before else sequences
        target = scale * (0.012 + 0.0004 * max(0, positions - 6))
        draft = scale * 0.003 * max(depth, 1)
        seconds = (target + draft) * random.lognormal(0.0, 0.05)
        verify, drafted = split.split(seconds, positions, depth, sequences)
        assert verify + drafted == pytest.approx(seconds)
        assert verify > 0
        if step >= 1000:
            shares.append(drafted / draft)
    assert np.median(shares) == pytest.approx(1.0, abs=0.15)


def test_one_slow_step_moves_little() -> None:
    belief = Profile([1, 64], [0.010, 0.012], draft_cost=DraftCost(idle=(0.001,), each=(0.001,)))
    split = DraftSplit(belief)
    random = np.random.default_rng(1)
    for _ in range(150):
        depth = int(random.integers(0, 6))
        split.split(0.010 + 0.001 * max(depth, 1), 8, depth, 4)
    before = split.draft_factor
    split.split(3.0, 8, 5, 4)
    assert split.draft_factor == pytest.approx(before, rel=0.3)


@pytest.mark.parametrize("noise", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("visited", [[8], [5, 9, 24]])
def test_it_goes_on_learning_for_as_long_as_a_server_runs(noise: float, visited: list[int]) -> None:
    """What is never visited is forgotten at every step, and rounding errors must not grow with it."""
    belief = Profile([1, 4096], [0.010, 0.200], "linear", draft_cost=DraftCost(idle=(0.001,), each=(0.001,)))
    split = DraftSplit(belief)
    random = np.random.default_rng(0)
    for _ in range(60_000):
        depth = int(random.integers(0, 5))
        seconds = (0.012 + 0.001 * depth) * random.lognormal(0.0, noise)
        verify, drafted = split.split(seconds, int(random.choice(visited)), depth, 4)
        assert 0.0 < verify <= seconds
        assert 0.0 <= drafted < seconds


def test_a_drafter_that_costs_nothing_has_no_share() -> None:
    split = DraftSplit(Profile([1, 64], [0.010, 0.012]))
    assert split.split(0.02, 8, 4, 2) == (0.02, 0.0)
