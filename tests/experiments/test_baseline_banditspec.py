"""BanditSpec's two algorithms, on examples worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from baseline_world import NoEstimate, outcome, view

from adaptive_spec.experiments.baselines.banditspec import BanditSpec, EXP3Spec, UCBSpec
from adaptive_spec.step import Decision, StepTime


def play(policy: BanditSpec, step: int, prefills: int = 0) -> Decision:
    decision = policy.decide(view([8, 8], prefills=prefills), NoEstimate(), None)
    decision.step = step
    return decision


def timed(step: int, tokens: float, seconds: float = 1.0) -> StepTime:
    return StepTime(step, 1, 2, 0, 0, tokens=tokens, step_seconds=seconds)


def test_ucb_by_hand() -> None:
    # Lengths 1 and 2, L = 2, delta = 1/2. Each once: Y = 2 and 1, t = 2, n = 1:
    #   (2/2) sqrt(2/1 (1 + 2 log(2 * 4 * sqrt(2) / .5))) = sqrt(2 (1 + 2 * 3.119162)) = 3.804819
    policy = UCBSpec([1, 2], reward="length")
    policy.reset(8, seed=0)
    for step, (length, accepted) in enumerate([(1, [1, 1]), (2, [0, 0])], start=1):
        assert play(policy, step).depth.tolist() == [length, length]
        policy.observe(outcome([length, length], accepted, step))
    assert policy.bounds() == pytest.approx([2 + 3.804819, 1 + 3.804819], abs=1e-6)
    # Length 1 again, Y = 2; t = 3:
    #   n = 2: sqrt(3/4 (1 + 2 log(2 * 9 * sqrt(3) / .5))) = sqrt(.75 (1 + 2 * 4.132825)) = 2.636141
    #   n = 1: sqrt(2/1 (1 + 2 log(2 * 9 * sqrt(2) / .5))) = sqrt(2 (1 + 2 * 3.930093)) = 4.209557
    assert play(policy, 3).depth.tolist() == [1, 1]
    policy.observe(outcome([1, 1], [1, 1], 3))
    assert policy.bounds() == pytest.approx([2 + 2.636141, 1 + 4.209557], abs=1e-6)
    assert play(policy, 4).depth.tolist() == [2, 2]


def test_exp3_by_hand() -> None:
    # Lengths 0 and 1, L = 1: first .5 and .5. Length 1 with Y = 1 loses (1 + 1 - 1) / (1 * .5) = 2; then
    # eta = sqrt(log 2 / (2 * 2)) = .416277 and the weights 1, exp(-.832555) = .434937: .696895 and .303105.
    policy = EXP3Spec([0, 1], reward="length")
    policy.reset(8, seed=0)
    assert policy.chances().tolist() == [0.5, 0.5]
    policy._learn(1, 0.5, 1.0)
    policy.rounds_ = 1
    assert policy.chances() == pytest.approx([0.696895, 0.303105], abs=1e-6)
    policy._learn(1, 0.3, 2.0)  # all accepted: no loss
    assert policy.losses_.tolist() == [0.0, 2.0]


def test_a_batchs_reward_is_its_mean_length() -> None:
    policy = UCBSpec([1, 2], reward="length")
    policy.reset(8, seed=0)
    play(policy, 1)
    policy.observe(outcome([1, 1], [1, 0], 1))
    assert policy.total_.tolist() == [1.5, 0.0]


def test_throughput_is_relative_to_no_speculation() -> None:
    policy = UCBSpec([0, 2])
    policy.reset(8, seed=0)
    assert play(policy, 1).depth.tolist() == [0, 0]
    assert play(policy, 2).depth.tolist() == [2, 2]  # two in flight
    policy.observe_time(timed(1, tokens=2.0, seconds=0.02))  # 100 a second
    policy.observe_time(timed(2, tokens=3.0, seconds=0.02))  # 150
    radius = policy.bounds() - np.array([1.0, 1.5])
    assert radius[0] == pytest.approx(radius[1])
    assert play(policy, 3).depth.tolist() == [2, 2]


@pytest.mark.parametrize("bandit", [UCBSpec, EXP3Spec])
def test_prefills_and_overruled_steps_teach_nothing(bandit: type[BanditSpec]) -> None:
    policy = bandit()
    policy.reset(4, seed=0)
    play(policy, 1, prefills=3)
    policy.observe_time(timed(1, 2.0))
    play(policy, 2).decided_by = "fallback"
    policy.observe_time(timed(2, 2.0))
    policy.observe_time(timed(77, 2.0))
    assert policy.rounds_ == 0


@pytest.mark.parametrize(("prompt", "learned"), [(0, 1), (1, 1), (2, 0)])
def test_a_step_with_next_to_no_prompt_is_learned_from(prompt: int, learned: int) -> None:
    """Ten sequences and one prompt position: a tenth each, as where prompts are computed elsewhere."""
    policy = UCBSpec()
    policy.reset(4, seed=0)
    decision = policy.decide(view([4] * 10, prefills=prompt), NoEstimate(), None)
    decision.step = 1
    policy.observe_time(timed(1, 11.0))
    assert policy.rounds_ == learned


@pytest.mark.parametrize("bandit", [UCBSpec, EXP3Spec])
def test_the_best_length_is_found(bandit: type[BanditSpec]) -> None:
    policy = bandit([0, 1, 2])
    policy.reset(2, seed=1)
    rng, plays = np.random.default_rng(0), np.zeros(3)
    rate = [1.0, 1.9, 0.9]
    for step in range(1, 6001):
        arm = int(play(policy, step).depth[0])
        plays[arm] += step > 3000
        policy.observe_time(timed(step, rate[arm] + 0.05 * rng.standard_normal()))
    assert plays.argmax() == 1
    assert plays[1] > 1500


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"lengths": [1]}, "two or more"),
        ({"lengths": [0, 9]}, r"in 0\.\.8"),
        ({"lengths": [1, 2]}, "must be among them"),
        ({"reward": "joy"}, "reward is 'joy'"),
        ({"delta": 1.0}, "delta is 1.0"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        UCBSpec(**arguments).reset(8, seed=0)  # type: ignore[arg-type]
