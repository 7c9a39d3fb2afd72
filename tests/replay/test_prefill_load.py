"""Prompts that share the passes of a full machine make no draft look cheap, to the policies or to the guard."""

from __future__ import annotations

import pytest

from adaptive_spec.config import TuningConfig
from adaptive_spec.cost import Profile
from adaptive_spec.policies.fixed import Fixed
from adaptive_spec.replay import ClosedConcurrency, Machine, SyntheticAcceptance, simulate
from adaptive_spec.replay.controllers import BareController, TunedController

SURVIVAL = (0.6, 0.35, 0.2, 0.1)
SEQUENCES = 48
# Arithmetic decides from eight positions on: each more takes its share of time, a prompt's as well as a draft's.
MACHINE = Machine("full", Profile([1, 8, 4096], [0.008, 0.008, 4.096], "linear"), max_num_seqs=SEQUENCES)


@pytest.fixture(scope="module")
def trace():
    return SyntheticAcceptance(SURVIVAL, "test").trace(60, 20, prompt_tokens=16)


def goodput(trace, controller) -> float:
    return simulate(trace, controller, ClosedConcurrency(SEQUENCES), MACHINE, steps=400, seed=1).metrics.goodput


def tuned(name: str, **settings) -> TunedController:
    return TunedController(TuningConfig.model_validate({"max_depth": 4, "policy": {"name": name}, **settings}))


@pytest.mark.parametrize("guard", [True, False])
def test_the_policy_buys_as_if_the_prompts_were_elsewhere(trace, guard) -> None:
    off = goodput(trace, BareController(Fixed(0), 4))
    assert goodput(trace, BareController(Fixed(1), 4)) < 0.95 * off
    assert goodput(trace, tuned("roofline-budget", guard={"enabled": guard})) > 0.97 * off


def test_the_guard_sees_through_the_prompts(trace) -> None:
    """The bandit learns from no step with a prompt, and here every step has one: the guard has to see it."""
    off = goodput(trace, BareController(Fixed(0), 4))
    assert goodput(trace, tuned("acceptance-bandit", guard={"enabled": False})) < 0.95 * off
    assert goodput(trace, tuned("acceptance-bandit")) > 0.96 * off
