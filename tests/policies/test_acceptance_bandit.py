"""acceptance-bandit finds the price of a slot on machines that it knows nothing of."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from simulated_machines import B300, CPU, DEPTHS, Curve, Texts, goodput

from adaptive_spec.policy import DepthPolicy, make_policy
from adaptive_spec.step import StepTime, StepView

CPU_WITH_DRAFTER = Curve(dict(zip(CPU.positions.astype(int).tolist(), CPU.seconds * 1e3, strict=True)), draft=0.002)
WORLDS = [
    ("cpu", CPU, 1, 3000),
    ("cpu", CPU, 4, 1000),
    ("cpu", CPU, 16, 300),
    ("cpu", CPU, 32, 150),
    ("cpu, 2 ms a draft token", CPU_WITH_DRAFTER, 4, 1000),
    ("b300", B300, 8, 1000),
    ("b300", B300, 64, 300),
    ("b300", B300, 256, 300),
]


def bandit(**params: Any) -> Any:
    policy: Any = make_policy("acceptance-bandit", **params)
    policy.reset(DEPTHS, seed=0)
    return policy


def fixed(depth: int) -> DepthPolicy:
    return make_policy("fixed", depth=depth)


@pytest.mark.parametrize(
    ("name", "machine", "sequences", "steps"), WORLDS, ids=[f"{w[0]} {w[2]}".replace(" ", "-") for w in WORLDS]
)
def test_reaches_the_best_fixed_depth_in_hindsight(name: str, machine: Curve, sequences: int, steps: int) -> None:
    """Run with -s for the figures; what it lost while it was learning is counted."""
    ratios = []
    for seed in range(2):
        best = max(goodput(fixed(d), machine, sequences, steps, seed, noise=0.0) for d in range(DEPTHS + 1))
        ratios.append(goodput(bandit(), machine, sequences, steps, seed) / best)
    print(
        f"\n{name}, {sequences} sequences, {steps} steps: {' '.join(f'{r:.3f}' for r in ratios)} x the best fixed depth"
    )
    assert np.mean(ratios) >= 0.97


def test_the_price_follows_the_machine() -> None:
    """A full machine makes slots dear, an idle one cheap; a machine on which positions are free, all but free."""
    best = {}
    for name, machine, sequences in (("idle", CPU, 1), ("full", CPU, 16), ("free", Curve({1: 30.0, 9999: 30.1}), 16)):
        policy = bandit()
        goodput(policy, machine, sequences, 400, seed=3)
        ranking, _ = policy.ranking_[round(np.log2(sequences))]
        best[name] = float(policy.prices_[int(ranking.argmax())])
    assert best["full"] > 2 * best["idle"]
    assert best["free"] < best["full"] / 2


def test_learns_again_when_the_machine_changes() -> None:
    policy = bandit()
    texts = Texts(16, seed=0)
    share = []
    for number in range(1, 1601):
        machine = Curve({1: 30.0, 9999: 30.1}) if number <= 800 else Curve({1: 3.0, 2: 5.0})  # free, then linear
        decision = policy.decide(texts.next(), texts, None)
        decision.step = number
        positions = 16 + int(decision.depth.sum())
        seconds = float(machine.verify(np.array([positions]), 0.0, 16)[0])
        tokens = texts.finish(decision.depth)
        policy.observe_time(StepTime(number, positions, 16, 0, decision.draft_depth, tokens, step_seconds=seconds))
        share.append(decision.depth.sum() / (16 * DEPTHS))
    assert np.mean(share[400:800]) > 0.5  # the cheapest price drafts 0.62
    assert np.mean(share[1300:]) < 0.2


def test_a_neighbouring_batch_size_begins_with_what_was_learned() -> None:
    """After a run at 16 the first blocks at 12 play what is best at 16, unlike those of a new bandit."""

    def first_choices(policy: Any) -> list[float]:
        choices = []
        for number in range(20):
            p = copy.deepcopy(policy)
            p.rng_ = np.random.default_rng(number)
            texts = Texts(12, seed=number)
            texts.accepted[:], texts.seen[:] = known.accepted, known.seen
            p.decide(texts.next(), texts, None)
            choices.append(min(float(p.prices_[p._block.arm]), 2.0))
        return choices

    trained = bandit()
    known = Texts(16, seed=0)
    for number in range(1, 601):
        decision = trained.decide(known.next(), known, None)
        decision.step = number
        positions = 16 + int(decision.depth.sum())
        seconds = float(CPU.verify(np.array([positions]), 0.0, 16)[0])
        tokens = known.finish(decision.depth)
        trained.observe_time(StepTime(number, positions, 16, 0, 8, tokens, step_seconds=seconds))
    ranking, _ = trained.ranking_[4]
    best = np.log(trained.prices_[int(ranking.argmax())])
    new = np.abs(np.log(first_choices(bandit())) - best)
    taught = np.abs(np.log(first_choices(trained)) - best)
    assert np.mean(taught) < 0.5 * np.mean(new)


def test_a_trial_plays_what_is_believed_best() -> None:
    """Whatever a draw would say: the guard has speculation off, and wants to know what it would bring."""
    taught = bandit()
    goodput(taught, CPU, 16, 20, seed=0)
    arms: dict[bool, set[int]] = {True: set(), False: set()}
    for trial, seed in itertools.product((True, False), range(20)):
        policy, texts = copy.deepcopy(taught), Texts(16, seed=1)
        policy.rng_ = np.random.default_rng(seed)
        policy._block = None
        policy.decide(dataclasses.replace(texts.next(), trial=trial), texts, None)
        arms[trial].add(policy._block.arm)
    goodputs, _ = policy.ranking_[4]
    assert arms[True] == {int(goodputs[:-1].argmax())}
    assert len(arms[False]) > 1


@pytest.mark.parametrize("seed", range(6))
def test_a_trial_drafts_though_off_is_believed_best(seed: int) -> None:
    """Otherwise it would be no trial, and nothing but off would ever be learned."""
    steep = Curve({1: 3.0, 16: 48.0, 17: 60.0})  # a draft that is sure to be right takes as long as four tokens
    policy = bandit()
    goodput(policy, steep, 16, 400, seed=seed)
    texts = Texts(16, seed=1)
    policy._block = policy._timing = None
    view = texts.next()
    calm = copy.deepcopy(policy)
    calm._calm = 2  # plays what it believes best: no drafts, or a price at which nothing is bought
    assert not calm.decide(view, texts, None).depth.any()
    assert policy.decide(dataclasses.replace(view, trial=True), texts, None).depth.any()


def test_a_block_that_was_begun_before_the_trial_is_no_part_of_it() -> None:
    policy, texts = bandit(), Texts(16, seed=1)
    view = texts.next()
    policy.decide(view, texts, None)
    begun = policy._block
    policy.decide(dataclasses.replace(view, trial=True), texts, None)
    assert policy._block is not begun
    tried = policy._block
    policy.decide(dataclasses.replace(view, trial=True), texts, None)
    assert policy._block is tried


def test_is_deterministic_given_its_seed() -> None:
    def depths(seed: int) -> list[list[int]]:
        policy: Any = make_policy("acceptance-bandit")
        policy.reset(DEPTHS, seed)
        texts, chosen = Texts(4, seed=1), []
        for number in range(1, 60):
            decision = policy.decide(texts.next(), texts, None)
            decision.step = number
            texts.finish(decision.depth)
            positions = 4 + int(decision.depth.sum())
            policy.observe_time(StepTime(number, positions, 4, 0, 8, 9.0, step_seconds=positions / 50))
            chosen.append(decision.depth.tolist())
        return chosen

    assert depths(0) == depths(0)
    assert depths(0) != depths(1)


def step(policy: Any, number: int, sequences: int = 4, prefill: int = 0, **time: Any) -> Any:
    """One step, and its time."""
    texts = Texts(sequences, seed=number)
    view: StepView = texts.next()
    view.prefill_tokens = prefill
    decision = policy.decide(view, texts, None)
    decision.step = number
    decision.decided_by = time.pop("decided_by", "policy")
    positions = time.pop("positions", sequences + prefill + int(decision.depth.sum()))
    timed = time.pop("timed_sequences", sequences)
    record = {"tokens": 8.0, "step_seconds": 0.04} | time
    policy.observe_time(StepTime(number, positions, timed, 0, 8, **record))
    return decision


@pytest.mark.parametrize(
    "odd",
    [
        {"prefill": 512},
        {"decided_by": "guard"},
        {"step_seconds": float("nan")},
        {"positions": 400},
        {"timed_sequences": 3},
    ],
)
def test_steps_that_say_nothing_about_a_slot_are_not_learned_from(odd: dict[str, Any]) -> None:
    policy = bandit(block=1)
    before = policy.mean_.copy()
    step(policy, 1, **odd)
    assert np.array_equal(policy.mean_, before)
    assert policy.blocks_.sum() == 0
    step(policy, 2)
    assert policy.blocks_.sum() == 1
    assert not np.array_equal(policy.mean_, before)


def test_a_full_machine_where_every_step_carries_a_little_prefill_is_learned_from() -> None:
    policy = bandit(block=1)
    for number in range(1, 4):
        step(policy, number, sequences=64, prefill=6)
    assert policy.blocks_.sum() == 3
    step(policy, 4, sequences=64, prefill=7)
    assert policy.blocks_.sum() == 3


def test_a_step_behind_a_cliff_opens_no_larger_one() -> None:
    """A block that is given up as too slow leaves the largest step where it was."""
    policy = bandit(block=4)
    for number in range(1, 60):
        step(policy, number, sequences=8)
    largest = policy.limit_.largest
    number = 60
    while policy._block is None or not policy._block.given_up:
        step(policy, number, sequences=8, step_seconds=4.0)
        number += 1
        assert number < 80
    assert policy.limit_.largest == largest


def test_times_are_matched_by_number_and_unknown_ones_ignored() -> None:
    policy = bandit()
    texts = Texts(4, seed=0)
    decisions = []
    for number in (7, 8, 9, 10):
        decision = policy.decide(texts.next(), texts, None)
        decision.step = number
        decisions.append(decision)
    block = policy._block
    for number in (99, 9, 7, 7, 8):
        decision = decisions[min(max(number - 7, 0), 3)]
        positions = 4 + int(decision.depth.sum())
        policy.observe_time(StepTime(number, positions, 4, 0, 8, 8.0, step_seconds=0.04))
    assert block.timed == 3
    assert policy.blocks_.sum() == 0
    positions = 4 + int(decisions[3].depth.sum())
    policy.observe_time(StepTime(10, positions, 4, 0, 8, 8.0, step_seconds=0.04))
    assert policy.blocks_.sum() == 1


def test_a_block_whose_steps_were_lost_counts_for_what_it_has() -> None:
    policy = bandit(block=4)
    for number in range(1, 5):
        step(policy, number, step_seconds=0.04 if number == 1 else float("nan"))
    assert policy.blocks_.sum() == 0
    step(policy, 5)  # the next block's first time
    assert policy.blocks_.sum() == 1


def test_one_stalled_step_moves_little() -> None:
    def learned(stall: float) -> Any:
        policy = bandit()
        texts = Texts(8, seed=0)
        for number in range(1, 401):
            decision = policy.decide(texts.next(), texts, None)
            decision.step = number
            positions = 8 + int(decision.depth.sum())
            seconds = float(CPU.verify(np.array([positions]), 0.0, 8)[0])
            stalled = seconds * (stall if number == 400 else 1.0)
            tokens = texts.finish(decision.depth)
            policy.observe_time(StepTime(number, positions, 8, 0, 8, tokens, step_seconds=stalled))
        return policy

    calm, stalled = learned(1.0), learned(50.0)
    assert np.abs(calm.mean_ - stalled.mean_).max() < 0.25  # 2.0 without clipping


def test_positions_grow_by_half_of_what_was_timed_at_most() -> None:
    """With an optimistic estimate everything looks worth drafting, and a cliff may lie anywhere."""
    policy, texts, largest = bandit(), Texts(64, seed=0), 64
    for number in range(1, 80):
        decision = policy.decide(texts.next(), texts, None)
        decision.step = number
        positions = 64 + int(decision.depth.sum())
        assert positions <= max(1.5 * largest, largest + 1)
        assert (decision.depth <= texts.next().limit.max()).all()
        largest = max(largest, positions)
        policy.observe_time(StepTime(number, positions, 64, 0, 8, 99.0, step_seconds=0.01))
    assert largest > 300


def test_weights_and_limits() -> None:
    policy = bandit()
    texts = Texts(6, seed=2)
    view = texts.next()
    view.limit = np.array([0, 1, 2, 3, 8, 8])
    for number in range(1, 40):
        decision = policy.decide(view, texts, None)
        decision.step = number
        assert (decision.depth <= view.limit).all()
        assert decision.depth.dtype == np.int64
        positions = 6 + int(decision.depth.sum())
        policy.observe_time(StepTime(number, positions, 6, 0, 8, 9.0, step_seconds=0.01))
    texts.kind[:] = 2
    view.limit, view.weight = np.full(6, 8), np.array([1.0, 1.0, 1.0, 4.0, 4.0, 4.0])
    decision = policy.decide(view, texts, None)
    assert decision.depth[3:].min() >= decision.depth[:3].max()


def test_state_round_trips_and_is_refused_for_other_prices() -> None:
    policy = bandit()
    goodput(policy, CPU, 4, 100, seed=0)
    twin = bandit()
    twin.restore(policy.state())
    for name in ("mean_", "covariance_", "realised_", "expected_", "blocks_"):
        assert np.array_equal(getattr(twin, name), getattr(policy, name))
    assert (twin.noise_, twin.limit_.largest) == (policy.noise_, policy.limit_.largest)
    with pytest.raises(ValueError, match="learned with other prices"):
        bandit(prices=5).restore(policy.state())
    with pytest.raises(ValueError, match="must be numbers"):
        twin.restore(policy.state() | {"noise_": "loud"})


def test_repr_is_its_ranking_table() -> None:
    policy = bandit()
    assert repr(policy) == "AcceptanceBandit(prices=9, block=4, discount=0.99)"
    goodput(policy, CPU, 16, 200, seed=0)
    first, header, *rows = repr(policy).splitlines()
    assert first.startswith("AcceptanceBandit(")
    assert header.split() == ["batch", "price", "tokens/s", "sd", "blocks"]
    assert len(rows) == 10
    assert all(row.split()[0] == "16" for row in rows)
    speeds = [float(row.split()[2].replace(",", "")) for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    assert sum(int(row.split()[4]) for row in rows) == policy.blocks_.sum() > 40


@pytest.mark.parametrize(
    ("params", "message"),
    [({"prices": 1}, "prices is 1"), ({"block": 0}, "block is 0"), ({"discount": 0.0}, "discount is 0.0")],
)
def test_refuses(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy("acceptance-bandit", **params).reset(8, seed=0)
