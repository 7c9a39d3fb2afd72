"""`adaptive-spec compare`: replay policies over traces, arrivals and machines, without a model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adaptive_spec.cli.bench_table import table_console
from adaptive_spec.cli.compare_table import gains_table, losses_table, settings_of
from adaptive_spec.cli.failure import CommandError, UsageError, failing
from adaptive_spec.cli.policy_argument import split_list

if TYPE_CHECKING:
    from adaptive_spec.replay.comparison import Finished
    from adaptive_spec.replay.experiment import Experiment
    from adaptive_spec.replay.verdicts import Verdicts

POLICIES = (
    "roofline-budget,acceptance-bandit,dynamic-sd,adaptive-verification,dspark-early-stop,turbospec,sglang-ema,"
    "trtllm-schedule,mlc-table,hf-heuristic,hf-confidence,banditspec-ucb,banditspec-exp3,best-by-load,signal-ceiling,"
    "clairvoyant"
)
BACKENDS = ("loky", "ray", "dask")

EXAMPLES = """
Examples:

  adaptive-spec compare experiment.yaml --jobs 2

  adaptive-spec compare --trace traces.parquet --machine machine.json --concurrency 1,8,64,256

  adaptive-spec compare --trace eagle.parquet --machine machine.json --policies roofline-budget,turbospec --json

An interrupted run goes on where it was. For a page with plots: adaptive-spec report FOLDER
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", epilog=EXAMPLES)(compare)


def compare(
    experiment: Annotated[Path | None, typer.Argument(help="Experiment file (YAML); or give flags.")] = None,
    trace: Annotated[list[Path] | None, typer.Option(help="Trace (Parquet); repeatable.")] = None,
    machine: Annotated[list[Path] | None, typer.Option(help="Machine, or step-cost curve (JSON); repeatable.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Requests in flight, several after commas.")] = None,
    rate: Annotated[str | None, typer.Option(help="Poisson arrivals: requests a second, several after commas.")] = None,
    azure: Annotated[
        list[Path] | None,
        typer.Option(help="Arrivals in Azure's CSV format; repeatable. With a file: in the place of those it names."),
    ] = None,
    policies: Annotated[str | None, typer.Option(help="Policies after commas.", show_default=False)] = None,
    depth: Annotated[int | None, typer.Option(min=1, max=64, help="K: most drafts a sequence and step [8].")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of every run [2000].")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Output tokens of every run.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds of every run, on the replay's clock.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds [1].")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of results [results/NAME].", show_default=False)
    ] = None,
    backend: Annotated[str, typer.Option(help="Of joblib: loky, ray or dask.")] = "loky",
    jobs: Annotated[int, typer.Option(help="Cells at once; -1: one for each processor.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Compare policies by exact replay of recorded texts."""
    flags: dict[str, Any] = {
        "--trace": trace, "--machine": machine, "--concurrency": concurrency, "--rate": rate, "--azure": azure,
        "--policies": policies, "--depth": depth, "--steps": steps, "--tokens": tokens, "--seconds": seconds,
        "--seeds": seeds,
    }  # fmt: skip
    if backend not in BACKENDS:
        raise UsageError(f"--backend is {backend!r}; there are {', '.join(BACKENDS)}")
    if jobs < 1 and jobs != -1:
        raise UsageError(f"--jobs is {jobs}; give a number from 1 up, or -1 for one for each processor")
    try:
        import joblib  # noqa: F401 - say before the work what is missing
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandError(
            f"needs the module {error.name}; install it with: pip install 'adaptive-spec[replay]'"
        ) from error
    asked = _experiment(experiment, flags)
    folder = output or Path("results") / (experiment.stem if experiment is not None else "comparison")
    console = Console(stderr=True)
    from adaptive_spec.replay.comparison import Comparison
    from adaptive_spec.replay.comparison_folder import write_record
    from adaptive_spec.replay.verdicts import Verdicts

    with failing("", usage=True):
        comparison = Comparison(asked, folder)
    with failing(""):
        finished = _run(comparison, backend, jobs, console)
        verdicts = Verdicts(finished, asked.bootstrap)
        written = [write_record(folder, asked, finished), *verdicts.write(folder)]
    if as_json:
        typer.echo(json.dumps(_json(asked, verdicts, folder, written, comparison.resumed), indent=2))
        return
    _print(asked, finished, verdicts)
    typer.echo(f"{len(finished)} cells, {comparison.resumed} of them from an earlier run; tables in {folder}")
    typer.echo(f"for a page with plots: adaptive-spec report {folder}")


def _experiment(path: Path | None, flags: dict[str, Any]) -> Experiment:
    """What is asked for, from a file or from flags."""
    from adaptive_spec.replay.experiment import Experiment

    given = [flag for flag, value in flags.items() if value]
    if path is not None:
        files: list[Path] = flags["--azure"] or []
        others = [flag for flag in given if flag != "--azure"]
        if others or len(files) > 1:
            flag = others[0] if others else "a second --azure"
            raise UsageError(f"{flag} belongs to a comparison without a file; write it into {path} instead")
        with failing("", usage=True):
            experiment = Experiment.load(path)
            return experiment.with_azure(files[0]) if files else experiment
    if not (flags["--trace"] and flags["--machine"]):
        raise UsageError("give an experiment file, or --trace and --machine")
    arrivals: list[dict[str, Any]] = []
    if flags["--concurrency"] or not (flags["--rate"] or flags["--azure"]):
        arrivals.append({"closed": _numbers("--concurrency", flags["--concurrency"] or "1,8,64,256", int)})
    if flags["--rate"]:
        arrivals.append({"poisson": _numbers("--rate", flags["--rate"], float)})
    arrivals += [{"azure": str(file)} for file in flags["--azure"] or []]
    bounds = {key: flags[f"--{key}"] for key in ("steps", "tokens", "seconds") if flags[f"--{key}"] is not None}
    data = {
        "policies": split_list(flags["--policies"] or POLICIES),
        "traces": [{"file": str(file)} for file in flags["--trace"]],
        "machines": [{"file": str(file)} for file in flags["--machine"]],
        "arrivals": arrivals,
        "max_depth": flags["--depth"] or 8,
        "seeds": flags["--seeds"] or 1,
        "run": bounds or {"steps": 2000},
    }
    with failing("", usage=True):
        return Experiment.parse(data, "command line")


def _numbers(flag: str, text: str, kind: type[int] | type[float]) -> list[int | float]:
    try:
        return [kind(word) for word in split_list(text)]
    except ValueError as error:
        raise UsageError(f"{flag} is {text!r}; give numbers after commas") from error


def _run(comparison: Any, backend: str, jobs: int, console: Console) -> list[Finished]:
    from adaptive_spec.replay.comparison import Progress as Told

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("cells", total=0)
        totals = [0]

        def total(cells: int) -> None:
            totals[0] += cells
            bar.update(task, total=totals[0])

        finished: list[Finished] = comparison.run(backend, jobs, Told(total, lambda cell: bar.advance(task)))
        return finished


def _print(asked: Experiment, finished: list[Finished], verdicts: Verdicts) -> None:
    from adaptive_spec.replay.contestant import confidence_note

    out = table_console()
    synthetic = {item.cell.trace for item in finished if item.result["synthetic"]}
    closed = {
        item.cell.arrivals for item in finished if json.loads(item.cell.made_from)["arrivals"]["kind"] == "closed"
    }
    note = confidence_note(item.contestant for item in finished)
    for setting in settings_of(verdicts.gains):
        out.print(gains_table(verdicts.gains, setting, setting[1] in closed, setting[0] in synthetic, note))
    if verdicts.duels:
        out.print(losses_table(verdicts.losses, len(verdicts.duels)))
    faults = sum(row["faults"] for row in verdicts.runs)
    if faults:
        out.print(f"policies failed in {faults:.0f} decisions; see the column faults of runs.csv", style="red")
    level, texts = asked.bootstrap.level, asked.split.training_share
    out.print(
        f"intervals: {level:.0%}, paired over the same texts and seeds, bootstrap by text; the best fixed depth is "
        f"chosen in hindsight; scored on {1 - texts:.0%} of the texts, the others are for peers that train",
        style="dim",
        soft_wrap=True,
    )


def _json(asked: Experiment, verdicts: Verdicts, folder: Path, written: list[Path], resumed: int) -> dict[str, Any]:
    told = {
        "title": asked.title,
        "folder": str(folder),
        "files": [str(path) for path in written],
        "cells": len(verdicts.runs),
        "resumed": resumed,
        **verdicts.tables(),
        "losses": verdicts.losses,
    }
    return dict(_plain(told))


def _plain(value: Any) -> Any:
    """With null in the place of what JSON can't hold."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
