"""Depth levels: uniform ones are exact over their set, mixed ones greedy, with the gap to brute force printed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import brute_force, check_allocation, close, instance, value

from adaptive_spec.allocate import allocate


def level_sets(depths: int) -> list[list[int]]:
    return [list(c) for r in range(1, depths + 1) for c in itertools.combinations(range(1, depths + 1), r)]


def test_uniform_levels_are_exact() -> None:
    rng = np.random.default_rng(5)
    for _ in range(400):
        step = instance(rng)
        sets = level_sets(step["survival"].shape[1])
        levels = sets[rng.integers(len(sets))]
        vectors = [
            [max(d for d in [0, *levels] if d <= min(level, limit)) for limit in step["limit"]]
            for level in [0, *levels]
        ]
        best = max(value(depth, step)[0] for depth in vectors)
        result = allocate(**step, levels=levels, uniform=True)
        assert result.depth.tolist() in vectors
        assert close(check_allocation(result, step), best, step["base_tokens"])


def test_uniform_without_levels_compares_every_depth() -> None:
    rng = np.random.default_rng(6)
    for _ in range(100):
        step = instance(rng)
        depths = step["survival"].shape[1]
        best = max(value([min(d, limit) for limit in step["limit"]], step)[0] for d in range(depths + 1))
        result = allocate(**step, uniform=True)
        assert close(check_allocation(result, step), best, step["base_tokens"])


def test_mixed_levels_are_near_brute_force() -> None:
    """Prints the gap of the greedy choice (run with -s); on a straight line there is none."""
    rng = np.random.default_rng(7)
    rows = []
    for name, levels in (("1 2 4", [1, 2, 4]), ("2 4", [2, 4]), ("4", [4]), ("1 3", [1, 3])):
        for curve in ("line", "stairs", "jagged"):
            gaps = []
            for _ in range(60):
                sequences = int(rng.integers(2, 5))
                slots = np.arange(sequences * 4 + 1)
                verify = {
                    "line": 1.0 + 0.15 * slots,
                    "stairs": 1.0 + 0.6 * (slots // int(rng.integers(3, 6))),
                    "jagged": rng.uniform(0.5, 2.5, len(slots)),
                }[curve]
                step: dict[str, Any] = {
                    "survival": np.cumprod(rng.uniform(0.2, 1, (4, sequences)), axis=0).T,
                    "weight": rng.choice([1.0, 2.0], sequences),
                    "limit": rng.integers(0, 5, sequences),
                    "base_tokens": float(sequences),
                    "verify_seconds": verify,
                    "draft_seconds": np.zeros(5),
                    "price": None,
                }
                result = allocate(**step, levels=levels)
                assert set(result.depth.tolist()) <= {0, *levels}
                gaps.append(1 - check_allocation(result, step) / brute_force(step, levels))
            rows.append((name, curve, float(np.mean(gaps)), float(np.max(gaps))))
    print("\nlevels   curve    mean gap   largest")
    for name, curve, mean, largest in rows:
        print(f"{name:8} {curve:8} {mean:8.2%} {largest:9.2%}")
        assert mean <= (1e-12 if curve == "line" else 0.06)


def test_mixed_levels_of_every_depth_are_exact() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        step = instance(rng)
        levels = list(range(1, step["survival"].shape[1] + 1))
        objective = check_allocation(allocate(**step, levels=levels), step)
        assert close(objective, brute_force(step), step["base_tokens"])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_tipping_with_levels(seed: int, uniform: bool) -> None:
    rng = np.random.default_rng(seed)
    step = instance(rng)
    sets = level_sets(step["survival"].shape[1])
    levels = sets[rng.integers(len(sets))]
    result = allocate(**step, levels=levels, uniform=uniform)
    tipping = result.tipping
    assert tipping is not None
    within = [max(d for d in [0, *levels] if d <= limit) for limit in step["limit"]]
    if result.depth.tolist() == within:
        assert tipping.slots == 0
        return
    assert tipping.slots > 0
    if uniform:
        assert tipping.tokens <= tipping.required * (1 + 1e-9) + 1e-9
    elif tipping.tokens > tipping.required * (1 + 1e-9):
        assert "lie between the depth levels" in tipping.sentence()
