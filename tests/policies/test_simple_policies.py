"""fixed and batch-threshold do what their tables say, and refuse what can't be."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.policy import DepthPolicy, make_policy, policy_class
from adaptive_spec.step import StepView


class Survival:
    """An estimate that nobody should need."""

    def mean(self) -> Any:
        raise AssertionError("a table needs no estimate")

    def sample(self, rng: Any) -> Any:
        raise AssertionError("a table needs no estimate")

    upper = mean


def view(limit: list[int], prefill_tokens: int = 0) -> StepView:
    n = len(limit)
    return StepView(
        np.arange(n), np.array(limit), np.full(n, 9), np.zeros((n, 0)), np.ones(n), prefill_tokens=prefill_tokens
    )


def depths(policy: DepthPolicy, batch: int) -> int:
    """Depth that the policy gives a batch without limits."""
    depth = policy.decide(view([99] * batch), Survival(), None).depth
    assert len(set(depth.tolist())) <= 1
    return int(depth[0])


def test_fixed_gives_its_depth_as_far_as_limits_allow() -> None:
    policy = make_policy("fixed", depth=3)
    policy.reset(8, seed=0)
    decision = policy.decide(view([8, 3, 2, 0]), Survival(), None)
    assert decision.depth.tolist() == [3, 3, 2, 0]
    assert decision.draft_depth == 3
    assert decision.tipping is None
    assert repr(policy) == "Fixed(depth=3)"
    assert not policy.explores
    assert not policy.needs_cost


@pytest.mark.parametrize("depth", [-1, 9])
def test_fixed_refuses_a_depth_that_is_not_drafted(depth: int) -> None:
    policy = make_policy("fixed", depth=depth)
    with pytest.raises(ValueError, match=f"depth is {depth}; this deployment drafts 0 to 8 tokens"):
        policy.reset(8, seed=0)


def threshold(**params: Any) -> DepthPolicy:
    policy = make_policy("batch-threshold", **params)
    policy.reset(8, seed=0)
    return policy


def test_batch_threshold_reads_its_table() -> None:
    for batch, depth in ((1, 8), (4, 8), (5, 4), (16, 4), (17, 2), (63, 2), (64, 2), (65, 0), (500, 0)):
        assert depths(threshold(table=[[1, 4, 8], [5, 16, 4], [17, 64, 2]]), batch) == depth
    assert depths(threshold(table=[(1, None, 5)]), 1000) == 5
    policy = threshold(table=[(1, 4, 8), (5, None, 4)])
    assert policy.decide(view([9, 2, 0]), Survival(), None).depth.tolist() == [8, 2, 0]
    assert not policy.explores
    assert not policy.needs_cost


def test_batch_threshold_turns_off_above_a_batch() -> None:
    for batch, depth in ((4, 8), (5, 4), (9, 4), (10, 4), (11, 0), (99, 0)):
        assert depths(threshold(table=[[1, 4, 8], [5, 16, 4], [17, None, 2]], off_above=10), batch) == depth
    assert depths(threshold(table=[[1, None, 4]], off_above=0), 1) == 0
    assert depths(threshold(table=[[1, 4, 4]], off_above=50), 5) == 0  # the table ends before


def test_batch_threshold_counts_decoding_sequences_only() -> None:
    policy = threshold(table=[[1, 2, 8], [3, None, 1]])
    assert policy.decide(view([9, 9], prefill_tokens=4096), Survival(), None).depth.tolist() == [8, 8]


def test_batch_threshold_leaves_a_range_only_when_clearly_outside() -> None:
    policy = threshold(table=[[1, 16, 4], [17, None, 1]], hysteresis=0.125)
    sizes = [16, 17, 18, 19, 18, 17, 16, 15, 14, 15, 18, 19]
    assert [depths(policy, n) for n in sizes] == [4, 4, 4, 1, 1, 1, 1, 1, 4, 4, 4, 1]
    plain = threshold(table=[[1, 16, 4], [17, None, 1]], hysteresis=0)
    assert [depths(plain, n) for n in (16, 17, 16, 17)] == [4, 1, 4, 1]
    # The off threshold flickers no more than the others do.
    off = threshold(table=[[1, None, 4]], off_above=16)
    assert [depths(off, n) for n in (16, 18, 19, 15, 14)] == [4, 4, 0, 0, 4]
    policy.reset(8, seed=0)
    assert depths(policy, 17) == 1  # the range that it was in is forgotten


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8)), min_size=1, max_size=5),
    st.floats(0, 0.99),
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
)
def test_hysteresis_only_delays(ranges: list[tuple[int, int]], hysteresis: float, batches: list[int]) -> None:
    """Whatever the history, a batch size that stays gets a range within its reach; a large jump its own."""
    table, first = [], 1
    for width, depth in ranges:
        table.append((first, first + width - 1, depth))
        first += width
    policy = threshold(table=table, hysteresis=hysteresis)
    for batch in batches:
        depth = depths(policy, batch)
        own = next((d for a, b, d in table if a <= batch <= b), 0)
        reach = [d for a, b, d in table if a - 1 - (a - 1) * hysteresis < batch <= b + b * hysteresis]
        beyond = [0] if batch > table[-1][1] * (1 - hysteresis) else []
        assert depth in [own, *reach, *beyond]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"table": []}, "table is empty"),
        ({"table": [[1, 4]]}, "table[0] is [1, 4]; a range is [first batch, last batch, depth]"),
        (
            {"table": [[1, 4, 8], [4, 9, 2]]},
            "table[1] begins at 4, which overlaps table[0], which ends at 4; begin it at 5",
        ),
        (
            {"table": [[1, 4, 8], [6, 9, 2]]},
            "table[1] begins at 6, which leaves a gap: no range covers 5; begin it at 5",
        ),
        ({"table": [[2, 4, 8]]}, "table[0] begins at 2, which leaves a gap: no range covers 1; begin it at 1"),
        ({"table": [[0, 4, 8]]}, "table[0] begins at 0, which is no batch size; begin it at 1"),
        ({"table": [[1, None, 8], [9, 10, 2]]}, "table[0] has no end, so table[1] overlaps it"),
        ({"table": [[1, 4, 8], [5, 3, 2]]}, "table[1] runs backwards, from 5 to 3"),
        ({"table": [[1, 4, 9]]}, "table[0] has depth 9; this deployment drafts 0 to 8 tokens"),
        ({"table": [[1, 4, 8]], "hysteresis": 1.0}, "hysteresis is 1.0"),
        ({"table": [[1, 4, 8]], "off_above": -1}, "off_above is -1"),
    ],
)
def test_batch_threshold_refuses(params: dict[str, Any], message: str) -> None:
    policy = make_policy("batch-threshold", **params)  # the constructor only stores
    assert policy.get_params()["table"] is params["table"]
    with pytest.raises(ValueError, match=re.escape(message)):
        policy.reset(8, seed=0)


def test_every_built_in_policy_is_documented_and_constructs_untouched() -> None:
    for name, params in (
        ("fixed", {"depth": 2}),
        ("batch-threshold", {"table": [[1, None, 3]]}),
        ("acceptance-bandit", {"prices": 5}),
        ("roofline-budget", {"horizon": "run"}),
    ):
        cls = policy_class(name)
        assert cls.__doc__ is not None
        assert "Source:" in cls.__doc__
        assert "Parameters\n" in cls.__doc__
        policy = cls(**params)
        assert [key for key in vars(policy) if key.endswith("_")] == []
        assert params.items() <= policy.get_params().items()
        assert repr(policy).startswith(cls.__name__ + "(")
