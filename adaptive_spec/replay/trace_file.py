"""Trace files: one Parquet row a sequence, its positions in lists.

Schema, version 1. The file's metadata has the key ``adaptive_spec.trace``: a JSON object with ``schema`` (1),
``evidence`` (names of the evidence columns, in order) and the fields of
:class:`~adaptive_spec.replay.trace.TraceInfo` (``max_depth``, ``model``, ``drafter``, ``dtype``, ``sampling``,
``command``, ``synthetic``, ``notes``). The columns, one row for each sequence:

=================  ==========================  ================================================================
column             type                        what
=================  ==========================  ================================================================
``text``           int32                       which text; recordings of one text share the number
``category``       string (dictionary)         kind of prompt
``task``           string                      template or task that the prompt was made from
``prompt_tokens``  int32                       tokens of the prompt
``max_tokens``     int32                       output tokens that the request allowed
``stopped``        bool                        whether the model ended the text
``seed``           int64                       of the text's noise in match mode; 0 if greedy
``run``            list<uint8>, n - 1 values   L[p] at output positions p = 1..n - 1
``offered``        list<uint8>                 drafts on offer there
``evidence.NAME``  list<small type>            what the drafter reported there, in the smallest type that is exact
``derived``        list<bool>, optional        whether the run was worked out from a neighbour's
=================  ==========================  ================================================================

A reader refuses a newer schema; columns that it doesn't know are ignored, so that one may be added.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from adaptive_spec.replay.trace import INFO_FIELDS, Trace, TraceError, TraceInfo
from adaptive_spec.step import IntArray

SCHEMA = 1
KEY = b"adaptive_spec.trace"
_SEQUENCE_COLUMNS = ("text", "category", "task", "prompt_tokens", "max_tokens", "stopped", "seed")
_POSITION_COLUMNS = ("run", "offered")
_SMALL_TYPES = (("uint8", 2**8 - 1), ("uint16", 2**16 - 1), ("int32", 2**31 - 1), ("float32", 0))
_REMEDY = "record it anew with: adaptive-spec record"


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace, whole or not at all: an interrupted write leaves what was there."""
    path = Path(path)
    starts = pa.array(trace.start.astype(np.int32))
    flat: dict[str, NDArray[Any]] = {"run": trace.run, "offered": trace.offered}
    flat |= {f"evidence.{name}": smallest(column) for name, column in trace.evidence.items()}
    if trace.derived is not None:
        flat["derived"] = trace.derived
    columns = {
        "text": pa.array(trace.text.astype(np.int32)),
        "category": pa.array(trace.category.tolist()).dictionary_encode(),
        "task": pa.array(trace.task.tolist(), type=pa.string()),
        "prompt_tokens": pa.array(trace.prompt_tokens.astype(np.int32)),
        "max_tokens": pa.array(trace.max_tokens.astype(np.int32)),
        "stopped": pa.array(trace.stopped),
        "seed": pa.array(trace.seed.astype(np.int64)),
        **{name: pa.ListArray.from_arrays(starts, pa.array(values)) for name, values in flat.items()},
    }
    meta = {"schema": SCHEMA, "evidence": list(trace.evidence), **asdict(trace.info)}
    table = pa.table(columns).replace_schema_metadata({KEY: json.dumps(meta, sort_keys=True).encode()})
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    os.close(handle)
    try:
        pq.write_table(table, temporary, compression="zstd", compression_level=9, write_page_checksum=True)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_trace(path: str | Path) -> Trace:
    """Read a trace.

    Raises
    ------
    TraceError
        One line that names the file, what is wrong with it and the remedy. A missing file is an OSError.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such trace; {_REMEDY}")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            meta = _meta(path, (file.schema_arrow.metadata or {}).get(KEY))
            names = file.schema_arrow.names
            evidence = [f"evidence.{name}" for name in meta["evidence"]]
            wanted = [*_SEQUENCE_COLUMNS, *_POSITION_COLUMNS, *evidence]
            if missing := [name for name in wanted if name not in names]:
                raise TraceError(f"{path}: column {missing[0]!r} is missing from this trace; {_REMEDY}")
            table = file.read([*wanted, *(["derived"] if "derived" in names else [])]).combine_chunks()
    except TraceError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        told = " ".join(str(error).split())
        raise TraceError(f"{path}: damaged, or no Parquet file ({told[:200]}); {_REMEDY}") from error
    try:
        return _trace(table, meta)
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        raise TraceError(f"{path}: not a good trace: {' '.join(str(error).split())}; {_REMEDY}") from error


def smallest(column: NDArray[Any]) -> NDArray[Any]:
    """The column in the smallest type that holds every value exactly.

    Evidence is sorted into bins at exact edges, so a rounded value could fall into another one.
    """
    if not len(column):
        return column
    finite = bool(np.isfinite(column).all())
    for dtype, most in _SMALL_TYPES:
        if most and not (finite and column.min() >= 0 and column.max() <= most):
            continue
        small = column.astype(dtype)
        if np.array_equal(small.astype(np.float64), column.astype(np.float64), equal_nan=True):
            return small
    return column


def _meta(path: Path, raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise TraceError(
            f"{path}: a Parquet file, but no trace (its metadata lack {KEY.decode()!r}); rows of another "
            "engine are read with: adaptive-spec record --from"
        )
    try:
        meta = json.loads(raw)
        schema, names = meta["schema"], meta["evidence"]
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}: damaged metadata ({error}); {_REMEDY}") from error
    if not isinstance(schema, int) or schema < 1 or not isinstance(names, list):
        raise TraceError(f"{path}: damaged metadata (schema {schema!r}); {_REMEDY}")
    if schema > SCHEMA:
        raise TraceError(
            f"{path}: trace schema {schema} is newer than {SCHEMA}, which this version reads; upgrade adaptive-spec"
        )
    if "max_depth" not in meta:
        raise TraceError(f"{path}: damaged metadata (no max_depth); {_REMEDY}")
    return dict(meta)


def _trace(table: pa.Table, meta: dict[str, Any]) -> Trace:
    info = {name: meta[name] for name in INFO_FIELDS if name in meta}
    info["notes"] = tuple(info.get("notes", ()))
    start, run = _lists(table, "run")
    flat = {}
    for name in [n for n in table.column_names if n not in _SEQUENCE_COLUMNS and n != "run"]:
        own, values = _lists(table, name)
        if not np.array_equal(own, start):
            raise TraceError(f"column {name!r} has other lengths than 'run'")
        flat[name] = values

    def numbers(name: str) -> NDArray[Any]:
        return np.array(table[name].to_numpy(), dtype=np.int64)

    return Trace(
        info=TraceInfo(**info),
        start=start,
        text=numbers("text"),
        category=np.array(table["category"].to_pylist(), dtype=np.str_),
        task=np.array(table["task"].to_pylist(), dtype=np.str_),
        prompt_tokens=numbers("prompt_tokens"),
        max_tokens=numbers("max_tokens"),
        stopped=np.array(table["stopped"].to_pylist(), dtype=bool),
        seed=numbers("seed"),
        run=run.astype(np.uint8),
        offered=flat["offered"].astype(np.uint8),
        evidence={name: flat[f"evidence.{name}"] for name in meta["evidence"]},
        derived=flat["derived"].astype(bool) if "derived" in flat else None,
    )


def _lists(table: pa.Table, name: str) -> tuple[IntArray, NDArray[Any]]:
    column = table[name].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    if not pa.types.is_list(column.type):
        raise TraceError(f"column {name!r} is of type {column.type}, not of lists")
    values = column.flatten()
    if column.null_count or values.null_count:
        raise TraceError(f"column {name!r} has missing values")
    lengths = np.diff(column.offsets.to_numpy())
    start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return start, np.array(values.to_numpy(zero_copy_only=False))
