"""Logs of other engines: what is known, what is derived, what is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import trace_of

from adaptive_spec.replay.foreign_rows import read_foreign_rows
from adaptive_spec.replay.trace import TraceError


def write(path, text):
    path.write_text(text)
    return path


def test_unvisited_positions_take_the_last_run_less_the_distance(tmp_path):
    path = write(
        tmp_path / "log.csv",
        "sequence,position,offered,accepted,category,matched_length\na,1,4,2,chat,3\na,4,4,0,chat,1\na,5,4,4,chat,9\n"
        "b,2,4,1,code,2\n",
    )
    trace = read_foreign_rows(path, prompt_tokens=7)
    a, b = trace
    # visited 1 (run 2), so 2 and 3 have 1 and 0; 4: 0; 5: all of 4, then 3, 2, 1, 0
    assert a.run.tolist() == [2, 1, 0, 0, 4, 3, 2, 1, 0]
    assert a.output_tokens == 10
    assert a.offered.tolist() == [4] * 9
    assert a.evidence[:, 0].tolist() == [3, 3, 3, 1, 9, 9, 9, 9, 9]
    assert trace.derived[:9].tolist() == [False, True, True, False, True, True, True, True, True]
    # before its first row nothing is on offer
    assert b.run.tolist() == [0, 1, 0]
    assert b.offered.tolist() == [0, 4, 4]
    assert b.category == "code"
    assert b.prompt_tokens == 7
    assert "derived" in trace.describe()
    assert "distance" in trace.info.notes[0]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_the_policy_that_was_logged_is_replayed_exactly(seed, tmp_path_factory):
    """A log taken at constant depth K visits what depth K visits: there the trace says what the log said."""
    rng = np.random.default_rng(seed)
    depth = 4
    truth = trace_of([rng.integers(0, depth + 1, int(rng.integers(2, 40))).tolist() for _ in range(3)], max_depth=depth)
    rows = []
    for i, sequence in enumerate(truth):
        position = 1
        while position < sequence.output_tokens:
            accepted = int(min(sequence.run[position - 1], sequence.output_tokens - 1 - position))
            rows.append((f"s{i}", position, depth, accepted))
            position += accepted + 1
    path = tmp_path_factory.mktemp("logs") / "log.parquet"
    order = rng.permutation(len(rows))  # rows may come in any order
    columns = list(zip(*[rows[i] for i in order], strict=True))
    pq.write_table(pa.table(dict(zip(("sequence", "position", "offered", "accepted"), columns, strict=True))), path)
    trace = read_foreign_rows(path)
    for sequence, original in zip(trace, truth, strict=True):
        visited = [row for row in rows if row[0] == f"s{original.text}"]
        assert [int(sequence.run[p - 1]) for _, p, _, _ in visited] == [a for _, _, _, a in visited]
        assert sequence.output_tokens == original.output_tokens
    known = ~trace.derived
    assert known.sum() == sum(1 for _, _, offered, accepted in rows if accepted < offered)


def test_a_log_of_every_position_has_nothing_derived(tmp_path):
    lines = ["sequence,position,offered,accepted"] + [f"1,{p},8,{p % 3}" for p in range(1, 20)]
    trace = read_foreign_rows(write(tmp_path / "dense.csv", "\n".join(lines)))
    assert trace.run[:19].tolist() == [p % 3 for p in range(1, 20)]
    assert not trace.derived[:19].any()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sequence,position,offered\n1,1,1\n", "column 'accepted' is missing"),
        ("sequence,position,offered,accepted\n", "no rows"),
        ("sequence,position,offered,accepted\n1,0,4,2\n", r"row 0 \(position 0.*position must be 1 or more"),
        ("sequence,position,offered,accepted\n1,1,4,1\n1,3,2,3\n", r"row 1 .*accepted must not be over offered"),
        ("sequence,position,offered,accepted\n1,1,4,1\n1,1,4,1\n", "has a row already"),
        ("sequence,position,offered,accepted\n1,1,4,x\n", "'accepted' must be of numbers"),
        ("sequence,position,offered,accepted\n1,1,4,1.5\n", "a whole number"),
        ("sequence,position,offered,accepted\n1,1,4,\n", "missing|numbers"),
        ("sequence,position,offered,accepted\n1,1,300,1\n", "at most 255"),
        ("", "no good CSV file"),
    ],
)
def test_bad_rows_are_refused_in_one_line(text, told, tmp_path):
    with pytest.raises(TraceError, match=told) as caught:
        read_foreign_rows(write(tmp_path / "log.csv", text))
    assert str(caught.value).startswith(str(tmp_path / "log.csv"))
    assert "\n" not in str(caught.value)


def test_a_parquet_log_that_is_none_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no good Parquet file"):
        read_foreign_rows(write(tmp_path / "log.parquet", "nothing"))
    with pytest.raises(FileNotFoundError):
        read_foreign_rows(tmp_path / "missing.csv")
