"""The counts of steps, against a plain oracle that goes sequence by sequence."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.step import NAN, Decision
from adaptive_spec.step_counts import DECIDED_BY, DECISION_SECONDS, KINDS_KEPT, StepCounts


@st.composite
def steps(draw):
    """K, and some steps: decision, seconds, who was adapted, and what came of it."""
    max_depth = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made = []
    for step in range(draw(st.integers(1, 5))):
        b = int(rng.integers(0, 7))
        depth = rng.integers(0, max_depth + 1, b) if rng.random() < 0.8 else np.zeros(b, dtype=np.int64)
        drafted = rng.integers(0, max_depth + 1, b)
        verified = np.minimum(drafted, rng.integers(0, max_depth + 1, b))
        accepted = np.minimum(verified, rng.integers(0, max_depth + 1, b))
        explored = rng.random(b) < 0.3 if rng.random() < 0.5 else np.zeros(0, dtype=bool)
        pinned = int(rng.integers(0, b - int(explored.sum()) + 1))
        decided_by = rng.choice(["policy", "guard", "limits", "a stranger's"])
        decision = Decision(
            step, np.arange(b), depth, max_depth, decided_by=str(decided_by), explored=explored, pinned=pinned
        )
        seconds = NAN if rng.random() < 0.2 else float(rng.choice([1e-5, 1.1e-5, 3e-4, 0.2, 0.0]))
        adapted = None if rng.random() < 0.4 else rng.random(b) < rng.choice([0.0, 0.5, 1.0])
        made.append((decision, seconds, adapted, drafted, verified, accepted))
    return max_depth, made


@settings(deadline=None, max_examples=150)
@given(steps())
def test_counts_equal_those_of_a_plain_loop(case) -> None:
    max_depth, made = case
    counts = StepCounts(max_depth)
    depth, shadow, outcomes = Counter(), Counter(), Counter()
    by_step, by_sequence, seconds_up_to = Counter(), Counter(), Counter()
    verified_at, accepted_at, reached_at = Counter(), Counter(), Counter()
    off = explored_steps = drafts = wasted = would_verify = would_accept = 0
    total = 0.0
    for decision, seconds, adapted, drafted, verified, accepted in made:
        counts.count_decision(decision, seconds, adapted)
        counts.count_outcome(drafted, verified, accepted)
        if adapted is not None:
            counts.count_shadow_outcome(decision.depth, adapted, verified, accepted)
            for d, given_, v, a in zip(decision.depth, adapted, verified, accepted, strict=True):
                if not given_:  # draft by draft: judged anyway, and kept by the decided depth
                    would_verify += sum(k < d for k in range(v))
                    would_accept += sum(k < d for k in range(a))
        name = decision.decided_by if decision.decided_by in DECIDED_BY else "other"
        by_step[name] += 1
        off += not any(decision.depth)
        explored_steps += any(decision.explored)
        explored = sum(map(bool, decision.explored))
        by_sequence["explore"] += explored
        by_sequence["override"] += decision.pinned
        by_sequence[name] += len(decision.depth) - explored - decision.pinned
        for i, d in enumerate(decision.depth):
            (depth if adapted is None or adapted[i] else shadow)[int(d)] += 1
        for d, v, a in zip(drafted, verified, accepted, strict=True):
            outcomes[int(v), int(a)] += 1
            drafts += int(d)
            wasted += int(d - a)
            for k in range(v):
                verified_at[k] += 1
                accepted_at[k] += a > k
                reached_at[k] += a >= k
        if seconds == seconds:
            seconds_up_to[next((bound for bound in DECISION_SECONDS if seconds <= bound), None)] += 1
            total += seconds
    assert counts.depth.tolist() == [depth[k] for k in range(max_depth + 1)]
    assert counts.shadow_depth.tolist() == [shadow[k] for k in range(max_depth + 1)]
    assert {cell: n for cell, n in np.ndenumerate(counts.outcomes) if n} == dict(outcomes)
    assert (counts.drafted, counts.wasted) == (drafts, wasted)
    assert (counts.shadow_verified, counts.shadow_accepted) == (would_verify, would_accept)
    assert (counts.off_steps, counts.explored_steps) == (off, explored_steps)
    assert +counts.steps == +by_step
    assert +counts.decided == +by_sequence
    assert counts.seconds.tolist() == [seconds_up_to[bound] for bound in (*DECISION_SECONDS, None)]
    assert counts.total_seconds == pytest.approx(total)
    for found, expected in (
        (counts.verified_per_position(), verified_at),
        (counts.accepted_per_position(), accepted_at),
        (counts.reached_per_position(), reached_at),
    ):
        assert found.tolist() == [expected[k] for k in range(max_depth)]


def test_counts_out_of_range_are_refused_and_count_nothing() -> None:
    counts = StepCounts(3)
    ok = np.array([1, 3])
    with pytest.raises(ValueError, match="depth 4 is over max_depth 3"):
        counts.count_decision(Decision(1, np.arange(2), np.array([1, 4]), 4))
    with pytest.raises(ValueError, match="depth -1 is negative"):
        counts.count_decision(Decision(1, np.arange(2), np.array([1, -1]), 4))
    for verified, accepted in (([1, 5], [0, 0]), ([1, 2], [0, 3]), ([1, 2], [-1, 0])):
        with pytest.raises(ValueError, match=f"up to {max(verified)} drafts verified .* max_depth 3"):
            counts.count_outcome(ok, np.array(verified), np.array(accepted))
    assert counts.depth.sum() == counts.outcomes.sum() == counts.drafted == 0
    assert not counts.steps
    counts.count_outcome(ok, ok, ok)
    assert counts.outcomes[3, 3] == 1


def test_kinds_of_faults_are_bounded() -> None:
    counts = StepCounts(1)
    for number in range(3 * KINDS_KEPT):
        counts.count_fault(f"fault {number}")
        counts.count_fault("fault 0")
    assert len(counts.faults) == KINDS_KEPT
    assert sum(counts.faults.values()) == 6 * KINDS_KEPT
    assert counts.faults["fault 0"] == 1 + 3 * KINDS_KEPT


def test_what_is_read_is_a_copy() -> None:
    counts = StepCounts(2)
    before = counts.outcomes
    counts.count_outcome(np.array([2]), np.array([2]), np.array([1]))
    assert before.sum() == 0
