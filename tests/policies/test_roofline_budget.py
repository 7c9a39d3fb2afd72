"""roofline-budget allocates with the cost model: by step or by run, with levels, and revised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulated_machines import B300, CPU, DEPTHS, Curve, Texts, goodput

from adaptive_spec.allocate import allocate
from adaptive_spec.policy import make_policy
from adaptive_spec.step import StepTime


def roofline(**params: Any) -> Any:
    policy: Any = make_policy("roofline-budget", **params)
    policy.reset(DEPTHS, seed=0)
    return policy


def test_decides_as_allocate_does() -> None:
    machine = Curve({1: 30.0, 8: 31.0, 16: 40.0, 64: 90.0}, draft=0.001)
    texts = Texts(5, seed=1)
    view = texts.next()
    view.carried_drafts, view.lag = 7, 0
    view.weight = np.array([1.0, 2.0, 1.0, 0.5, 1.0])
    decision = roofline().decide(view, texts, machine)
    positions = 5 + 7 + np.arange(int(view.limit.sum()) + 1)
    expected = allocate(
        texts.mean(), view.weight, view.limit, 5.5, machine.verify(positions, 250, 5), machine.draft(np.arange(9), 5)
    )
    assert decision.depth.tolist() == expected.depth.tolist()
    assert decision.expected_tokens == expected.expected_tokens
    assert decision.expected_seconds == expected.expected_seconds
    assert decision.draft_depth == decision.depth.max()
    assert decision.tipping == expected.tipping
    assert " tokens for " in decision.explain(0)


def test_what_a_prefill_adds_is_not_for_drafts_to_pay() -> None:
    """On a machine of a straight line a prefill changes no depth, and is expected to take what it takes."""
    texts, line = Texts(12, seed=3), Curve({1: 20.0, 1000: 1019.0})
    for prefill, ending in ((1, 0), (40, 1), (700, 3)):
        view = texts.next()
        alone = roofline().decide(view, texts, line)
        view = replace(view, prefill_tokens=prefill, sampling_prefills=ending)
        beside = roofline().decide(view, texts, line)
        assert beside.depth.tolist() == alone.depth.tolist()
        assert 0 < beside.depth.sum() < view.limit.sum()
        assert beside.expected_tokens == pytest.approx(alone.expected_tokens + ending)
        assert beside.expected_seconds == pytest.approx(alone.expected_seconds + prefill * 1e-3)
        assert beside.tipping.price == pytest.approx(alone.tipping.price)
    # Below the ridge it adds nothing, and leaves less room.
    ridge = Curve({1: 10.0, 32: 10.0, 64: 60.0})
    view = texts.next()
    alone = roofline().decide(view, texts, ridge)
    view = replace(view, prefill_tokens=16)
    assert 0 < roofline().decide(view, texts, ridge).depth.sum() < alone.depth.sum()


def test_beats_every_fixed_depth_where_texts_differ() -> None:
    for machine, sequences, steps in ((CPU, 4, 600), (CPU, 16, 300), (B300, 64, 200)):
        best = max(
            goodput(make_policy("fixed", depth=d), machine, sequences, steps, 0, noise=0.0) for d in range(DEPTHS + 1)
        )
        assert goodput(roofline(), machine, sequences, steps, 0, noise=0.0) > 1.03 * best


def test_run_buys_at_the_running_goodput() -> None:
    machine, texts = CPU, Texts(4, seed=0)
    policy = roofline(horizon="run")
    assert np.isnan(policy.goodput_)
    view = texts.next()
    first = policy.decide(view, texts, machine)
    assert first.tipping.horizon_price == pytest.approx(first.tipping.price)  # as the step alone
    assert policy.goodput_ == pytest.approx(first.expected_tokens / first.expected_seconds)
    policy.observe_time(StepTime(1, 9, 4, 0, 8, tokens=50.0, step_seconds=0.5))
    assert policy.goodput_ == pytest.approx(100.0)  # measured: what was only expected is gone
    second = policy.decide(view, texts, machine)
    assert second.tipping.horizon_price == pytest.approx(100.0)
    assert policy.goodput_ == pytest.approx(100.0)
    policy.observe_time(StepTime(2, 9, 4, 0, 8, tokens=float("nan"), step_seconds=0.5))
    assert policy.goodput_ == pytest.approx(100.0)
    policy.observe_time(StepTime(3, 9, 4, 0, 8, tokens=5.0, step_seconds=0.5))
    assert policy.goodput_ == pytest.approx((0.98 * 50 + 5) / (0.98 * 0.5 + 0.5))
    # A dearer second buys less, a cheaper one more.
    policy.tokens_, policy.seconds_ = 1e5, 1.0
    dear = policy.decide(view, texts, machine).depth.sum()
    policy.tokens_ = 1e-5
    cheap = policy.decide(view, texts, machine).depth
    assert dear < second.depth.sum() <= cheap.sum()
    assert cheap.tolist() == view.limit.tolist()


def test_run_gains_where_steps_differ() -> None:
    """Steps of two kinds: half carry others' drafts, and a second is cheap in tokens. Both buy at one price."""
    machine = Curve({1: 10.0, 10: 10.0, 20: 20.0, 1000: 1000.0})

    def total(policy: Any) -> float:
        texts, tokens, seconds = Texts(8, seed=5), 0.0, 0.0
        texts.accepted, texts.seen = texts.acceptance * np.full((8, 5), 1e6), np.full((8, 5), 1e6)
        for number in range(1, 1500):
            view = texts.next()
            view.carried_drafts = 60 * (number % 2)
            decision = policy.decide(view, texts, machine)
            tokens += decision.expected_tokens
            seconds += decision.expected_seconds
            policy.observe_time(
                StepTime(number, 0, 8, 0, 8, tokens=decision.expected_tokens, step_seconds=decision.expected_seconds)
            )
            texts.finish(decision.depth)
        return tokens / seconds

    assert total(roofline(horizon="run")) > 1.005 * total(roofline())


def test_levels_and_uniform() -> None:
    texts = Texts(12, seed=0)
    view = texts.next()
    mixed = roofline(depth_levels=[2, 5]).decide(view, texts, CPU).depth
    assert set(mixed.tolist()) <= {0, 2, 5}
    view.limit = np.full(12, 8)
    same = roofline(uniform=True).decide(view, texts, Curve({1: 30.0, 999: 60.0})).depth
    assert len(set(same.tolist())) == 1
    assert same[0] > 0
    assert set(roofline(uniform=True, depth_levels=(4,)).decide(view, texts, CPU).depth.tolist()) <= {0, 4}


def test_revise_lowers_by_the_same_rule_and_learns_nothing() -> None:
    texts, policy = Texts(8, seed=0), roofline(horizon="run")
    view = texts.next()
    decision = policy.decide(view, texts, CPU)
    before = policy.state()
    view.limit = decision.depth.copy()
    view.prefill_tokens = 500  # the step turned out to be full
    revised = policy.revise(view, texts, CPU)
    assert (revised.depth <= decision.depth).all()
    assert policy.state() == before


def test_refuses() -> None:
    for params, message in (
        ({"objective": "latency"}, "objective is 'latency'; there is 'throughput'"),
        ({"horizon": "day"}, "horizon is 'day'; there are 'step' and 'run'"),
        ({"depth_levels": [2, 9]}, "depth_levels has 9; this deployment drafts 0 to 8 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            make_policy("roofline-budget", **params).reset(8, seed=0)
    texts = Texts(2, seed=0)
    with pytest.raises(ValueError, match="needs a cost model"):
        roofline().decide(texts.next(), texts, None)


def test_state_round_trips() -> None:
    policy = roofline(horizon="run")
    policy.observe_time(StepTime(1, 9, 4, 0, 8, tokens=50.0, step_seconds=0.5))
    twin = roofline(horizon="run")
    twin.restore(policy.state())
    assert twin.goodput_ == policy.goodput_
    with pytest.raises(ValueError, match="needs tokens, seconds and measured"):
        twin.restore({"tokens": 1.0})
