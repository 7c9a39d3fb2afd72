"""allocate against brute force over every depth vector, and against what it says of itself."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import brute_force, check_allocation, close, instance

from adaptive_spec.allocate import allocate
from adaptive_spec.policy import Allocation
from adaptive_spec.step import Decision


def test_equals_brute_force() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2500):
        step = instance(rng)
        objective = check_allocation(allocate(**step), step)
        assert close(objective, brute_force(step), step["base_tokens"])


def test_equals_brute_force_where_drafting_deeper_is_cheaper() -> None:
    rng = np.random.default_rng(1)
    deeper_than_verified = 0
    for _ in range(400):
        step = instance(rng, 3)
        step["draft_seconds"] = rng.uniform(0, 1, len(step["draft_seconds"]))
        result = allocate(**step)
        objective = check_allocation(result, step)
        assert close(objective, brute_force(step), step["base_tokens"])
        deeper_than_verified += result.draft_depth != result.depth.max()
    assert deeper_than_verified > 50


def test_larger_steps_equal_the_best_of_every_cap_and_count() -> None:
    """With many sequences: for each cap on depth, an ordinary sort and every number of slots."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        sequences, depths = int(rng.integers(5, 200)), int(rng.integers(2, 12))
        survival = np.cumprod(rng.uniform(0.2, 1, (depths, sequences)), axis=0).T
        weight, limit = rng.uniform(0.5, 2, sequences), rng.integers(0, depths + 1, sequences)
        verify = np.maximum.accumulate(rng.uniform(1, 1.2, sequences * depths + 1)) * 5
        verify += np.arange(len(verify)) * rng.uniform(0, 0.05) + rng.uniform(0, 0.3, len(verify))
        draft = np.sort(rng.uniform(0, 2, depths + 1))
        step: dict[str, Any] = {
            "survival": survival,
            "weight": weight,
            "limit": limit,
            "base_tokens": float(weight.sum()),
            "verify_seconds": verify,
            "draft_seconds": draft,
            "price": None,
        }
        best = 0.0
        for cap in range(depths + 1):
            worth = (survival * weight[:, None])[np.arange(depths) < np.minimum(limit, cap)[:, None]]
            total = weight.sum() + np.concatenate(([0.0], np.sort(worth)[::-1].cumsum()))
            best = max(best, float((total / (verify[: len(total)] + draft[cap])).max()))
        assert check_allocation(allocate(**step), step) == pytest.approx(best, rel=1e-12)


def test_ties_go_to_fewer_slots_and_to_the_first_sequences() -> None:
    flat = {"base_tokens": 3.0, "verify_seconds": np.ones(10), "draft_seconds": np.zeros(4)}
    zero = allocate(np.zeros((3, 3)), np.ones(3), np.full(3, 3), **flat)
    assert zero.depth.tolist() == [0, 0, 0]
    # Two slots fit under the cliff, and five of the same worth ask for them.
    cliff = np.concatenate((np.ones(3), np.full(13, 99.0)))
    survival = np.full((5, 3), 0.5)
    two = allocate(survival, np.ones(5), np.full(5, 3), 5.0, cliff, np.zeros(4))
    assert two.depth.tolist() == [1, 1, 0, 0, 0]


def test_never_stops_at_the_first_drop() -> None:
    # Every slot alone costs more than it brings, sixteen together bring more than they cost.
    stairs = np.where(np.arange(33) < 1, 1.0, 1.5)
    result = allocate(np.full((16, 2), 0.6), np.ones(16), np.full(16, 2), 16.0, stairs, np.zeros(3))
    assert result.depth.tolist() == [2] * 16


def test_a_dip_in_the_curve_buys_worthless_slots() -> None:
    # A pass padded to four positions is quicker than one of three.
    result = allocate(np.zeros((1, 3)), np.ones(1), np.array([3]), 1.0, np.array([2.0, 2.0, 2.0, 1.0]), np.zeros(4))
    assert result.depth.tolist() == [3]


def test_a_common_price_equals_the_ratio_at_the_optimum() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        step = instance(rng)
        step["price"] = None
        one_step = allocate(**step)
        step["price"] = one_step.expected_tokens / one_step.expected_seconds
        priced = allocate(**step)
        assert priced.expected_tokens / priced.expected_seconds == pytest.approx(step["price"], rel=1e-12)


def test_no_sequences() -> None:
    result = allocate(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64), 1.0, np.array([2.0]), np.zeros(5))
    assert result.depth.shape == (0,)
    assert (result.draft_depth, result.expected_tokens, result.expected_seconds) == (0, 1.0, 2.0)
    assert result.tipping is not None
    assert result.tipping.sentence() == "every slot on offer was bought"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verify_seconds": np.ones(6)}, "verify_seconds has 6 entries; with 6 slots on offer it needs 7"),
        ({"draft_seconds": np.zeros(3)}, "draft_seconds has 3 entries; depths 0 to 3 need 4"),
        ({"levels": [2, 5]}, "depth level 5 is outside 0..3"),
        ({"survival": np.full((2, 3), np.nan)}, "must be finite"),
        ({"weight": np.array([1.0, np.nan])}, "must be finite"),
        ({"verify_seconds": np.full(7, np.nan)}, "must be finite"),
        ({"draft_seconds": np.full(4, np.nan)}, "must be finite"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    step: dict[str, Any] = {
        "survival": np.full((2, 3), 0.5),
        "weight": np.ones(2),
        "limit": np.full(2, 3),
        "base_tokens": 2.0,
        "verify_seconds": np.ones(7),
        "draft_seconds": np.zeros(4),
    }
    allocate(**step)
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        allocate(**(step | change))


def test_the_order_of_weights_and_memory_layout_do_not_matter() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        step = instance(rng)
        plain = allocate(**step)
        step["survival"] = np.ascontiguousarray(step["survival"])
        assert allocate(**step).depth.tolist() == plain.depth.tolist()


# What tipped it


def refused_blocks(result: Allocation, step: dict[str, Any]) -> list[tuple[int, float, float, float]]:
    """Every block of the most worthy refused slots, by the deepest depth allowed: slots, worth, seconds, drafting."""
    depth, worth = result.depth, step["survival"] * step["weight"][:, None]
    depths, n, deepest = worth.shape[1], int(depth.sum()), int(depth.max())
    draft = [min(step["draft_seconds"][d:]) for d in range(depths + 1)]
    blocks = []
    for cap in range(deepest, depths + 1):
        slots = sorted(
            (worth[i, k] for i in range(len(depth)) for k in range(depth[i], min(cap, step["limit"][i]))),
            reverse=True,
        )
        drafting = draft[cap] - draft[deepest]
        for m in range(1, len(slots) + 1):
            extra = step["verify_seconds"][n + m] - step["verify_seconds"][n] + drafting
            blocks.append((m, math.fsum(slots[:m]), extra, drafting))
    return blocks


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_tipping_states_what_is_true(seed: int) -> None:
    step = instance(np.random.default_rng(seed))
    result = allocate(**step)
    tipping = result.tipping
    assert tipping is not None
    worth = step["survival"] * step["weight"][:, None]
    position = np.arange(worth.shape[1])
    bought = position < result.depth[:, None]
    refused = (position < np.asarray(step["limit"])[:, None]) & ~bought
    assert tipping.price == pytest.approx(result.expected_tokens / result.expected_seconds)
    assert tipping.horizon_price == pytest.approx(step["price"] or tipping.price)
    assert tipping.floor == worth[bought].min() if bought.any() else math.isnan(tipping.floor)
    if not refused.any():
        assert tipping.slots == 0
        assert math.isnan(tipping.next)
        assert "every slot on offer" in tipping.sentence()
        return
    assert tipping.next == worth[refused].max()
    blocks = refused_blocks(result, step)
    rounding = 1e-9 * (result.expected_tokens + tipping.required)
    assert any(
        (m, tokens, extra, drafting)
        == pytest.approx((tipping.slots, tipping.tokens, tipping.seconds, tipping.draft_seconds), rel=1e-9, abs=1e-12)
        for m, tokens, extra, drafting in blocks
    )
    # It doesn't pay, and no other block comes nearer to paying.
    assert tipping.tokens <= tipping.required + rounding
    for _, tokens, extra, _ in blocks:
        assert extra >= -1e-9
        if extra > 1e-9 and tipping.seconds > 1e-9:
            assert tokens / extra <= tipping.tokens / tipping.seconds * (1 + 1e-9) + 1e-12
        elif extra > 1e-9:
            assert tokens <= 1e-9
    free = tipping.horizon_price * (tipping.seconds - tipping.draft_seconds)
    assert tipping.decided_by_draft == (tipping.tokens > free)
    assert ("the draft's cost decided" in tipping.sentence()) == tipping.decided_by_draft
    assert f"{tipping.tokens:.2f} tokens for {tipping.seconds * 1e3:.2f} ms" in tipping.sentence()
    assert f"have to bring {tipping.horizon_price * tipping.seconds:.2f}" in tipping.sentence()


def test_tipping_on_a_staircase_names_the_whole_stair() -> None:
    # Four positions a stair: the refused block is the stair that comes next, not its first slot.
    verify = 0.010 + 0.004 * ((np.arange(17) + 3) // 4)
    result = allocate(np.full((4, 4), 0.3), np.ones(4), np.full(4, 4), 4.0, verify, np.zeros(5))
    tipping = result.tipping
    assert tipping is not None
    assert int(result.depth.sum()) == 0
    assert (tipping.slots, tipping.tokens, tipping.seconds) == pytest.approx((4, 1.2, 0.004))
    assert tipping.sentence() == (
        "the next 4 slots bring 1.20 tokens for 4.00 ms; at 400 tokens/s they would have to bring 1.60"
    )
    assert math.isnan(tipping.floor)


def test_tipping_says_when_the_draft_decided() -> None:
    result = allocate(
        np.array([[0.9, 0.8, 0.7]]),
        np.ones(1),
        np.array([3]),
        1.0,
        np.full(4, 0.010),
        np.array([0.0, 0.001, 0.031, 0.061]),
    )
    assert result.depth.tolist() == [1]
    assert result.tipping is not None
    assert result.tipping.decided_by_draft
    assert "drafting deeper costs 30.00 ms of that: the draft's cost decided" in result.tipping.sentence()


def test_tipping_is_computed_once_when_read_and_copies_as_values() -> None:
    survival = np.cumprod(np.full((3, 2), 0.5), axis=0).T
    result = allocate(survival, np.ones(2), np.full(2, 3), 2.0, 1.0 + 0.3 * np.arange(7), np.zeros(4))
    copied = copy.deepcopy(result.tipping)
    assert copied is not None
    assert copied == result.tipping
    assert copied.sentence() == result.tipping.sentence()
    with pytest.raises(AttributeError, match="no attribute 'floors'"):
        result.tipping.floors  # noqa: B018
    decision = Decision(
        step=1, row=np.arange(2), depth=result.depth, draft_depth=1, tipping=result.tipping, survival=survival
    )
    depth = int(result.depth[0])
    said = decision.explain(0)
    assert f"depth {depth}, " in said
    assert said.endswith(result.tipping.sentence())
