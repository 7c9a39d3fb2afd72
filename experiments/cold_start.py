"""What a policy loses while it knows nothing: goodput from the first step on, and whether it locks at depth 0.

    python -m adaptive_spec.experiments.cold_start [--jobs 2] [--json]

Two figures:

- *Settled*: the same texts are replayed twice, by a controller that has learned nothing and by one that has learned
  in a run over the other half of the texts. Told is the ratio of their goodputs in windows of steps.
- *Locks*: worlds of random acceptance, machine, drafter and load (synthetic). In half of them all sequences start
  together, and the first tokens of a text are hard to guess: many correlated failures are the first thing seen. A
  world in which a fixed depth would win by 3 % or more is locked if the policy had the drafter off in more than half
  of the last hundred steps. That the machines are random means that no curve was tuned for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.config import TuningConfig
from adaptive_spec.cost import Profile
from adaptive_spec.policy_argument import tuning_for
from adaptive_spec.replay import ClosedConcurrency, Machine, Simulation, SyntheticAcceptance, Trace, TunedController
from adaptive_spec.replay.synthetic import constant_acceptance

HERE = Path(__file__).parent
TRACES = (HERE / "traces" / "corpus_ngram.parquet", HERE / "traces" / "prompt_lookup.parquet")
MACHINES = (HERE / "machines" / "b300.json", HERE / "machines" / "h200.json")
WINDOWS = ((0, 50), (50, 100), (100, 200))
SETTLING_STEPS = 600
DEPTH = 8
WORLD_STEPS = 300
LAST = 100  # steps of a world that are judged
WINS = 1.03  # of none: what a fixed depth must reach for a lock to count
LARGEST = 10_000  # positions of a random curve


# -------------------------------------------------------------------- settled


@dataclass(frozen=True)
class Start:
    """Goodput of a cold start over that of a settled one, by window of steps."""

    trace: str
    machine: str
    sequences: int
    ratios: dict[str, float]


def course(simulation: Simulation, steps: int) -> np.ndarray:
    """Tokens and seconds of each step, shape (steps, 2)."""
    rows = np.zeros((steps, 2))
    for number in range(steps):
        before = simulation.clock.now
        report = simulation.step()
        assert report is not None  # a closed system never ends
        rows[number] = report.num_tokens, simulation.clock.now - before
    return rows


def cold_start(trace: Trace, machine: Machine, policy: str, sequences: int, seeds: int) -> dict[str, float]:
    """Ratio of cold to settled goodput in each window, over all seeds."""
    learned_on, served = trace.split()
    factory = TunedController(tuning_for(policy, TuningConfig(max_depth=DEPTH)))
    arrivals = ClosedConcurrency(sequences)
    cold, settled = np.zeros((seeds, WINDOWS[-1][1], 2)), np.zeros((seeds, WINDOWS[-1][1], 2))
    for seed in range(seeds):
        teacher = Simulation(learned_on, factory, arrivals, machine, seed=seed)
        course(teacher, SETTLING_STEPS)
        cold[seed] = course(Simulation(served, factory, arrivals, machine, seed=seed), len(cold[seed]))
        taught = Simulation(served, factory, arrivals, machine, seed=seed)
        taught.controller.restore(teacher.controller.state())
        settled[seed] = course(taught, len(settled[seed]))
    return {f"{first}-{last}": _goodput(cold, first, last) / _goodput(settled, first, last) for first, last in WINDOWS}


def _goodput(runs: np.ndarray, first: int, last: int) -> float:
    tokens, seconds = runs[:, first:last].sum(axis=(0, 1))
    return float(tokens / seconds)


# -------------------------------------------------------------------- locks


@dataclass(frozen=True)
class World:
    """A random world.

    Attributes
    ----------
    sequences : int
    together : bool
        All start at their texts' beginning, where drafts are poor.
    trace : Trace
    machine : Machine
    """

    sequences: int
    together: bool
    trace: Trace
    machine: Machine

    @classmethod
    def random(cls, seed: int) -> World:
        """Draw one."""
        rng = np.random.default_rng([seed, 21])
        sequences = int(2 ** rng.uniform(0, 8))
        together = bool(seed % 2)
        wide = {"heterogeneity": float(rng.uniform(0, 1.5)), "wander": float(rng.uniform(0, 1.0))}
        usual = SyntheticAcceptance(constant_acceptance(float(rng.uniform(0.2, 0.95)), DEPTH), "random", **wide)
        poor = SyntheticAcceptance(constant_acceptance(0.1, DEPTH), "poor", **wide)
        lengths = rng.integers(60, 300, 128).tolist()
        if together:
            trace = poor.trace(128, lengths, prompt_tokens=64, shift_at=6, after=usual, seed=seed)
        else:
            trace = usual.trace(128, lengths, prompt_tokens=64, seed=seed)
        machine = Machine(
            "random curve",
            random_curve(rng),
            noise=float(rng.uniform(0, 0.05)),
            prefill_elsewhere=True,
        ).with_sequential_draft(float(rng.choice([0.0, rng.uniform(0, 0.1)])))
        return cls(sequences, together, trace, machine)

    def best_fixed(self) -> tuple[int, float]:
        """The best fixed depth with all places taken, and its goodput over that of none.

        From the positions that each depth visits, and so the same for every policy that is judged.
        """
        n, cost = self.sequences, self.machine.cost
        depths = np.arange(DEPTH + 1)
        tokens = np.array([self.trace.acceptance_length(int(depth)) for depth in depths])
        positions = [round(n * (1.0 + mean_drafts(self.trace, int(depth)))) for depth in depths]
        verify = np.array([cost.verify_range(most, 1, 0.0, n)[0] for most in positions])
        goodput = tokens / (verify + cost.draft(depths, n))
        best = int(goodput.argmax())
        return best, float(goodput[best] / goodput[0])


def mean_drafts(trace: Trace, depth: int) -> float:
    """Drafts that a fixed depth verifies a step, on average: fewer at the ends of texts and where few are on offer."""
    visited = trace.visited(depth)
    left = np.repeat(trace.start[1:], np.diff(trace.start))[visited] - visited  # tokens of the text
    return float(np.minimum(np.minimum(depth, left - 1), trace.offered[visited]).mean())


def random_curve(rng: np.random.Generator) -> Profile:
    """Seconds by positions of no machine: level to a knee, sloped above, in stairs with dips, perhaps with a cliff."""
    knee = 2 ** rng.uniform(1, 10)
    level, step = 10 ** rng.uniform(-3, -1.3), int(2 ** rng.uniform(0, 6))
    positions = np.unique(np.concatenate([np.arange(1, 9), np.arange(step, LARGEST, max(step, 4))]))
    seconds = level * (1 + rng.uniform(0, 0.4) * positions / knee)
    seconds += level * rng.uniform(0.3, 1.0) * np.maximum(positions / knee - 1, 0)
    seconds *= 1 + rng.uniform(0, 0.08) * rng.standard_normal(len(positions)).clip(-2, 2)
    if rng.random() < 0.3:
        seconds[positions > 2 ** rng.uniform(4, 11)] *= rng.uniform(1.5, 5)
    return Profile(positions, seconds)


@dataclass(frozen=True)
class Lock:
    """What came of one world."""

    seed: int
    sequences: int
    together: bool
    best_depth: int
    best_over_none: float
    off_share: float
    depth: float
    locked: bool

    @property
    def judged(self) -> bool:
        """Whether a fixed depth wins, so that a lock would count; this is the world's, whatever the policy."""
        return self.best_over_none >= WINS


def judge(seed: int, policy: str) -> Lock:
    """Run a policy in a random world from nothing."""
    world = World.random(seed)
    factory = TunedController(tuning_for(policy, TuningConfig(max_depth=DEPTH)))
    arrivals = ClosedConcurrency(world.sequences, random_offsets=not world.together)
    simulation = Simulation(world.trace, factory, arrivals, world.machine, seed=seed)
    off = steps = drafts = sequences = 0
    for number in range(WORLD_STEPS):
        report = simulation.step()
        assert report is not None  # a closed system never ends
        if number >= WORLD_STEPS - LAST and report.sequences:
            steps += 1
            off += report.time.draft_depth == 0
            drafts += int(report.verified.sum())
            sequences += len(report.sequences)
    depth, gain = world.best_fixed()
    share = off / steps
    return Lock(
        seed, world.sequences, world.together, depth, gain, share, drafts / sequences, gain >= WINS and share > 0.5
    )


# -------------------------------------------------------------------- the command


def main(
    trace: Annotated[list[Path] | None, typer.Option(help="Traces [the shipped ones]; repeatable.")] = None,
    machine: Annotated[list[Path] | None, typer.Option(help="Machines [B300, H200]; repeatable.")] = None,
    policy: Annotated[str, typer.Option(help="As the command line has policies.")] = "roofline-budget",
    sequences: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 256,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting.")] = 4,
    worlds: Annotated[int, typer.Option(min=0, help="Random worlds.")] = 200,
    jobs: Annotated[int, typer.Option(help="At once.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print how a cold start compares with a settled controller, and in how many random worlds it locks."""
    from joblib import Parallel, delayed

    settings = [(t, m) for t in trace or TRACES for m in machine or MACHINES]
    ratios = Parallel(n_jobs=jobs)(
        delayed(cold_start)(Trace.load(t), Machine.load(m), policy, sequences, seeds) for t, m in settings
    )
    starts = [Start(t.stem, m.stem, sequences, r) for (t, m), r in zip(settings, ratios, strict=True)]
    locks: Sequence[Lock] = Parallel(n_jobs=jobs)(delayed(judge)(seed, policy) for seed in range(worlds))
    if as_json:
        told = {
            "starts": [asdict(s) for s in starts],
            "worlds": [asdict(lock) for lock in locks],
            "judged": sum(lock.judged for lock in locks),
        }
        print(json.dumps(told, indent=1))
        return
    console = Console(width=120)
    table = Table(title=f"{policy}: goodput of a cold start over that of a settled one, {sequences} sequences")
    table.add_column("trace")
    table.add_column("machine")
    for first, last in WINDOWS:
        table.add_column(f"steps {first + 1}-{last}", justify="right")
    for start in starts:
        table.add_row(start.trace, start.machine, *(f"{value:.3f}" for value in start.ratios.values()))
    console.print(table)
    if worlds:
        judged = [lock for lock in locks if lock.judged]
        locked = [lock for lock in judged if lock.locked]
        console.print(
            f"{worlds} random worlds (synthetic): in {len(judged)} a fixed depth wins by 3 % or more, whatever the "
            f"policy: these are judged; locked at depth 0 in {len(locked)} of them"
        )
        for lock in locked:
            console.print(f"  {lock}")


if __name__ == "__main__":
    typer.run(main)
