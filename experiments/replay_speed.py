"""How fast a replay is, and whether its memory grows: CPU seconds of 2,000 steps of 256 sequences on one core.

    python -m adaptive_spec.experiments.replay_speed [--json]

Seconds are of this process's CPU, so that what else runs on the machine counts little. The policy's own work is in
them: a replay makes every decision as an engine would have it made. Memory is what the process holds after a fifth of
the steps and at their end.
"""

from __future__ import annotations

import gc
import json
import resource
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.config import TuningConfig
from adaptive_spec.policy_argument import tuning_for
from adaptive_spec.replay import ClosedConcurrency, Machine, Simulation, Trace, TunedController

HERE = Path(__file__).parent
DEPTH = 8


def measure(trace: Trace, machine: Machine, policy: str, sequences: int, steps: int) -> dict[str, float]:
    """CPU seconds of a run, tokens that it replayed, and megabytes by which it grew after its first fifth."""
    factory = TunedController(tuning_for(policy, TuningConfig(max_depth=DEPTH)))
    simulation = Simulation(trace, factory, ClosedConcurrency(sequences), machine)
    tokens, early = 0, 0.0
    began = time.process_time()
    for number in range(steps):
        if number == steps // 5:
            early = resident_mb()
        report = simulation.step()
        assert report is not None  # a closed system never ends
        tokens += report.num_tokens
    seconds = time.process_time() - began
    return {"cpu_seconds": seconds, "tokens": tokens, "grown_mb": resident_mb() - early}


def resident_mb() -> float:
    """Memory that this process holds now, in 10^6 bytes."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def main(
    trace: Annotated[Path, typer.Option(help="Trace (Parquet).")] = HERE / "traces" / "corpus_ngram.parquet",
    machine: Annotated[Path, typer.Option(help="Machine (JSON).")] = HERE / "machines" / "b300.json",
    policy: Annotated[list[str] | None, typer.Option(help="Policies [ours]; repeatable.")] = None,
    sequences: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 256,
    steps: Annotated[int, typer.Option(min=10, help="Of the run.")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time a replay, and weigh it."""
    texts, place = Trace.load(trace), Machine.load(machine)
    names = policy or ["roofline-budget", "acceptance-bandit"]
    measure(texts, place, names[0], sequences, 20)  # what is only made once is made
    rows = {name: measure(texts, place, name, sequences, steps) for name in names}
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(title=f"replay of {steps:,} steps of {sequences} sequences")
    for column in ("policy", "CPU seconds", "µs a step", "tokens", "grown, MB"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['cpu_seconds']:.2f}",
            f"{row['cpu_seconds'] / steps * 1e6:,.0f}",
            f"{row['tokens']:,.0f}",
            f"{row['grown_mb']:+.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
