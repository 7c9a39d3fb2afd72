"""Foreign rows: an acceptance log of another engine or drafter, read as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from adaptive_spec.evidence import EVIDENCE
from adaptive_spec.replay.trace import MAX_DEPTH, Trace, TraceError, TraceInfo
from adaptive_spec.step import BoolArray, IntArray

REQUIRED = ("sequence", "position", "offered", "accepted")
OPTIONAL = ("category", "prompt_tokens", *(name for name in EVIDENCE if name != "age"))
DERIVED_NOTE = (
    "positions that the log did not visit have the last visited run less the distance to it, "
    "and a run that was accepted whole is a lower bound"
)


def read_foreign_rows(path: str | Path, *, prompt_tokens: int = 1, name: str = "") -> Trace:
    """Read one row for each sequence and step of a log: what was drafted and how much of it was accepted.

    Columns: ``sequence`` (number or name), ``position`` (output tokens produced before the step, >= 1),
    ``offered`` (drafts that were verified), ``accepted``; and where known ``category``, ``prompt_tokens`` and
    evidence columns under their names in :data:`adaptive_spec.evidence.EVIDENCE`. Other columns are ignored.
    Parquet, or CSV with a header, by the file's ending.

    Only visited positions have rows: after a run of a at position j the log goes on at j + a + 1. What lies between
    is *derived*: had the drafter been asked there, it would most likely have gone on with the same drafts, so
    L[p] = max(L[j] - (p - j), 0), with the offer and the evidence of j. Likewise, where every draft on offer was
    accepted, L[j] is only known to be at least that. Both are marked in :attr:`Trace.derived`: a log that was taken
    at a constant large depth is the better source. Before a sequence's first row nothing is on offer.

    Parameters
    ----------
    path : str or Path
    prompt_tokens : int
        Where the rows don't say, at least 1.
    name : str
        Of the drafter; the file's name if empty.

    Raises
    ------
    TraceError
        One line that names the file, the row and what would be right.
    """
    path = Path(path)
    if prompt_tokens < 1:
        raise TraceError(f"prompt_tokens is {prompt_tokens}; it must be 1 or more")
    table = _read(path)
    if missing := [column for column in REQUIRED if column not in table.column_names]:
        raise TraceError(f"{path}: column {missing[0]!r} is missing; rows need {', '.join(REQUIRED)}")
    if not table.num_rows:
        raise TraceError(f"{path}: holds no rows; log one for each sequence and step")
    position, offered, accepted = (_whole(path, table, column) for column in REQUIRED[1:])
    _, sequence = np.unique(np.array(table["sequence"].to_pylist(), dtype=np.str_), return_inverse=True)
    order = np.lexsort((position, sequence))
    sequence, position, offered, accepted = sequence[order], position[order], offered[order], accepted[order]
    _check(path, order, sequence, position, offered, accepted)

    first = np.flatnonzero(np.diff(sequence, prepend=-1))
    last = np.append(first[1:], len(sequence)) - 1
    length = position[last] + accepted[last]  # positions 1..n - 1; the bonus token makes it n
    start = np.concatenate(([0], np.cumsum(length)))
    row = _row_of_each_position(start, first, position, sequence)
    here = np.arange(start[-1]) - np.repeat(start[:-1], length) + 1
    known = row >= 0
    source = np.maximum(row, 0)
    distance = np.where(known, here - position[source], 0)
    run = np.where(known, np.maximum(accepted[source] - distance, 0), 0)
    derived = ~known | (distance > 0) | (accepted[source] == offered[source])
    chosen = {column: _numbers(path, table, column)[order] for column in OPTIONAL[2:] if column in table.column_names}
    prompts = np.full(len(first), prompt_tokens, dtype=np.int64)
    if "prompt_tokens" in table.column_names:
        prompts = _whole(path, table, "prompt_tokens")[order][first]
    category = np.full(len(first), path.stem)
    if "category" in table.column_names:
        category = np.array([str(value) for value in table["category"].to_pylist()], dtype=np.str_)[order][first]
    try:
        return Trace(
            info=TraceInfo(
                max_depth=max(1, int(offered.max())), drafter=name or path.name, notes=(DERIVED_NOTE,),
            ),
            start=start,
            text=np.arange(len(first), dtype=np.int64),
            category=category,
            task=np.full(len(first), ""),
            prompt_tokens=prompts,
            max_tokens=length + 1,
            stopped=np.zeros(len(first), dtype=bool),
            seed=np.zeros(len(first), dtype=np.int64),
            run=run.astype(np.uint8),
            offered=np.where(known, offered[source], 0).astype(np.uint8),
            evidence={column: np.where(known, values[source], 0.0) for column, values in chosen.items()},
            derived=derived,
        )  # fmt: skip
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _read(path: Path) -> pa.Table:
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        if path.suffix == ".csv":
            return pyarrow.csv.read_csv(path)
        return pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        kind = "CSV file with a header" if path.suffix == ".csv" else "Parquet file (end its name in .csv if it is CSV)"
        raise TraceError(f"{path}: no good {kind}: {' '.join(str(error).split())[:200]}") from error


def _numbers(path: Path, table: pa.Table, column: str) -> NDArray[np.float64]:
    try:
        values = np.array(table[column].to_pylist(), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TraceError(f"{path}: column {column!r} must be of numbers: {error}") from error
    if not np.isfinite(values).all():
        raise TraceError(f"{path}: column {column!r}, row {int(np.argmin(np.isfinite(values)))}: the value is missing")
    return values


def _whole(path: Path, table: pa.Table, column: str) -> IntArray:
    values: NDArray[Any] = _numbers(path, table, column)
    wrong = (values != np.floor(values)) | (values < 0) | (values > 2**31)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise TraceError(f"{path}: column {column!r}, row {at} is {values[at]}; a whole number from 0 up is needed")
    return values.astype(np.int64)


def _check(
    path: Path, order: IntArray, sequence: IntArray, position: IntArray, offered: IntArray, accepted: IntArray
) -> None:
    def refuse(wrong: BoolArray, told: str) -> None:
        if wrong.any():
            at = int(np.argmax(wrong))
            raise TraceError(
                f"{path}: row {order[at]} (position {position[at]}, offered {offered[at]}, accepted {accepted[at]}): "
                + told
            )

    refuse(position < 1, "position must be 1 or more: the prefill yields the first token")
    refuse(accepted > offered, "accepted must not be over offered")
    refuse(offered > MAX_DEPTH, f"offered must be at most {MAX_DEPTH}")
    again = np.append(False, (np.diff(sequence) == 0) & (np.diff(position) == 0))
    refuse(again, "this sequence and position has a row already")


def _row_of_each_position(start: IntArray, first: IntArray, position: IntArray, sequence: IntArray) -> IntArray:
    """The latest row at or before each flat position, -1 before a sequence's first."""
    row = np.full(start[-1], -1, dtype=np.int64)
    row[start[sequence] + position - 1] = np.arange(len(position))
    latest = np.maximum.accumulate(row)
    return np.where(latest >= np.repeat(first, np.diff(start)), latest, -1)
