"""The headline figures: what was aimed at on the B300 curve, and what the replays of the shipped traces come to.

    python -m adaptive_spec.experiments.headline --jobs 2

Runs e2_concurrency.yaml and e2_draft_cost.yaml, or takes up what ``adaptive-spec compare`` left of them in the same
folder of results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from adaptive_spec.cli.bench_table import table_console
from adaptive_spec.experiments.replayed import RESULTS, Row, by_setting, replayed

OURS, BANDIT, CEILING = "roofline-budget", "acceptance-bandit", "signal-ceiling"
MACHINE = "B300"
# Least ratio to the best fixed depth, by sequences in flight. Where nothing much is to be had, probes cost.
BARS = {"1": 0.99, "8": 0.99, "64": 1.05, "128": 1.10, "256": 1.10}
BANDIT_BARS = {"1": 0.99, "8": 0.99, "64": 1.02, "128": 1.02, "256": 1.02}
CEILING_SHARE = 0.85  # of the ceiling's gain, in logarithms, wherever that gain is over MATTERS
MATTERS = 0.03
DRAFT_COST_BAR = 1.05  # against the same policy that takes drafting for free, at the highest load


@dataclass(frozen=True)
class Figure:
    """A figure, the least that it should be, and whether it is."""

    value: float
    bar: float | None

    @property
    def held(self) -> bool:
        """Whether the bar is reached; a figure without a bar can't miss it."""
        return self.bar is None or self.value >= self.bar

    def __str__(self) -> str:
        told = f"{self.value:.3f}"
        return told if self.bar is None else f"{told} {'>=' if self.held else '[red]<[/red]'} {self.bar:.2f}"


@dataclass(frozen=True)
class Standing:
    """What one setting comes to; ratios are to the best fixed depth unless said otherwise.

    Attributes
    ----------
    best_fixed : str
    ours, bandit : Figure
    ceiling : float
    ceiling_share : Figure
        Share of the ceiling's gain, in logarithms, that ours has.
    peer : str
        The peer that comes closest to ours, or is ahead of it.
    to_peer : Figure
        Ours over that peer.
    """

    best_fixed: str
    ours: Figure
    bandit: Figure
    ceiling: float
    ceiling_share: Figure
    peer: str
    to_peer: Figure


def standing(load: str, gains: Mapping[str, Row]) -> Standing:
    """Judge one setting by the rows of :attr:`Verdicts.gains`, by policy."""
    ratio = {name: row["ratio_to_best_fixed"] for name, row in gains.items()}
    ours, ceiling = ratio[OURS], ratio[CEILING]
    share = math.log(ours) / math.log(ceiling) if ceiling != 1.0 else math.nan
    peers = {name: ratio[name] for name, row in gains.items() if row["kind"] == "peer"}
    peer = max(peers, key=lambda name: peers[name])
    return Standing(
        best_fixed=gains[OURS]["best_fixed"],
        ours=Figure(ours, BARS.get(load)),
        bandit=Figure(ratio[BANDIT], BANDIT_BARS.get(load)),
        ceiling=ceiling,
        ceiling_share=Figure(share, CEILING_SHARE if ceiling > 1.0 + MATTERS else None),
        peer=peer,
        to_peer=Figure(ours / peers[peer], 1.0),
    )


def main(
    jobs: Annotated[int, typer.Option(help="Cells at once.")] = 1,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = RESULTS,
) -> None:
    """Print every headline figure beside the least that it should be."""
    try:
        concurrency = replayed("e2_concurrency", jobs=jobs, results=results)
        draft_cost = replayed("e2_draft_cost", jobs=jobs, results=results)
    except (ValueError, OSError) as error:
        typer.echo(f"headline: {error}", err=True)
        raise typer.Exit(1) from None
    out = table_console()
    figures: list[Figure] = []
    table = _table(
        f"x the best fixed depth in hindsight on {MACHINE}, drafting free, and the least that is wanted",
        ("trace", "in flight", "best fixed", "ours", "interval", "ceiling", "share of it", "nearest peer",
         "ours / peer", "bandit"),
    )  # fmt: skip
    for (trace, load, _), gains in by_setting(concurrency.gains, MACHINE):
        found, own = standing(load, gains), gains[OURS]
        interval = f"{own['ratio_to_best_fixed_low']:.3f} to {own['ratio_to_best_fixed_high']:.3f}"
        table.add_row(
            trace, load, found.best_fixed, str(found.ours), interval, f"{found.ceiling:.3f}",
            str(found.ceiling_share), found.peer, str(found.to_peer), str(found.bandit),
        )  # fmt: skip
        figures += [found.ours, found.ceiling_share, found.to_peer, found.bandit]
    out.print(table)
    table = _table(
        f"{OURS} with a drafter that costs 6 % of a pass for each depth",
        ("trace", "in flight", "x the best fixed depth", "x the same that takes drafting for free", "both unguarded"),
    )
    settings = list(by_setting(draft_cost.gains))
    highest = max(int(load) for (_, load, _), _ in settings)
    for (trace, load, _), gains in settings:
        own, without = gains[OURS], gains["without-draft-cost"]
        bar = DRAFT_COST_BAR if int(load) == highest else None
        # The guard switches off what takes drafting for free and loses by it: that is no merit of the objective.
        unguarded = gains["without-guard"]["goodput"] / gains["without-guard-or-draft-cost"]["goodput"]
        figure = Figure(unguarded, bar)
        guarded = own["goodput"] / without["goodput"]
        table.add_row(trace, load, f"{own['ratio_to_best_fixed']:.3f}", f"{guarded:.3f}", str(figure))
        figures.append(figure)
    out.print(table)
    missed = sum(not figure.held for figure in figures)
    held = sum(figure.bar is not None for figure in figures) - missed
    out.print(f"{held} bars reached, {missed} missed")


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


if __name__ == "__main__":
    typer.run(main)
