"""Traces made by hand and at random."""

from __future__ import annotations

import numpy as np

from adaptive_spec.replay.trace import Trace, TraceInfo


def trace_of(runs, *, max_depth=4, offered=None, prompt_tokens=5, stopped=False, max_tokens=None, text=None) -> Trace:
    """One sequence for each list of runs L[1], L[2], ..."""
    lengths = np.array([len(run) for run in runs])
    flat = np.array([a for run in runs for a in run], dtype=np.uint8)
    n = len(runs)
    return Trace(
        info=TraceInfo(max_depth=max_depth, model="m", drafter="d"),
        start=np.concatenate(([0], np.cumsum(lengths))),
        text=np.arange(n) if text is None else np.array(text),
        category=np.array([("chat", "code")[i % 2] for i in range(n)]),
        task=np.array([f"t{i}" for i in range(n)]),
        prompt_tokens=np.full(n, prompt_tokens),
        max_tokens=lengths + 1 if max_tokens is None else np.full(n, max_tokens),
        stopped=np.full(n, stopped),
        seed=np.arange(n, dtype=np.int64),
        run=flat,
        offered=np.full(len(flat), max_depth, dtype=np.uint8) if offered is None else np.array(offered, dtype=np.uint8),
        evidence={
            "matched_length": np.arange(len(flat), dtype=np.float64) % 7,
            "agreement": 1.0 / (1.0 + np.arange(len(flat))),
        },
    )


def random_trace(seed: int, sequences: int = 6, longest: int = 40, max_depth: int = 4) -> Trace:
    """Runs, offers and lengths at random, runs never over the offers."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest, sequences)
    runs, offered = [], []
    for length in lengths:
        offers = rng.integers(0, max_depth + 1, length)
        offered += offers.tolist()
        runs.append([int(rng.integers(0, o + 1)) for o in offers])
    return trace_of(
        runs, max_depth=max_depth, offered=offered, stopped=bool(seed % 2), max_tokens=longest + 5 if seed % 2 else None
    )
