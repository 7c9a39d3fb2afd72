"""Small random steps, and their objective written out plainly: the oracle of the allocation's tests."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from adaptive_spec.policy import Allocation


def instance(rng: np.random.Generator, largest: int = 4) -> dict[str, Any]:
    """A small random step, with every oddity that a real one may have."""
    sequences, depths = int(rng.integers(1, largest + 1)), int(rng.integers(1, largest + 1))
    acceptance = rng.uniform(0, 1, (depths, sequences))
    if rng.random() < 0.3:
        acceptance = np.round(acceptance * 4) / 4  # equal survivals, and zero tails
    if rng.random() < 0.2:
        acceptance[rng.integers(depths) :] = 0.0
    survival = np.cumprod(acceptance, axis=0).T
    weight = np.ones(sequences) if rng.random() < 0.5 else rng.choice([0.5, 1.0, 2.0, 3.7], sequences)
    limit = rng.integers(0, depths + 3, sequences)
    shape = rng.integers(4)
    slots = np.arange(sequences * depths + 1)
    if shape == 0:
        verify = rng.uniform(0.5, 3.0, len(slots))  # jagged
    elif shape == 1:
        verify = 1.0 + 0.4 * (slots // 3) - 0.05 * (slots % 3)  # a staircase that dips along each stair
    elif shape == 2:
        verify = 1.0 + rng.uniform(0, 0.6) * slots
    else:
        verify = np.ones(len(slots))
    draft = [
        np.zeros(depths + 1),
        np.full(depths + 1, 0.3),
        rng.uniform(0, 0.5) * np.arange(depths + 1),
        np.sort(rng.choice([0.0, 0.1, 0.2, 0.5], depths + 1)),
    ][rng.integers(4)]
    base_tokens = float(weight.sum()) + int(rng.integers(0, 3))
    price = None if rng.random() < 0.6 else float(rng.uniform(0.1, 3.0) * base_tokens)
    return {
        "survival": survival,
        "weight": weight,
        "limit": limit,
        "base_tokens": base_tokens,
        "verify_seconds": verify,
        "draft_seconds": draft,
        "price": price,
    }


def value(depth: Any, step: dict[str, Any]) -> tuple[float, float, float]:
    """Objective, worth and seconds of a depth vector, written out plainly."""
    worth = step["base_tokens"] + sum(
        step["weight"][i] * step["survival"][i, k] for i, d in enumerate(depth) for k in range(d)
    )
    seconds = step["verify_seconds"][sum(depth)] + min(step["draft_seconds"][max(depth) :])
    price = step["price"]
    return (worth / seconds if price is None else worth - price * seconds), worth, seconds


def brute_force(step: dict[str, Any], levels: list[int] | None = None) -> float:
    depths = step["survival"].shape[1]
    allowed = range(depths + 1) if levels is None else [0, *levels]
    choices = [[d for d in allowed if d <= limit] for limit in step["limit"]]
    return max(value(depth, step)[0] for depth in itertools.product(*choices))


def check_allocation(result: Allocation, step: dict[str, Any]) -> float:
    """The parts of an allocation agree with each other; returns its objective."""
    depth = result.depth
    assert depth.dtype == np.int64
    assert (depth >= 0).all()
    assert (depth <= np.minimum(step["limit"], step["survival"].shape[1])).all()
    objective, worth, seconds = value(depth.tolist(), step)
    assert result.expected_tokens == pytest.approx(worth, rel=1e-12)
    assert result.expected_seconds == pytest.approx(seconds, rel=1e-12)
    assert result.draft_depth is not None
    assert result.draft_depth >= depth.max()
    assert step["draft_seconds"][result.draft_depth] == min(step["draft_seconds"][depth.max() :])
    return objective


def close(a: float, b: float, scale: float) -> bool:
    return abs(a - b) <= 1e-12 * max(abs(a), abs(b), scale)
