"""causal_features: all that an engine could know at each position of a text before it drafts there."""

from __future__ import annotations

import numpy as np

from adaptive_spec.replay.trace import TraceSequence
from adaptive_spec.step import FloatArray

LAGS = 8
WINDOWS = (4, 16, 64)
RIPE = 4  # tokens after which a run is judged by the windows, as far as it then shows
UNKNOWN = np.nan


def causal_features(sequence: TraceSequence) -> FloatArray:
    """Features of every output position p = 1..n - 1, shape (n - 1, C); NaN where there is no past yet.

    - the evidence and the drafts on offer at p, the age p, the context;
    - the evidence's first column, and how many were on offer, at the three positions before;
    - of the drafts that a drafter would have made t = 1..8 tokens ago, how many turned out right so far, and how many
      of those t could have: min(L[p - t], t) and min(offered[p - t], t);
    - how many of these 8 are right without a fault up to now;
    - over windows of 4, 16, 64 and all positions before p: how often there was a draft, how often the first was
      right, and, for positions at least 4 tokens back, how many of the first 4 were.

    Nothing at p reads L[j] beyond min(L[j], p - j), since the rest of it lies in the future of any engine. A
    drafter that is a function of the text could work all of this out, also at positions that a run skips.
    """
    count = len(sequence.run)
    run, offered = sequence.run.astype(np.float64), sequence.offered.astype(np.float64)
    position = np.arange(1, count + 1, dtype=np.float64)
    columns: list[FloatArray] = [*sequence.evidence.T, offered, position, sequence.context.astype(np.float64)]
    for lag in (1, 2, 3):
        columns += [_earlier(column, lag) for column in (*sequence.evidence.T[:1], offered)]
    right = [np.minimum(_earlier(run, lag), lag) for lag in range(1, LAGS + 1)]
    possible = [np.minimum(_earlier(offered, lag), lag) for lag in range(1, LAGS + 1)]
    faultless = sum((r == lag).astype(np.float64) for lag, r in enumerate(right, start=1))
    columns += [*right, *possible, np.asarray(faultless)]
    drafted, first = (offered >= 1).astype(np.float64), (run >= 1).astype(np.float64)
    some = np.minimum(run, RIPE)
    for window in (*WINDOWS, count):
        columns += [
            _average_before(drafted, window, 1),
            _average_before(first, window, 1),
            _average_before(some, window, RIPE),
        ]
    return np.column_stack(columns)


def _earlier(values: FloatArray, lag: int) -> FloatArray:
    """The value `lag` positions before each."""
    shifted = np.full(len(values), UNKNOWN)
    shifted[lag:] = values[: max(len(values) - lag, 0)]
    return shifted


def _average_before(values: FloatArray, window: int, lag: int) -> FloatArray:
    """Average over the last `window` positions that lie at least `lag` before each."""
    total = np.concatenate(([0.0], np.cumsum(values)))
    end = np.maximum(np.arange(len(values)) - lag + 1, 0)
    begin = np.maximum(end - window, 0)
    size = end - begin
    return np.where(size > 0, (total[end] - total[begin]) / np.maximum(size, 1), UNKNOWN)
