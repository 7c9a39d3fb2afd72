"""AzureArrivals: production requests out of a CSV file in the format of the Azure LLM inference traces."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from adaptive_spec.replay.arrivals import Arrival, Arrivals, ArrivalStream, OpenStream
from adaptive_spec.replay.trace import Trace
from adaptive_spec.step import FloatArray, IntArray

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class ArrivalFileError(ValueError):
    """A file of arrivals that can't be used; one line with file, line and remedy."""


@dataclass(frozen=True)
class AzureArrivals(Arrivals):
    """Requests at the times, and with the lengths, of a file.

    The format is that of the Azure LLM inference traces (Patel et al., "Splitwise", ISCA 2024): a CSV file with the
    columns TIMESTAMP, ContextTokens and GeneratedTokens, its rows in order of time. What is generated comes from a
    random text of the trace that is long enough, or from the longest texts, cut at GeneratedTokens; the prompt has
    ContextTokens tokens, of which nothing but their number matters to a step's cost.

    Attributes
    ----------
    path : str or Path
    time_scale : float
        What the file's intervals are multiplied with: 0.5 doubles the load.
    max_context_tokens : int, optional
        Longer prompts are cut to it.
    """

    endless: ClassVar[bool] = False
    path: str | Path
    time_scale: float = 1.0
    max_context_tokens: int | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.time_scale) and self.time_scale > 0):
            raise ValueError(f"time_scale is {self.time_scale}; it must be finite and over 0")
        if self.max_context_tokens is not None and self.max_context_tokens < 1:
            raise ValueError(f"max_context_tokens is {self.max_context_tokens}; it must be 1 or more")

    @cached_property
    def _rows(self) -> tuple[FloatArray, IntArray, IntArray]:
        return read_azure(self.path)

    def __len__(self) -> int:
        return len(self._rows[0])

    def longest(self, trace: Trace) -> int:
        """The most tokens that one of the requests may have."""
        _, context, generated = self._rows
        return int((self._cut(context) + np.minimum(generated, trace.output_tokens.max())).max())

    def stream(self, trace: Trace, seed: int) -> ArrivalStream:
        """Begin a run."""
        return OpenStream(self._arrivals(trace, np.random.default_rng([seed, 5])))

    def _cut(self, context: IntArray) -> IntArray:
        return context if self.max_context_tokens is None else np.minimum(context, self.max_context_tokens)

    def _arrivals(self, trace: Trace, rng: np.random.Generator) -> Iterator[Arrival]:
        seconds, context, generated = self._rows
        output = trace.output_tokens
        order = np.argsort(output, kind="stable")
        wanted = np.minimum(generated, output.max())
        # Texts from this place of the order on are long enough.
        first = np.searchsorted(output[order], wanted)
        context = self._cut(context)
        for i in range(len(seconds)):
            number = int(order[rng.integers(first[i], len(order))])
            yield Arrival(float(seconds[i]) * self.time_scale, number, 0, int(context[i]), int(wanted[i]))


def read_azure(path: str | Path) -> tuple[FloatArray, IntArray, IntArray]:
    """Read a file: seconds since its first request, tokens of the prompts, tokens generated; each of shape (n,).

    Raises
    ------
    ArrivalFileError
        If it isn't of the format; the message names the line.
    """
    path = Path(path)
    times: list[np.datetime64] = []
    context: list[int] = []
    generated: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            if missing := [name for name in COLUMNS if name not in header]:
                raise ArrivalFileError(
                    f"{path}:1: column {missing[0]} is missing; the header must have {','.join(COLUMNS)}"
                )
            places = [header.index(name) for name in COLUMNS]
            for row in rows:
                if not row:
                    continue
                where = f"{path}:{rows.line_num}"
                try:
                    stamp, prompt, output = (row[place].strip() for place in places)
                    times.append(np.datetime64(stamp.removesuffix("Z").removesuffix("+00:00"), "ns"))
                    context.append(int(prompt))
                    generated.append(int(output))
                except (ValueError, IndexError) as error:
                    raise ArrivalFileError(
                        f"{where}: {','.join(row)[:80]!r} is no request ({error}); "
                        "write a timestamp and two whole numbers"
                    ) from error
                if np.isnat(times[-1]) or context[-1] < 1 or generated[-1] < 1:
                    raise ArrivalFileError(
                        f"{where}: a time is needed, and at least one token each, not {','.join(row)[:80]!r}"
                    )
                if len(times) > 1 and times[-1] < times[-2]:
                    raise ArrivalFileError(
                        f"{where}: this request is earlier than the one before; sort the file by time"
                    )
    except (UnicodeDecodeError, csv.Error) as error:
        raise ArrivalFileError(f"{path}: not a CSV file in UTF-8: {error}") from error
    if not times:
        raise ArrivalFileError(f"{path}: holds no request; it needs rows of {','.join(COLUMNS)}")
    seconds = (np.array(times) - times[0]).astype(np.float64) / 1e9
    return seconds, np.array(context, dtype=np.int64), np.array(generated, dtype=np.int64)
