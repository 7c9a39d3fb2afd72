"""The guard, proven: policies of every kind where speculation goes wrong, held against off and the best depth.

    python -m adaptive_spec.experiments.guard_proof
    python -m adaptive_spec.experiments.guard_proof --quick

Every world of :mod:`.guard_worlds` is replayed over the shipped texts, with each policy under the guard, with
speculation off, and with every fixed depth of a few; all meet the same texts, and the same luck at the same step. The
exit code is 1 if a bar is missed. `--unguarded` takes guard and watchdog away, which the bars must notice. A run of
fewer than five seeds has no interval worth the name, and a short one is a good part start: there the estimate is held
against the bar, less what a start may cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from adaptive_spec.experiments.guard_runs import depths_of, jobs_of, load_texts, run_all
from adaptive_spec.experiments.guard_worlds import Played, World, most_in_a_minute, worlds
from adaptive_spec.replay.paired import PairedBootstrap, Sums
from adaptive_spec.replay.trace import Trace, TraceError

TRACE = Path(__file__).parent / "traces" / "corpus_ngram.parquet"
TABLE = "batch-threshold:table=[[1, 16, 8], [17, null, 2]]"  # as for a machine with more room than this one
POLICIES = ("roofline-budget", "acceptance-bandit", "fixed:4", TABLE)
ADAPTIVE = ("roofline-budget", "acceptance-bandit")  # those that can be held against the best depth in hindsight

LEAST_AGAINST_OFF = 0.985  # lower end of the 95 % interval
WINDOW, MOST_IN_A_WINDOW, FROM_SEQUENCES = 200, 1.11, 8
LEAST_AGAINST_BEST, SETTLED = 0.97, 100
MOST_SWITCHES = 6  # a minute
TRIPS_WITHIN, BACK_WITHIN = 50, 100
SEEDS = 5  # that an interval needs
START = (MOST_IN_A_WINDOW - 1.0) * WINDOW  # steps without speculation that a start may cost


@dataclass(frozen=True)
class Row:
    """What a policy came to in a world, over all seeds.

    Attributes
    ----------
    world, policy : str
    against_off, low, high : float
        Goodput over that of off; its 95 % interval by text and seed.
    window : float
        Over any 200 steps, seconds over those that off takes for the same tokens, at the worst (NaN below 8 sequences).
    best : str
        The better of off and the best fixed depth.
    against_best : float
        Goodput over its, after the first 100 steps.
    switches_a_minute : int
        The guard's, at the most.
    tripped_after, back_after : int or None
        Steps from a collapse to the watchdog's tripping, from a recovery to its letting go, at the most; None: there
        was none to see.
    missed_collapses, false_trips : int
        Collapses it didn't see although speculation was on, and trips without one.
    drafting : float
        Share of the steps that drafted.
    steps, seeds : int
        Of each run; runs.
    """

    world: str
    policy: str
    against_off: float
    low: float
    high: float
    window: float
    best: str
    against_best: float
    switches_a_minute: int
    tripped_after: int | None
    back_after: int | None
    missed_collapses: int
    false_trips: int
    drafting: float
    steps: int
    seeds: int

    @property
    def misses(self) -> list[str]:
        """The bars that it misses; only adaptive policies are held against the best depth."""
        whole = self.seeds >= SEEDS
        start = 0.0 if whole else START / self.steps
        reached = self.low if whole else self.against_off
        bars = {
            f"against off {reached:.3f} < {LEAST_AGAINST_OFF - start:.3f}": reached < LEAST_AGAINST_OFF - start,
            f"window {self.window:.3f} > {MOST_IN_A_WINDOW}": self.window > MOST_IN_A_WINDOW,
            f"against best {self.against_best:.3f} < {LEAST_AGAINST_BEST - start:.3f}": self.policy in ADAPTIVE
            and self.against_best < LEAST_AGAINST_BEST - start,
            f"{self.switches_a_minute} switches a minute": self.switches_a_minute > MOST_SWITCHES,
            f"watchdog tripped after {self.tripped_after} steps": (self.tripped_after or 0) > TRIPS_WITHIN,
            f"watchdog back after {self.back_after} steps": (self.back_after or 0) > BACK_WITHIN,
            f"{self.missed_collapses} collapses missed": self.missed_collapses > 0,
            f"{self.false_trips} false trips": self.false_trips > 0,
        }
        return [name for name, missed in bars.items() if missed]


# -------------------------------------------------------------------- judging


def judge(world: World, policy: str, runs: Sequence[Played], yardsticks: dict[int, Sequence[Played]]) -> Row:
    """Hold a policy's runs, one a seed, against those of fixed depths over the same texts and seeds."""
    off = yardsticks[0]
    interval = PairedBootstrap(len(runs[0].text_tokens), len(runs)).ratio(_sums(runs), _sums(off))
    settled = {depth: _goodput(played, SETTLED) for depth, played in yardsticks.items()}
    best = max(settled, key=lambda depth: settled[depth])
    windows = [_worst_window(run, _goodput([reference])) for run, reference in zip(runs, off, strict=True)]
    watched = [_watched(world, run) for run in runs]
    return Row(
        world=world.name,
        policy=policy,
        against_off=interval.value,
        low=interval.low,
        high=interval.high,
        window=max(windows) if world.fewest >= FROM_SEQUENCES else float("nan"),
        best=f"fixed {best}" if best else "off",
        against_best=_goodput(runs, SETTLED) / settled[best],
        switches_a_minute=max(most_in_a_minute(run.switches) for run in runs),
        tripped_after=max((n for seen in watched for n in seen.tripped_after), default=None),
        back_after=max((n for seen in watched for n in seen.back_after), default=None),
        missed_collapses=sum(seen.missed for seen in watched),
        false_trips=sum(seen.false for seen in watched),
        drafting=float(np.mean([run.drafted.mean() for run in runs])),
        steps=len(runs[0].seconds),
        seeds=len(runs),
    )


def _sums(runs: Sequence[Played]) -> Sums:
    return Sums(np.array([run.text_tokens for run in runs]).T, np.array([run.text_seconds for run in runs]).T)


def _goodput(runs: Sequence[Played], first: int = 0) -> float:
    return float(sum(r.tokens[first:].sum() for r in runs) / sum(r.seconds[first:].sum() for r in runs))


def _worst_window(run: Played, off_goodput: float) -> float:
    seconds, tokens = (np.cumsum(np.concatenate(([0.0], values))) for values in (run.seconds, run.tokens))
    taken, gained = seconds[WINDOW:] - seconds[:-WINDOW], tokens[WINDOW:] - tokens[:-WINDOW]
    return float((taken * off_goodput / gained).max())


@dataclass(frozen=True)
class _Watched:
    """What the watchdog did in one run."""

    tripped_after: list[int]
    back_after: list[int]
    missed: int
    false: int


def _watched(world: World, run: Played) -> _Watched:
    steps = len(run.seconds)
    collapses = world.collapses(steps)
    tripped, back = [], []
    missed, expected = 0, set()
    for begin, end in collapses:
        trips = [trip for trip in run.trips if begin <= trip < end]
        expected.update(trips)
        if trips and run.on[begin]:
            tripped.append(trips[0] - begin + 1)
        missed += bool(not trips and run.on[begin:end].all())
        if trips and end < steps:
            later = [step for step in run.recoveries if step >= trips[-1]]
            if not [step for step in later if step < end]:
                back.append(later[0] - end + 1 if later else steps - end)
    broken_from_the_first = world.phases[0].broken
    return _Watched(tripped, back, missed, 0 if broken_from_the_first else len(set(run.trips) - expected))


# -------------------------------------------------------------------- running


def prove(
    trace: Trace | Path,
    chosen: Sequence[World],
    policies: Sequence[str] = POLICIES,
    *,
    steps: int = 20_000,
    seeds: int = 5,
    guard: bool = True,
    jobs: int = 1,
    done: Callable[[], None] = lambda: None,
) -> list[Row]:
    """Run every policy in every world, and hold it against off and the fixed depths.

    Parameters
    ----------
    trace : Trace or Path
        The texts; a path is read once in each process.
    chosen : sequence of World
    policies : sequence of str
        In one word each.
    steps, seeds : int
        Of each run; runs of each policy.
    guard : bool
        False takes guard and watchdog away.
    jobs : int
        At once; -1 for as many as there are processors.
    done : callable
        Called after every run.
    """
    work = jobs_of(chosen, policies, steps, seeds, guard)
    played: dict[tuple[str, str | int], list[tuple[int, Played]]] = {}
    for job, result in run_all(work, trace, jobs):
        played.setdefault((job.world.name, job.contestant), []).append((job.seed, result))
        done()
    runs = {key: [run for _, run in sorted(found, key=lambda item: item[0])] for key, found in played.items()}
    return [
        judge(world, policy, runs[world.name, policy], {depth: runs[world.name, depth] for depth in depths_of(world)})
        for world in chosen
        for policy in policies
    ]


# -------------------------------------------------------------------- the command


def main(
    trace: Annotated[Path, typer.Option(help="Acceptance trace whose texts are replayed.")] = TRACE,
    world: Annotated[list[str] | None, typer.Option(help="Only these; any of --list.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only these, in one word each, as in fixed:4.")] = None,
    steps: Annotated[int, typer.Option(min=400, help="Steps of each run.")] = 20_000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy in each world.")] = 5,
    quick: Annotated[bool, typer.Option(help="3,000 steps and one seed: under two minutes of CPU.")] = False,
    unguarded: Annotated[bool, typer.Option(help="Without guard and watchdog: the bars must be missed.")] = False,
    jobs: Annotated[int, typer.Option(help="Runs at once; -1 for as many as there are processors.")] = -1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    list_worlds: Annotated[bool, typer.Option("--list", help="Print the worlds, and stop.")] = False,
) -> None:
    """Prove that the guard keeps speculation from being slower than off."""
    known = worlds()
    if list_worlds:
        for item in known.values():
            typer.echo(f"{item.name}: {item.told}")
        return
    if unknown := [name for name in world or () if name not in known]:
        typer.echo(f"guard_proof: there is no world {unknown[0]!r}; there are {', '.join(known)}", err=True)
        raise typer.Exit(2)
    chosen = [known[name] for name in world or known]
    policies = tuple(policy or POLICIES)
    if quick:
        steps, seeds = 3000, 1
    try:
        texts = load_texts(trace)
        with _bar(len(jobs_of(chosen, policies, steps, seeds))) as done:
            rows = prove(trace, chosen, policies, steps=steps, seeds=seeds, guard=not unguarded, jobs=jobs, done=done)
    except (OSError, ValueError, TraceError) as error:
        typer.echo(f"guard_proof: {error}", err=True)
        raise typer.Exit(1) from None
    misses = [(row, miss) for row in rows for miss in row.misses]
    if as_json:
        told = {"trace": texts.describe(), "steps": steps, "seeds": seeds, "rows": [asdict(row) for row in rows]}
        typer.echo(json.dumps(told, indent=1))
    else:
        show(rows, f"{texts.describe()}; {seeds} x {steps:,} steps")
    for row, miss in misses:
        typer.echo(f"missed: {row.world}, {row.policy}: {miss}", err=True)
    raise typer.Exit(bool(misses))


def show(rows: Sequence[Row], title: str) -> None:
    """Print the rows as a table."""
    table = Table(title=title, caption="x off: goodput, 95 % interval by text and seed; window: worst 200 steps")
    columns = ("world", "policy", "x off", "window", "x best", "best", "drafting", "switches/min", "tripped", "back")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number in (0, 1, 5) else "right")
    for row in rows:
        style = "red" if row.misses else None
        table.add_row(
            row.world,
            row.policy.partition(":table")[0],
            f"{row.against_off:.3f} ({row.low:.3f}..{row.high:.3f})",
            f"{row.window:.3f}",
            f"{row.against_best:.3f}",
            row.best,
            f"{row.drafting:.0%}",
            str(row.switches_a_minute),
            "-" if row.tripped_after is None else str(row.tripped_after),
            "-" if row.back_after is None else str(row.back_after),
            style=style,
        )
    Console(width=150).print(table)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, transient=True, console=Console(stderr=True)) as progress:
        task = progress.add_task("runs", total=total)
        yield lambda: progress.advance(task)


if __name__ == "__main__":
    typer.run(main)
