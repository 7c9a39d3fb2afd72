"""What each part of roofline-budget brings: experiment E7 as one table.

    python -m adaptive_spec.experiments.ablation_table [--jobs 2] [--json]

Runs `e7_ablation.yaml`, or takes up what `adaptive-spec compare` left of it. Told is the goodput of the whole policy
over that of the policy without the part, less one: what the part brings. Pairs meet the same texts and seeds; a figure
whose interval holds 0 says nothing, and is marked with a tilde. A negative one is a part that costs more than it
brings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.experiments.replayed import RESULTS, Row, replayed

NAME = "e7_ablation"
OWN = "roofline-budget"


def cell(row: Row) -> str:
    """What the part brings, in per cent."""
    told = f"{100 * (row['ratio'] - 1):+.1f} %"
    return told if row["verdict"] != "no difference" else f"~ {told}"


def main(
    results: Annotated[Path, typer.Option(help="Folder of results.")] = RESULTS,
    jobs: Annotated[int, typer.Option(help="Cells at once.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what each part of roofline-budget brings."""
    verdicts = replayed(NAME, jobs=jobs, results=results)
    parts = [row["policy"] for row in verdicts.gains if row["kind"] == "ablation"]
    rows = [row for row in verdicts.duels if row["policy"] == OWN and row["rival"] in parts]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    machines = dict.fromkeys(row["machine"] for row in rows)
    loads = list(dict.fromkeys(row["arrivals"] for row in rows))
    for machine in machines:
        table = Table(title=f"{machine}: what each part of {OWN} brings, by sequences in flight")
        table.add_column("policy without the part")
        for load in loads:
            table.add_column(load, justify="right")
        for part in dict.fromkeys(parts):
            found = {row["arrivals"]: row for row in rows if (row["machine"], row["rival"]) == (machine, part)}
            table.add_row(part, *(cell(found[load]) for load in loads))
        Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
