"""Trace files: what comes back, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import random_trace, trace_of

from adaptive_spec.evidence import EVIDENCE
from adaptive_spec.replay.trace import Trace, TraceError
from adaptive_spec.replay.trace_file import KEY, smallest


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_a_trace_comes_back_as_it_was(seed, tmp_path_factory):
    trace = random_trace(seed)
    if seed % 3 == 0:
        trace = replace(trace, derived=np.arange(trace.positions) % 2 == 0)
    path = tmp_path_factory.mktemp("traces") / "trace.parquet"
    trace.save(path)
    back = Trace.load(path)
    assert back.info == trace.info
    for name in (
        "start",
        "text",
        "category",
        "task",
        "prompt_tokens",
        "max_tokens",
        "stopped",
        "seed",
        "run",
        "offered",
    ):
        assert np.array_equal(getattr(back, name), getattr(trace, name)), name
    assert back.evidence_names == trace.evidence_names
    for name in trace.evidence:
        assert np.array_equal(back.evidence[name], trace.evidence[name]), name
    assert (back.derived is None) == (trace.derived is None)
    if trace.derived is not None:
        assert np.array_equal(back.derived, trace.derived)


def test_evidence_falls_into_the_same_bins_after_a_file():
    """Values at the very edges: a float32 of 0.7 lies on the other side of the edge 0.7."""
    edges = np.array(EVIDENCE["agreement"].edges)
    values = np.concatenate((edges, np.nextafter(edges, 0), np.nextafter(edges, 1)))
    assert np.array_equal(smallest(values), values)
    assert smallest(np.array([0.0, 255.0])).dtype == np.uint8
    assert smallest(np.array([0.0, 256.0])).dtype == np.uint16
    assert smallest(np.array([0.5, 0.25])).dtype == np.float32
    assert smallest(np.array([-1.0])).dtype == np.float32
    assert np.array_equal(smallest(np.array([np.nan, 0.1])), [np.nan, 0.1], equal_nan=True)


def test_a_long_trace_takes_little_room(tmp_path):
    rng = np.random.default_rng(0)
    runs = [np.minimum(rng.geometric(0.5, 127) - 1, 4).tolist() for _ in range(120)]
    trace = trace_of(runs)
    trace = replace(trace, evidence={"matched_length": rng.geometric(0.3, trace.positions).astype(float)})
    trace.save(tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 2 * trace.positions


def test_a_newer_schema_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    trace_of([[1, 2]]).save(path)
    table = pq.read_table(path)
    meta = json.loads(table.schema.metadata[KEY])
    pq.write_table(table.replace_schema_metadata({KEY: json.dumps({**meta, "schema": 2}).encode()}), path)
    with pytest.raises(TraceError, match=r"t\.parquet: trace schema 2 is newer than 1.*upgrade"):
        Trace.load(path)


def test_a_column_of_a_later_version_is_ignored_and_a_missing_one_named(tmp_path):
    path = tmp_path / "t.parquet"
    trace_of([[1, 2]]).save(path)
    table = pq.read_table(path)
    pq.write_table(table.append_column("more", pa.array([1])), path)
    assert Trace.load(path).run.tolist() == [1, 2]
    pq.write_table(table.drop_columns(["offered"]), path)
    with pytest.raises(TraceError, match=r"t\.parquet: column 'offered' is missing.*adaptive-spec record"):
        Trace.load(path)
    pq.write_table(table.drop_columns(["evidence.agreement"]), path)
    with pytest.raises(TraceError, match=r"column 'evidence\.agreement' is missing"):
        Trace.load(path)


def test_damaged_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "t.parquet"
    trace_of([[1, 2, 3, 0, 0]] * 40).save(path)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"text", whole[:-4] + b"XXXX"):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match=r"t\.parquet: damaged, or no Parquet file") as caught:
            Trace.load(path)
        assert "\n" not in str(caught.value)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(TraceError, match="a Parquet file, but no trace"):
        Trace.load(path)
    with pytest.raises(FileNotFoundError, match=r"nothing\.parquet"):
        Trace.load(tmp_path / "nothing.parquet")


def test_flipped_bytes_never_pass_for_another_trace(tmp_path):
    """Bytes that are damaged anywhere give an error or the same runs, not other ones, nor another kind of crash."""
    path = tmp_path / "t.parquet"
    trace = trace_of([[1, 2, 3, 0, 0]] * 10)
    trace.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(2)
    refused = 0
    for _ in range(60):
        at = int(rng.integers(len(whole)))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            back = Trace.load(path)
        except TraceError:
            refused += 1
        else:
            assert np.array_equal(back.run, trace.run)
            assert np.array_equal(back.start, trace.start)
            assert np.array_equal(back.evidence["agreement"], trace.evidence["agreement"])
    assert refused > 20


def test_contradictory_contents_are_refused(tmp_path):
    path = tmp_path / "t.parquet"
    trace_of([[1, 2], [0]]).save(path)
    table = pq.read_table(path)
    place = table.schema.get_field_index("run")
    pq.write_table(table.set_column(place, "run", pa.array([[9, 2], [0]], pa.list_(pa.uint8()))), path)
    with pytest.raises(TraceError, match=r"t\.parquet: not a good trace: .*9 accepted of 4"):
        Trace.load(path)
    pq.write_table(table.set_column(place, "run", pa.array([[1, 2, 3], [0]], pa.list_(pa.uint8()))), path)
    with pytest.raises(TraceError, match="other lengths"):
        Trace.load(path)
    pq.write_table(table.set_column(place, "run", pa.array([[1, None], [0]], pa.list_(pa.uint8()))), path)
    with pytest.raises(TraceError, match="missing values"):
        Trace.load(path)


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    trace_of([[1]]).save(path)
    before = path.read_bytes()
    monkeypatch.setattr(pq, "write_table", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        trace_of([[2]]).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]
