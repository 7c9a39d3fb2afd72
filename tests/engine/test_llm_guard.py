"""The guard in the engine: what speculation costs a text, on a machine where it doesn't pay, and that it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from clocked_runner import ClockedRunner
from tiny_llama import VOCABULARY, make_tiny_llm

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Online, Profile
from adaptive_spec.engine.llm import LLM
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.explore import Ledger
from adaptive_spec.guard import Guard
from adaptive_spec.policy import Allocation, DepthPolicy
from adaptive_spec.replay.clock import VirtualClock
from adaptive_spec.replay.step_timer import StepTimer
from adaptive_spec.serving.loop import StepReport

K = 6
GREEDY = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
# Every position costs as much as the first, which the engine is told nothing of.
STEEP = Profile([1, 2, 512], [0.01, 0.02, 5.12], interpolation="linear")
LEVEL = Profile([1, 512], [0.01, 0.0101], interpolation="linear")


class Deepest(DepthPolicy):
    """Always as deep as allowed, whatever it costs."""

    needs_cost = False

    def _decide(self, view, acceptance, cost):
        return Allocation(view.limit.copy())


def clocked(folder: Path, truth: Profile) -> tuple[LLM, VirtualClock, StepTimer]:
    """An engine that speculates as deep as it may, under the guard, on a clock that `truth` moves."""
    clock = VirtualClock()
    llm = make_tiny_llm(
        folder, dtype="float32", clock=clock, tuning=TuningConfig(mode="off"), drafter="corpus_ngram",
        drafter_config={"texts": [list(range(VOCABULARY - 1)) * 3]},
    )  # fmt: skip
    timer = StepTimer(truth, clock)
    llm.set_policy(TuningConfig.model_validate({"max_depth": K, "policy": {"name": "fixed", "depth": K}}))
    ledger = Ledger()
    llm.controller = llm.loop.controller = Controller(
        Deepest(), AcceptanceModel(K, llm.runner.evidence), cost=Online(LEVEL), ledger=ledger,
        guard=Guard(ledger, clock=clock), clock=clock,
    )  # fmt: skip
    llm.loop.runner = ClockedRunner(llm.runner, timer)
    return llm, clock, timer


def plain(folder: Path, prompts: list[list[int]], truth: Profile) -> tuple[list[list[int]], float]:
    """What the engine says without speculation, and how long it takes."""
    clock = VirtualClock()
    llm = make_tiny_llm(folder, dtype="float32", clock=clock, tuning=TuningConfig(mode="off"))
    llm.loop.runner = ClockedRunner(llm.runner, StepTimer(truth, clock))
    texts = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
    return texts, clock.now


@pytest.mark.parametrize("sequences", [1, 8])
def test_speculation_that_loses_costs_next_to_nothing(sequences: int, target: Path) -> None:
    prompts = [[i, 3, 5, i, 3] for i in range(2 * sequences)]
    texts, seconds = plain(target, prompts, STEEP)
    llm, clock, _ = clocked(target, STEEP)
    reports: list[StepReport] = []
    llm.observer = reports.append
    assert [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)] == texts
    assert any(report.verified.any() for report in reports)
    assert llm.controller.guard is not None
    assert not llm.controller.guard.on
    assert clock.now < 1.11 * seconds


def test_speculation_comes_back_where_it_pays(target: Path) -> None:
    llm, _, timer = clocked(target, STEEP)
    prompts = [[i, 3, 5, i, 3] for i in range(8)]
    llm.generate(prompts, GREEDY)
    guard = llm.controller.guard
    assert guard is not None
    assert not guard.on
    timer.cost = LEVEL
    for _ in range(12):
        llm.generate(prompts, GREEDY)
    assert guard.on
