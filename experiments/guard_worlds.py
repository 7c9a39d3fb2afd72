"""Worlds in which speculation goes wrong: what breaks, when, and what the controller believes of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.cost import CurveCost, DraftCost, Online, Profile
from adaptive_spec.cost.factor import LOCAL_DEVIATION
from adaptive_spec.explore import Ledger
from adaptive_spec.guard import Guard, Watchdog
from adaptive_spec.policy_argument import tuning_for
from adaptive_spec.replay.arrivals import ClosedConcurrency
from adaptive_spec.replay.cell_record import TextShares
from adaptive_spec.replay.controllers import ControllerFactory, ReplaySetting
from adaptive_spec.replay.machine import Machine
from adaptive_spec.replay.simulator import Shift, Simulation
from adaptive_spec.replay.trace import Trace
from adaptive_spec.serving.scheduler import Scheduler
from adaptive_spec.serving.sequence import Sequence as ServingSequence
from adaptive_spec.step import Decision, FloatArray, IntArray, Outcome, StepTime, StepView

K = 8
NOISE = 0.03  # standard deviation of the logarithm of a pass's seconds

# Milliseconds of a pass by its positions: SmolLM2-135M in bf16 on a 2-core AVX-512 CPU. About eight are free.
MEASURED_MS = {1: 36.0, 2: 36.0, 4: 38.0, 8: 41.0, 16: 50.0, 32: 67.0, 64: 114.0, 128: 199.0, 1152: 1633.0}
CLIFF_AT, CLIFF = 24, 5.0
DRAFT_SECONDS = 0.001  # of each draft's depth, by a drafter that takes turns with the target model


def measured(draft: DraftCost | None = None) -> Profile:
    """The measured curve."""
    return _profile(MEASURED_MS, draft)


def _profile(milliseconds: dict[int, float], draft: DraftCost | None = None) -> Profile:
    seconds = [value / 1e3 for value in milliseconds.values()]
    return Profile(list(milliseconds), seconds, interpolation="linear", draft_cost=draft or DraftCost.free())


def with_cliff(*, sampled: bool = False) -> Profile:
    """The measured curve, five times as slow above 24 positions; `sampled`: as a profile at powers of two sees it."""
    low = {n: ms for n, ms in MEASURED_MS.items() if n < CLIFF_AT}
    edge = {} if sampled else {CLIFF_AT: 58.5, CLIFF_AT + 1: CLIFF * 59.6}
    high = {n: CLIFF * ms for n, ms in MEASURED_MS.items() if n > CLIFF_AT}
    return _profile({**low, **edge, **high})


def knee(positions: int, milliseconds_per_position: float) -> Profile:
    """36 ms up to a knee, and so much more for each position above it."""
    return _profile({1: 36.0, positions: 36.0, 1024: 36.0 + milliseconds_per_position * (1024 - positions)})


@dataclass(frozen=True)
class Phase:
    """A part of a run.

    Attributes
    ----------
    begins : float
        Share of the run's steps after which it begins.
    broken : bool
        Whether no draft is accepted.
    cost : CurveCost, optional
        What steps take from then on.
    """

    begins: float
    broken: bool = False
    cost: CurveCost | None = None


@dataclass(frozen=True)
class World:
    """Where a guarded policy has to hold its own.

    Attributes
    ----------
    name, told : str
        What it is called; what goes wrong in it.
    truth : CurveCost
        What steps take at first.
    believed : CurveCost
        What the controller takes them for.
    local_deviation : float
        How far the believed curve's shape may be off, in logs: what its source is good for.
    sequences : int
        Decoding at once.
    fewer : int, optional
        In every second step, only so many of them decode.
    phases : tuple of Phase
        The first begins at 0.
    """

    name: str
    told: str
    truth: CurveCost
    believed: CurveCost
    local_deviation: float = 0.15
    sequences: int = 8
    fewer: int | None = None
    phases: tuple[Phase, ...] = (Phase(0.0),)

    @property
    def fewest(self) -> int:
        """Sequences that decode at the least."""
        return self.sequences if self.fewer is None else self.fewer

    def machine(self) -> Machine:
        """What it runs on; prompts were computed elsewhere, so that nothing waters the decoding down."""
        return SwingingMachine(
            self.name, self.truth, max_num_seqs=self.sequences, prefill_elsewhere=True, noise=NOISE, fewer=self.fewer
        )

    def shifts(self, trace: Trace, steps: int) -> list[Shift]:
        """The phases of a run of so many steps over a trace."""
        broken = replace(trace, run=np.zeros_like(trace.run))
        return [
            Shift(int(phase.begins * steps), broken if phase.broken else trace, phase.cost) for phase in self.phases
        ]

    def collapses(self, steps: int) -> list[tuple[int, int]]:
        """Steps at which acceptance falls to 0 in the middle of a run, and at which it recovers (`steps`: never)."""
        ends = [*(phase.begins for phase in self.phases[1:]), 1.0]
        return [
            (int(phase.begins * steps), int(end * steps))
            for phase, end in zip(self.phases, ends, strict=True)
            if phase.broken and phase.begins > 0
        ]


def worlds() -> dict[str, World]:
    """Every world, by name."""
    cheap, dear = (DraftCost.sequential(factor * DRAFT_SECONDS) for factor in (1.0, 10.0))
    truth, deceived = knee(12, 1.5), LOCAL_DEVIATION
    collapse = (Phase(0.0), Phase(0.25, broken=True), Phase(0.45), Phase(0.7, broken=True), Phase(0.75))
    made = [
        World("undisturbed", "nothing goes wrong", measured(), measured()),
        World("alone", "nothing goes wrong, with one sequence", measured(), measured(), sequences=1),
        World("nothing accepted", "no draft is ever accepted", measured(), measured(), phases=(Phase(0.0, True),)),
        World("collapse", "acceptance falls to 0 twice, and recovers", measured(), measured(), phases=collapse),
        World("cliff", "a pass takes 5 x above 24 positions", with_cliff(), with_cliff(sampled=True)),
        World("unseen cliff", "the same, and nobody knows of it", with_cliff(), measured()),
        World("swing", "32 and 8 sequences decode in turn", measured(), measured(), sequences=32, fewer=8),
        World(
            "slow drafter",
            "drafting takes ten times as long from a third of the run on",
            measured(cheap),
            measured(cheap),
            phases=(Phase(0.0), Phase(1 / 3, cost=measured(dear))),
        ),
        World("knee believed high", "knee and slope are 3 x worse than believed", truth, knee(36, 0.5), deceived),
        World("knee believed low", "knee and slope are 3 x better than believed", truth, knee(4, 4.5), deceived),
    ]
    return {world.name: world for world in made}


# -------------------------------------------------------------------- a load that swings at every step


@dataclass(frozen=True)
class SwingingMachine(Machine):
    """A machine on which, in every second step, only `fewer` of the running sequences decode."""

    fewer: int | None = None

    def scheduler(self, most_tokens: int) -> Scheduler:
        """As the base's."""
        plain = super().scheduler(most_tokens)
        if self.fewer is None:
            return plain
        return _Swinging(
            self.fewer,
            plain.pool,
            max_num_seqs=plain.max_num_seqs,
            max_num_batched_tokens=plain.max_num_batched_tokens,
            max_model_len=plain.max_model_len,
        )


class _Swinging(Scheduler):
    def __init__(self, fewer: int, *arguments: object, **limits: int) -> None:
        super().__init__(*arguments, **limits)  # type: ignore[arg-type]
        self._fewer = fewer
        self._step = 0

    def _decode(self) -> tuple[list[ServingSequence], list[ServingSequence]]:
        decoding, preempted = super()._decode()
        self._step += 1
        return decoding if self._step % 2 else decoding[: self._fewer], preempted


# -------------------------------------------------------------------- what decides


@dataclass(frozen=True)
class Guarded:
    """Any policy, under the guard, the watchdog and the ledger, whether it asks for them or not.

    Attributes
    ----------
    policy : str
        In one word, as the command line takes it.
    world : World
        Whose belief it begins with.
    guard : bool
        False leaves guard and watchdog out: what the bars must notice.
    """

    policy: str
    world: World
    guard: bool = True

    def __call__(self, setting: ReplaySetting) -> Controller:
        """Build it."""
        policy = tuning_for(self.policy).policy.make(K, setting.seed)
        policy.explores = True
        ledger = Ledger()
        return Controller(
            policy,
            AcceptanceModel(K, setting.evidence),
            cost=Online(self.world.believed, local_deviation=self.world.local_deviation),
            ledger=ledger,
            guard=Guard(ledger, clock=setting.clock) if self.guard else None,
            watchdog=Watchdog() if self.guard else None,
            seed=setting.seed,
            clock=setting.clock,
        )


class OneDepth(Controller):
    """One depth for every sequence at every step, and nothing learned: the yardstick, at little cost."""

    def __init__(self, depth: int) -> None:
        super().__init__(tuning_for(f"fixed:{depth}").policy.make(K, 0), AcceptanceModel(K))
        self._depth = depth

    def plan(self, view: StepView) -> Decision:
        """The depth, within the limits."""
        self._step += 1
        depth: IntArray = np.minimum(view.limit, self._depth)
        return Decision(self._step, view.row, depth, int(depth.max()))

    def observe(self, outcome: Outcome) -> None:
        """Nothing is learned."""

    def observe_time(self, time: StepTime) -> None:
        """Nothing is learned."""


def fixed(depth: int) -> ControllerFactory:
    """Makes the controllers of a yardstick."""
    return lambda setting: OneDepth(depth)


# -------------------------------------------------------------------- a run


@dataclass
class Played:
    """What a run came to, step by step.

    Attributes
    ----------
    seconds, tokens : float array, shape (steps,)
    switches : list of float
        Seconds of the run at which the guard changed its state.
    trips, recoveries : list of int
        Steps after which the watchdog tripped, and let go again.
    on, drafted : bool array, shape (steps,)
        Whether the guard let the policy speculate; whether anything was drafted.
    text_tokens, text_seconds : float array, shape (texts,)
        Tokens of every text, and its share of the steps' seconds.
    """

    seconds: FloatArray
    tokens: FloatArray
    switches: list[float] = field(default_factory=list)
    trips: list[int] = field(default_factory=list)
    recoveries: list[int] = field(default_factory=list)
    on: FloatArray = field(default_factory=lambda: np.zeros(0))
    drafted: FloatArray = field(default_factory=lambda: np.zeros(0))
    text_tokens: FloatArray = field(default_factory=lambda: np.zeros(0))
    text_seconds: FloatArray = field(default_factory=lambda: np.zeros(0))


def play(world: World, trace: Trace, controller: ControllerFactory, steps: int, seed: int) -> Played:
    """Run a controller through a world."""
    simulation = Simulation(
        trace,
        controller,
        ClosedConcurrency(world.sequences),
        world.machine(),
        seed=seed,
        shifts=world.shifts(trace, steps),
    )
    shares = TextShares(trace)
    played = Played(np.zeros(steps), np.zeros(steps), on=np.ones(steps), drafted=np.zeros(steps))
    guard, watchdog = simulation.controller.guard, simulation.controller.watchdog
    was_on, was_tripped = True, False
    for step in range(steps):
        report = simulation.step()
        assert report is not None  # a closed queue never ends
        played.seconds[step] = report.time.step_seconds
        played.tokens[step] = report.num_tokens
        played.drafted[step] = report.time.draft_depth > 0
        shares.add(report, simulation.runner.present_places, report.time.step_seconds)
        if guard is not None:
            if guard.on != was_on:
                was_on = guard.on
                played.switches.append(simulation.clock.now)
            played.on[step] = guard.on
        if watchdog is not None and watchdog.tripped != was_tripped:
            was_tripped = watchdog.tripped
            (played.trips if was_tripped else played.recoveries).append(step)
    played.text_tokens, played.text_seconds = shares.tokens, shares.seconds
    return played


def most_in_a_minute(times: Sequence[float]) -> int:
    """The most of these times, in seconds and rising, that lie within one minute."""
    return max((sum(at - 60.0 < other <= at for other in times) for at in times), default=0)
