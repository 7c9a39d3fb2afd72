"""Traces in memory: what they refuse, how they split, what a feature may know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_traces import random_trace, trace_of

from adaptive_spec.replay.trace import Trace, TraceError


def test_a_sequence_shows_its_positions():
    trace = trace_of([[1, 0, 2], [4]])
    assert len(trace) == 2
    assert trace.output_tokens.tolist() == [4, 2]
    first, second = trace
    assert first.run.tolist() == [1, 0, 2]
    assert first.context.tolist() == [5, 6, 7]
    assert second.evidence.tolist() == [[3.0, 0.25]]
    assert trace[-1].run.tolist() == [4]
    with pytest.raises(IndexError):
        trace[2]
    assert trace.survival().tolist() == [0.75, 0.5, 0.25, 0.25]
    assert "synthetic" not in trace.describe()


def test_acceptance_length_is_of_the_positions_that_a_depth_visits():
    trace = trace_of([[3, 2, 1, 0, 0], [0]])
    assert trace.acceptance_length() == 6 / 3  # positions 1 and 5 of the first are visited, and 1 of the second
    assert trace.acceptance_length(1) == 6 / 4  # positions 1, 3 and 5, and 1
    assert trace.acceptance_length(0) == 1.0


def test_what_is_known_of_earlier_runs_never_reaches_beyond_the_present():
    """A causal feature is the same whatever comes after: two texts that part at p agree on it up to p."""
    sequence = trace_of([[4, 3, 2, 4, 1, 0]])[0]
    assert sequence.seen_runs(1).tolist() == []
    assert sequence.seen_runs(3).tolist() == [2, 1]
    assert sequence.seen_runs(6).tolist() == [4, 3, 2, 2, 1]
    # L[4] = 4 says that tokens 5..8 were guessed; at p = 5 only one of them exists.
    other = trace_of([[4, 3, 2, 1, 1, 0]])[0]
    assert other.seen_runs(5).tolist() == sequence.seen_runs(5).tolist()
    with pytest.raises(ValueError, match=r"position is 8; it must lie in 1\.\.7"):
        sequence.seen_runs(8)


def test_selecting_keeps_each_sequence_whole():
    trace = random_trace(3, sequences=9)
    part = trace.select([4, 0, 8])
    for i, j in enumerate((4, 0, 8)):
        a, b = part[i], trace[j]
        assert (a.run == b.run).all()
        assert (a.evidence == b.evidence).all()
        assert (a.task, a.seed, a.prompt_tokens) == (b.task, b.seed, b.prompt_tokens)
    mask = trace.category == "code"
    assert len(trace.select(mask)) == mask.sum()
    with pytest.raises(TraceError, match="no sequence is selected"):
        trace.select([])


def test_a_split_is_by_text():
    trace = trace_of([[1]] * 12, text=[0, 1, 2, 3] * 3)
    a, b = trace.split(0.5, seed=4)
    assert not set(a.texts) & set(b.texts)
    assert len(a) == len(b) == 6
    assert (trace.split(0.5, seed=4)[0].text == a.text).all()
    with pytest.raises(TraceError, match="one text"):
        trace_of([[1], [2]], text=[7, 7]).split()


def test_concatenated_texts_stay_apart():
    a, b = trace_of([[1, 2], [3]]), trace_of([[0], [4, 4]], text=[5, 5])
    both = Trace.concat([a, b])
    assert both.text.tolist() == [0, 1, 2, 2]
    assert [s.run.tolist() for s in both] == [[1, 2], [3], [0], [4, 4]]
    assert both.derived is None
    with pytest.raises(TraceError, match="max_depth 5"):
        Trace.concat([a, trace_of([[5]], max_depth=5)])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"run": np.array([5, 0], dtype=np.uint8)}, "5 accepted of 4"),
        ({"offered": np.array([9, 4], dtype=np.uint8)}, "<= 4"),
        ({"prompt_tokens": np.array([0])}, "no prompt"),
        ({"max_tokens": np.array([2])}, "3 output tokens; its max_tokens is 2"),
        ({"seed": np.array([0, 1])}, "seed has shape"),
        ({"evidence": {"age": np.zeros(2)}}, "the position says it"),
        ({"start": np.array([0, 1])}, "start"),
    ],
)
def test_a_contradictory_trace_is_refused(change, told):
    with pytest.raises(TraceError, match=told):
        replace(trace_of([[1, 2]]), **change)
