"""The same policy on the same prompts twice: live on a model, and on its traces, both on one virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clocked_runner import ClockedRunner

from adaptive_spec.config import TuningConfig
from adaptive_spec.cost import Online, Profile
from adaptive_spec.deployment import MEASURED_DEVIATION
from adaptive_spec.engine.llm import LLM
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.replay.arrivals import GivenArrivals
from adaptive_spec.replay.clock import VirtualClock
from adaptive_spec.replay.controllers import TunedController
from adaptive_spec.replay.machine import Machine
from adaptive_spec.replay.recorder import RecordedPrompt, record
from adaptive_spec.replay.simulator import Simulation
from adaptive_spec.replay.step_timer import StepTimer
from adaptive_spec.replay.trace import Trace
from adaptive_spec.serving.loop import StepReport

Step = dict[str, Any]


def curve() -> Profile:
    """A staircase with a dip and a slope, and a context term, so that wrong positions or contexts show in the time."""
    return Profile(
        [1, 4, 8, 12, 16, 32, 64, 512],
        [0.010, 0.0101, 0.0105, 0.014, 0.0135, 0.020, 0.034, 0.21],
        context_seconds_per_token=1e-6,
    )


class StepLog:
    """Keeps what each step decided, accepted and took."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def __call__(self, report: StepReport) -> None:
        decision = report.decision
        self.steps.append(
            {
                "depth": [] if decision is None else decision.depth.tolist(),
                "draft_depth": report.time.draft_depth,
                "decided_by": "" if decision is None else decision.decided_by,
                "explored": [] if decision is None else decision.explored.tolist(),
                "verified": report.verified.tolist(),
                "accepted": report.accepted.tolist(),
                "emitted": report.emitted.tolist(),
                "prefill_tokens": report.prefill_tokens,
                "started": len(report.started),
                "preempted": len(report.preempted),
                "finished": len(report.finished),
                "positions": report.time.positions,
                "context": report.time.context,
                "seconds": report.time.step_seconds,
            }
        )


def record_prompts(llm: LLM, prompts: Sequence, params: SamplingParams, max_depth: int) -> Trace:
    return record(llm, [RecordedPrompt(prompt) for prompt in prompts], params, max_depth=max_depth)


def run_live(make_llm, prompts, params: Sequence[SamplingParams], tuning: TuningConfig, noise: float) -> list[Step]:
    """`make_llm(clock=, cost=)` builds the engine."""
    clock = VirtualClock()
    cost = Online(curve(), memory_steps=tuning.cost.online.memory_steps, local_deviation=MEASURED_DEVIATION)
    llm = make_llm(clock=clock, cost=cost)
    llm.set_policy(tuning)
    llm.loop.runner = ClockedRunner(llm.runner, StepTimer(curve(), clock, noise, tuning.seed))
    log = StepLog()
    llm.observer = log
    llm.generate(prompts, params)
    assert llm.runner.fault is None
    assert not llm.controller.fallback.faults
    return log.steps


def run_replayed(trace: Trace, limits: dict[str, Any], tuning: TuningConfig, noise: float) -> list[Step]:
    """`limits` are fields of the machine, equal to the engine's."""
    log = StepLog()
    machine = Machine("the same", curve(), noise=noise, **limits)
    simulation = Simulation(
        trace, TunedController(tuning), GivenArrivals.at_once(trace), machine, seed=tuning.seed, observer=log
    )
    while simulation.step() is not None:
        pass
    assert not simulation.controller.fallback.faults
    return log.steps


def assert_same_steps(live: list[Step], replayed: list[Step]) -> None:
    for number, (a, b) in enumerate(zip(live, replayed, strict=False)):
        assert a == b, f"step {number} differs: live {a}, replayed {b}"
    assert len(live) == len(replayed)
