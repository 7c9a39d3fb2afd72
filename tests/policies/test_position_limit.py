"""How many positions acceptance-bandit dares, on machines with a cliff, with stalls, with neither."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.experiments.guard_proof import TRACE
from adaptive_spec.experiments.guard_runs import Job, run_job
from adaptive_spec.experiments.guard_worlds import Played, worlds
from adaptive_spec.policies.position_limit import BLOCKS, LEAP, PositionLimit
from adaptive_spec.replay.trace import Trace
from adaptive_spec.step import IntArray

EDGE, TIMES = 25, 5.0


def seconds(positions: int, times: float = TIMES) -> float:
    return (0.03 + 0.001 * positions) * (times if positions >= EDGE else 1.0)


def asked(limit: PositionLimit, steps: int, rng: np.random.Generator, prefill: int = 0) -> IntArray:
    """Positions of steps that want now more, now less; prompts come with every tenth."""
    positions = np.zeros(steps, dtype=np.int64)
    for number in range(steps):
        prompt = prefill if number % 10 == 0 else 0
        positions[number] = 8 + prompt + min(limit.drafts(8, prompt), int(rng.integers(0, 30)))
        limit.observe(int(positions[number]), seconds(int(positions[number])), paid=True)
        if number % 4 == 3:
            limit.age()
    return positions


@pytest.mark.parametrize("prefill", [0, 1])
def test_a_cliff_is_found_and_then_kept_clear_of(prefill: int) -> None:
    limit = PositionLimit()
    positions = asked(limit, 4000, np.random.default_rng(0), prefill)
    assert np.count_nonzero(positions[:100] >= EDGE) <= 20
    assert np.count_nonzero(positions[1000:] >= EDGE) <= 6
    assert np.mean(positions[1000:] >= 20) > 0.1  # right up to it


def test_a_cliff_that_has_gone_is_left_behind() -> None:
    limit = PositionLimit()
    asked(limit, 400, np.random.default_rng(0))
    assert limit.drafts(8, 0) <= EDGE - 1 - 8
    for _ in range(BLOCKS * 32):
        for _ in range(4):
            positions = 8 + min(limit.drafts(8, 0), 200)
            limit.observe(positions, seconds(positions, times=1.0), paid=True)
        limit.age()
    assert limit.drafts(8, 0) > 100


@given(st.integers(1, 64), st.lists(st.floats(0.0, 1.0), min_size=50, max_size=50), st.integers(0, 49))
@settings(max_examples=50, deadline=None)
def test_one_stalled_step_is_no_cliff(sequences: int, wants: list[float], stalled: int) -> None:
    """Twin limits, one of which sees a step take fifty times as long: both dare the same soon after."""
    twins = PositionLimit(), PositionLimit()
    for number, want in enumerate([*wants, 1.0, 1.0]):
        for limit, stall in zip(twins, (1.0, 50.0 if number == stalled else 1.0), strict=True):
            positions = sequences + int(want * limit.drafts(sequences, 0))
            limit.observe(positions, (0.03 + 0.001 * positions) * stall, paid=True)
    calm, disturbed = (limit.drafts(sequences, 0) for limit in twins)
    assert disturbed >= calm / LEAP**2 - 2


@given(
    st.integers(1, 300),
    st.integers(0, 300),
    st.lists(st.tuples(st.integers(1, 900), st.floats(1e-4, 10.0)), max_size=20),
)
@settings(max_examples=100, deadline=None)
def test_drafts_are_never_negative(sequences: int, prefill: int, steps: list[tuple[int, float]]) -> None:
    limit = PositionLimit()
    for positions, took in steps:
        limit.observe(positions, took, paid=True)
        assert limit.drafts(sequences, prefill) >= 0


@pytest.mark.parametrize("name", ["cliff", "unseen cliff"])
def test_the_bandit_hardly_ever_falls(name: str) -> None:
    """Its prices buy now more, now less than has room, and each fall costs five steps: .94 without the limit."""
    world, texts = worlds()[name], Trace.load(TRACE)
    played = run_job(Job(world, "acceptance-bandit", seed=0, steps=4000, guard=True), texts)
    best = run_job(Job(world, 1, seed=0, steps=4000, guard=False), texts)
    assert goodput(played) >= 0.98 * goodput(best)


def goodput(played: Played) -> float:
    return float(played.tokens[1000:].sum() / played.seconds[1000:].sum())
