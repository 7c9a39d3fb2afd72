"""How much of the gap between fixed depths and the one-step optimum can be had before drafting, and from what.

    python -m adaptive_spec.experiments.oracle_gap --jobs 2

Runs e2_signals.yaml, or takes up what ``adaptive-spec compare`` left of it in the same folder of results. For each
load the gap is the logarithm of the clairvoyant's goodput (it knows how many drafts would be accepted, and splits
every step's budget exactly) over that of the one fixed depth that is best over all loads together. It is divided into

- *load*: the best fixed depth of this very load, over the one for all loads;
- *sequence*: roofline-budget without evidence, which knows nothing but each sequence's own record, over that depth;
- *evidence*: roofline-budget whole, over the one without evidence;
- *not learned*: the ceiling of signals, gradient boosting on every causal feature, over roofline-budget;
- *not knowable*: the clairvoyant over the ceiling: what no signal known before drafting shows, as far as the ceiling
  has found them all.

The parts add up to the gap exactly; a negative one is a loss. In another order they come out otherwise: evidence taken
alone is printed beside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from adaptive_spec.cli.bench_table import table_console
from adaptive_spec.experiments.replayed import RESULTS, Row, Setting, by_setting, replayed


@dataclass(frozen=True)
class GapParts:
    """Parts of the gap, in logarithms; they add up to it."""

    load: float
    sequence: float
    evidence: float
    not_learned: float
    not_knowable: float

    @property
    def gap(self) -> float:
        """Logarithm of the clairvoyant's goodput over the one fixed depth's."""
        return math.fsum(astuple(self))

    @property
    def had(self) -> float:
        """What roofline-budget gets of it."""
        return self.load + self.sequence + self.evidence


def one_depth(settings: Mapping[Setting, Mapping[str, Row]]) -> str:
    """The fixed depth that is best over all loads: by the geometric mean of goodputs, the shallower of equals."""
    names = [name for name, row in next(iter(settings.values())).items() if row["kind"] == "fixed"]
    return max(names, key=lambda name: math.fsum(math.log(rows[name]["goodput"]) for rows in settings.values()))


def split_gap(rows: Mapping[str, Row], depth: str) -> GapParts:
    """Split the gap in one setting.

    Parameters
    ----------
    rows : mapping of str to Row
        Of :attr:`Verdicts.gains`, by policy.
    depth : str
        The one fixed depth for all loads.
    """

    def over(policy: str, other: str) -> float:
        return math.log(rows[policy]["goodput"] / rows[other]["goodput"])

    best = rows["roofline-budget"]["best_fixed"]
    return GapParts(
        load=over(best, depth),
        sequence=over("without-evidence", best),
        evidence=over("roofline-budget", "without-evidence"),
        not_learned=over("signal-ceiling", "roofline-budget"),
        not_knowable=over("clairvoyant", "signal-ceiling"),
    )


def main(
    jobs: Annotated[int, typer.Option(help="Cells at once.")] = 1,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = RESULTS,
) -> None:
    """Print the parts of the gap at every load."""
    try:
        verdicts = replayed("e2_signals", jobs=jobs, results=results)
    except (ValueError, OSError) as error:
        typer.echo(f"oracle_gap: {error}", err=True)
        raise typer.Exit(1) from None
    out = table_console()
    settings = dict(by_setting(verdicts.gains))
    for trace in dict.fromkeys(trace for trace, _, _ in settings):
        own = {setting: rows for setting, rows in settings.items() if setting[0] == trace}
        depth = one_depth(own)
        table = Table(
            title=f"{trace}: parts of the gap between {depth} for all loads and the clairvoyant, log %",
            title_justify="left",
            box=box.SIMPLE_HEAD,
        )
        for heading in (
            "in flight", "gap", "load", "sequence", "evidence", "not\nlearned", "not\nknowable", "had",
            "evidence\nbefore sequence", "matched length\nbefore sequence",
        ):  # fmt: skip
            table.add_column(heading, justify="right")
        for (_, load, _), rows in own.items():
            parts = split_gap(rows, depth)
            alone = [
                math.log(rows[name]["goodput"] / rows["load alone"]["goodput"])
                for name in ("without-sequence-effect", "matched length alone")
            ]
            had = f"{parts.had:+.1%}" + (f" ({parts.had / parts.gap:.0%})" if parts.gap > 0.005 else "")
            told = (f"{100 * value:+.1f}" for value in (*astuple(parts), *alone))
            columns = list(told)
            table.add_row(load, f"{100 * parts.gap:+.1f}", *columns[:5], had, *columns[5:])
        out.print(table)


if __name__ == "__main__":
    typer.run(main)
