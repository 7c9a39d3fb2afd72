"""How fast a policy follows a shift of the domain: 60.7 to 37.5 % acceptance in the middle of a run, and back.

    python -m adaptive_spec.experiments.domain_shift [--jobs 2] [--json]

The acceptance is synthetic: the two are those of a general drafter on general questions and on biology questions
(Hong et al. 2025, table 1), the same for every draft, with differences between sequences and along each. At one step
all sequences change over, and nobody is told. Told is goodput in windows of steps after the shift, over what the best
fixed depth would have had there: at the same places of the same texts, chosen in hindsight. A policy has recovered when
this is at least 95 %, and stays so. Prompts are computed elsewhere.

At one sequence steps say little, so there the number of drafts that were probes is told beside the steps: those of
steps which the explorer deepened, and all steps that drafted.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.config import TuningConfig
from adaptive_spec.policy_argument import tuning_for
from adaptive_spec.replay import ClosedConcurrency, Machine, Shift, Simulation, SyntheticAcceptance, TunedController
from adaptive_spec.replay.synthetic import DOMAIN_SHIFT, constant_acceptance
from adaptive_spec.step import FloatArray

MACHINES = Path(__file__).parent / "machines"
DEPTH = 8
SHIFT_AT = 300
WINDOW = 25
WINDOWS = 12
RECOVERED = 0.95
TEXTS, OUTPUT_TOKENS = 128, 400
SOURCE = "general and biology questions, Hong et al. 2025, table 1"


@dataclass(frozen=True)
class Place:
    """Where the shift happens: a machine, and how many sequences are on it.

    Attributes
    ----------
    machine : str
        File in the folder of machines.
    sequences : int
    draft_share : float
        Of a pass over one position, for each depth drafted.
    """

    machine: str
    sequences: int
    draft_share: float = 0.0

    @property
    def name(self) -> str:
        """In one phrase."""
        draft = f", drafting {self.draft_share:.0%} of a pass a depth" if self.draft_share else ""
        return f"{Path(self.machine).stem}, {self.sequences}{draft}"

    def load(self) -> Machine:
        """The machine."""
        machine = Machine.load(MACHINES / self.machine, prefill_elsewhere=True)
        return machine.with_sequential_draft(self.draft_share) if self.draft_share else machine


# One sequence on an idle machine is drafted as deep as can be, whatever the domain, unless drafts cost something.
PLACES = (
    Place("cpu.json", 1, 0.15),
    Place("cpu.json", 8),
    Place("cpu.json", 32),
    Place("b300.json", 64),
    Place("b300.json", 256),
    Place("h200.json", 64, 0.06),
)


@dataclass(frozen=True)
class Recovery:
    """How a policy followed one shift.

    Attributes
    ----------
    ratios : list of float
        Goodput over that of the best fixed depth, by window of `WINDOW` steps after the shift.
    before : float
        The same over the last `SHIFT_AT` / 2 steps before it.
    steps : int, optional
        Until it had recovered; None: it did not.
    probes, drafted : float
        Mean number of steps until then that the explorer deepened, and that drafted at all.
    """

    place: str
    policy: str
    before_acceptance: float
    after_acceptance: float
    best_depth: int
    ratios: list[float]
    before: float
    steps: int | None
    probes: float
    drafted: float


@dataclass(frozen=True, eq=False)
class Course:
    """One run, step by step.

    Attributes
    ----------
    own : float array, shape (steps, 2)
        Tokens and seconds.
    fixed : float array, shape (steps, K + 1, 2)
        The same for every fixed depth, had it been played in this step at the very same places of the texts.
    spent : float array, shape (steps, 2)
        Whether the explorer deepened the step, and whether anything was drafted.
    """

    own: FloatArray
    fixed: FloatArray
    spent: FloatArray


def play(policy: str, place: Place, acceptances: tuple[float, float], seed: int) -> Course:
    """Run a policy over one shift."""
    first, second = (SyntheticAcceptance(constant_acceptance(a, DEPTH), SOURCE) for a in acceptances)
    trace = first.trace(TEXTS, OUTPUT_TOKENS, seed=seed)
    shift = Shift(SHIFT_AT, second.shifted(trace, seed))
    factory = TunedController(tuning_for(policy, TuningConfig(max_depth=DEPTH)))
    machine = place.load()
    simulation = Simulation(trace, factory, ClosedConcurrency(place.sequences), machine, seed=seed, shifts=(shift,))
    left = np.repeat(trace.start[1:], np.diff(trace.start)) - np.arange(trace.positions)
    steps, depths = SHIFT_AT + WINDOW * WINDOWS, np.arange(DEPTH + 1)
    own, fixed = np.zeros((steps, 2)), np.zeros((steps, DEPTH + 1, 2))
    spent = np.zeros((steps, 2))
    for number in range(steps):
        before = simulation.clock.now
        report = simulation.step()
        assert report is not None  # a closed system never ends
        own[number] = report.num_tokens, simulation.clock.now - before
        explored = report.decision is not None and bool(report.decision.explored.any())
        spent[number] = explored, report.time.draft_depth > 0
        count = len(report.sequences)
        if not count:
            fixed[number] = own[number]
            continue
        most = np.maximum(left[simulation.runner.present_places] - 1, 0)
        depth = np.minimum(depths[:, None], most)  # [K + 1, B]
        fixed[number, :, 0] = np.minimum(depth, simulation.runner.present_runs).sum(axis=1) + count
        fixed[number, :, 0] += len(report.started)
        positions = count + report.prefill_tokens + depth.sum(axis=1)
        fixed[number, :, 1] = machine.cost.verify(positions, report.time.context, count)
        fixed[number, :, 1] += machine.cost.draft(depth.max(axis=1), count)
    return Course(own, fixed, spent)


def recovery(place: Place, policy: str, acceptances: tuple[float, float], seeds: int) -> Recovery:
    """Follow one shift over several seeds."""
    runs = [play(policy, place, acceptances, seed) for seed in range(seeds)]
    own, fixed, spent = (np.array([getattr(run, part) for run in runs]) for part in ("own", "fixed", "spent"))
    end = SHIFT_AT + WINDOW * WINDOWS
    best = int(_goodput(fixed, SHIFT_AT, end).argmax())
    best_before = int(_goodput(fixed, SHIFT_AT // 2, SHIFT_AT).argmax())

    def ratio(first: int, last: int, depth: int) -> float:
        return float(_goodput(own, first, last) / _goodput(fixed, first, last)[depth])

    ratios = [ratio(at, at + WINDOW, best) for at in range(SHIFT_AT, end, WINDOW)]
    behind = [number for number, value in enumerate(ratios) if value < RECOVERED]
    steps = None if behind and behind[-1] == WINDOWS - 1 else (behind[-1] + 1) * WINDOW if behind else 0
    until = spent[:, SHIFT_AT : SHIFT_AT + (WINDOW * WINDOWS if steps is None else steps)].sum(axis=(0, 1)) / seeds
    return Recovery(
        place.name,
        policy,
        *acceptances,
        best_depth=best,
        ratios=ratios,
        before=ratio(SHIFT_AT // 2, SHIFT_AT, best_before),
        steps=steps,
        probes=float(until[0]),
        drafted=float(until[1]),
    )


def _goodput(runs: FloatArray, first: int, last: int) -> FloatArray:
    """Tokens a second over all seeds in steps `first` to `last`, of one policy or of each depth."""
    total = runs[:, first:last].sum(axis=(0, 1))
    return np.asarray(total[..., 0] / total[..., 1])


def main(
    policy: Annotated[list[str] | None, typer.Option(help="Policies [ours]; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting; at one sequence eight times as many.")] = 6,
    jobs: Annotated[int, typer.Option(help="At once.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print goodput after a shift of the domain, and when it was back at 95 % of the best fixed depth's."""
    from joblib import Parallel, delayed

    settings = [
        (place, name, acceptances)
        for name in policy or ("roofline-budget", "acceptance-bandit")
        for acceptances in (DOMAIN_SHIFT, DOMAIN_SHIFT[::-1])
        for place in PLACES
    ]
    found: list[Recovery] = Parallel(n_jobs=jobs)(
        delayed(recovery)(place, name, acceptances, seeds * (8 if place.sequences == 1 else 1))
        for place, name, acceptances in settings
    )
    if as_json:
        print(json.dumps([asdict(item) for item in found], indent=1))
        return
    shown = (0, 1, 2, 3, 5, 7, 11)
    table = Table(title=f"synthetic: goodput over the best fixed depth's, in windows of {WINDOW} steps after the shift")
    for column in ("policy", "acceptance", "machine, sequences", "best", "before"):
        table.add_column(column)
    for number in shown:
        table.add_column(f"{number * WINDOW + 1}-", justify="right")
    for column in ("steps to 95 %", "probes", "drafted"):
        table.add_column(column, justify="right")
    for item in found:
        table.add_row(
            item.policy,
            f"{item.before_acceptance:.3f} to {item.after_acceptance:.3f}",
            item.place,
            str(item.best_depth),
            f"{item.before:.3f}",
            *(f"{item.ratios[number]:.3f}" for number in shown),
            "not" if item.steps is None else str(item.steps),
            f"{item.probes:.1f}",
            f"{item.drafted:.1f}",
        )
    Console(width=170).print(table)


if __name__ == "__main__":
    typer.run(main)
