"""Simulation: a queue of replayed texts on the engine's own scheduler and serving loop."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from adaptive_spec.cost import CurveCost
from adaptive_spec.replay.arrivals import NEVER, Arrivals
from adaptive_spec.replay.clock import VirtualClock
from adaptive_spec.replay.controllers import ControllerFactory, ReplaySetting
from adaptive_spec.replay.machine import Machine
from adaptive_spec.replay.metrics import RunMetrics, ServiceLevel, note_first_token
from adaptive_spec.replay.runner import TraceRunner, replayed_sequence
from adaptive_spec.replay.step_timer import StepTimer
from adaptive_spec.replay.trace import Trace
from adaptive_spec.serving.loop import ServingLoop, StepReport
from adaptive_spec.serving.sequence import Sequence

WARMUP = 0.2  # share of a run that isn't counted

Observer = Callable[[StepReport], None]


@dataclass(frozen=True)
class Shift:
    """A change of the world in the middle of a run, of which nobody is told.

    Attributes
    ----------
    step : int
        Steps after which it happens.
    trace : Trace, optional
        The same texts with other runs (:meth:`TraceRunner.switch`): a collapse, or another domain.
    cost : CurveCost, optional
        What steps and drafts take from then on.
    """

    step: int
    trace: Trace | None = None
    cost: CurveCost | None = None


@dataclass
class Run:
    """What one simulation came to.

    Attributes
    ----------
    metrics : RunMetrics
        Without the warm-up.
    policy : str
        The policy as it was after the run, its hyper-parameters included.
    machine, arrivals : str
        What it ran on, and under which load.
    seed : int
    steps : int
        All of them, the warm-up included.
    seconds : float
        All of them.
    trace : str
        What was replayed; a synthetic trace is called so.
    synthetic : str
        Empty for a recording.
    faults : dict
        How often the policy failed, by kind.
    """

    metrics: RunMetrics
    policy: str
    machine: str
    arrivals: str
    seed: int
    steps: int
    seconds: float
    trace: str
    synthetic: str = ""
    faults: dict[str, int] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The run as one flat record."""
        return {
            "policy": self.policy,
            "machine": self.machine,
            "arrivals": self.arrivals,
            "seed": self.seed,
            "synthetic": self.synthetic,
            "faults": sum(self.faults.values()),
            **self.metrics.summary(),
        }

    def __str__(self) -> str:
        m = self.metrics
        mark = " (synthetic acceptance)" if self.synthetic else ""
        return (
            f"{self.policy} on {self.machine}, {self.arrivals}: {m.goodput:,.0f} tokens/s, "
            f"{m.tokens_per_second_per_user:,.1f} a user, {m.acceptance_length:.2f} tokens a step, "
            f"off in {m.off_share:.0%} of the steps{mark}"
        )


class Simulation:
    """A run that is taken step by step.

    Parameters
    ----------
    trace : Trace
    controller : ControllerFactory
        Makes the run's controller: :class:`~.controllers.TunedController`, :class:`~.controllers.BareController`.
    arrivals : Arrivals
    machine : Machine
    seed : int
        Of the arrivals, the noise and the controller. Runs of the same seed meet the same texts in the same order and
        the same luck at the same step, whatever the policy.
    shifts : sequence of Shift
        In order of their steps.
    observer : callable, optional
        Receives every :class:`~adaptive_spec.serving.loop.StepReport`.
    """

    def __init__(
        self,
        trace: Trace,
        controller: ControllerFactory,
        arrivals: Arrivals,
        machine: Machine,
        *,
        seed: int = 0,
        shifts: Ordered[Shift] = (),
        observer: Observer | None = None,
    ) -> None:
        if any(later.step < earlier.step for earlier, later in pairwise(shifts)):
            raise ValueError("shifts must be in the order of their steps")
        self.trace = trace
        self.arrivals = arrivals
        self.machine = machine
        self.seed = seed
        self.clock = VirtualClock()
        self.steps = 0
        self.timer = StepTimer(machine.cost, self.clock, machine.noise, seed)
        self.runner = TraceRunner(trace, self.timer)
        self.controller = controller(
            ReplaySetting(
                machine=machine,
                evidence=(*trace.evidence_names, "age"),
                max_depth=trace.max_depth,
                clock=self.clock,
                seed=seed,
                present_runs=lambda: self.runner.present_gains,
                present_places=lambda: self.runner.present_places,
            )
        )
        self.runner.report(tuple(name for name in self.controller.evidence if name != "age"))
        self.loop = ServingLoop(
            machine.scheduler(arrivals.longest(trace)), self.controller, self.runner, self.clock, observer
        )
        self._stream = arrivals.stream(trace, seed)
        self._shifts = list(shifts)
        self._arrived = 0

    def step(self) -> StepReport | None:
        """Let arrivals in and run one step; None when all has been served and nothing more will come.

        Where nothing is left to do, time passes to the next arrival first.
        """
        while self._shifts and self._shifts[0].step <= self.steps:
            self._shift(self._shifts.pop(0))
        self._admit()
        while not len(self.loop):
            ahead = self._stream.next_seconds()
            if ahead == NEVER:
                return None
            self.clock.advance(max(0.0, ahead - self.clock.now))
            self._admit()
        report = self.loop.step()
        self.steps += 1
        return report

    @property
    def unfinished(self) -> list[Sequence]:
        """The sequences that run or wait."""
        scheduler = self.loop.scheduler
        return [*scheduler.running, *scheduler.waiting]

    def _admit(self) -> None:
        for arrival in self._stream.due(self.clock.now, len(self.loop)):
            sequence = replayed_sequence(
                self.trace,
                arrival.number,
                self._arrived,
                offset=arrival.offset,
                arrival_seconds=arrival.seconds,
                prompt_tokens=arrival.prompt_tokens,
                max_tokens=arrival.max_tokens,
            )
            self._arrived += 1
            self.loop.add(sequence)

    def _shift(self, shift: Shift) -> None:
        if shift.trace is not None:
            self.runner.switch(shift.trace)
        if shift.cost is not None:
            self.timer.cost = shift.cost


def simulate(
    trace: Trace,
    controller: ControllerFactory,
    arrivals: Arrivals,
    machine: Machine,
    *,
    seed: int = 0,
    steps: int | None = None,
    duration: float | None = None,
    warmup: float = WARMUP,
    service_level: ServiceLevel | None = None,
    shifts: Ordered[Shift] = (),
    observer: Observer | None = None,
) -> Run:
    """Run a policy on a trace.

    Parameters
    ----------
    trace, controller, arrivals, machine, seed, shifts, observer
        See :class:`Simulation`.
    steps : int, optional
        Ends the run.
    duration : float, optional
        Seconds of the virtual clock that end the run. One of both is needed unless the arrivals end by themselves;
        then the run ends when all has been served.
    warmup : float
        Share of `steps`, or else of `duration`, that isn't counted; in a run that neither bounds, nothing is left out.
    service_level : ServiceLevel, optional
        What requests are promised.

    Raises
    ------
    ValueError
        If the parameters don't fit together, or a request can never be served on the machine.
    """
    if (steps is not None and steps < 1) or (duration is not None and not duration > 0):
        raise ValueError(f"steps is {steps} and duration {duration}; they must be over 0")
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup is {warmup}; it must lie in 0..1, 1 excluded")
    if steps is None and duration is None and arrivals.endless:
        raise ValueError(f"{type(arrivals).__name__} never ends; give steps or a duration")
    simulation = Simulation(trace, controller, arrivals, machine, seed=seed, shifts=shifts, observer=observer)
    clock = simulation.clock
    metrics = RunMetrics(machine.draft_cost, machine.parameters, service_level or ServiceLevel())
    warm_steps = int(warmup * steps) if steps is not None else 0
    warm_seconds = warmup * duration if steps is None and duration is not None else 0.0
    began = None
    while (steps is None or simulation.steps < steps) and (duration is None or clock.now < duration):
        before = clock.now
        counted = simulation.steps >= warm_steps and before >= warm_seconds
        if counted and began is None:
            began = before
        report = simulation.step()
        if report is None:
            break
        if counted:
            metrics.observe(report, clock.now)
        else:
            for sequence in report.started:
                note_first_token(sequence, clock.now)
    metrics.observe_unfinished(simulation.unfinished, clock.now)
    metrics.seconds = clock.now - began if began is not None else 0.0
    return Run(
        metrics=metrics,
        policy=repr(simulation.controller.policy),
        machine=machine.name,
        arrivals=repr(arrivals),
        seed=seed,
        steps=simulation.steps,
        seconds=clock.now,
        trace=trace.describe(),
        synthetic=trace.info.synthetic,
        faults=dict(simulation.controller.fallback.faults),
    )
