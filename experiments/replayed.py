"""Replayed: a shipped experiment file, run or taken up from an earlier run, and what its cells say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adaptive_spec.replay.comparison import Comparison
from adaptive_spec.replay.comparison import Progress as Told
from adaptive_spec.replay.experiment import Experiment
from adaptive_spec.replay.verdicts import Verdicts

FOLDER = Path(__file__).parent
RESULTS = Path("results")

Row = dict[str, Any]
Setting = tuple[str, str, str]  # trace, arrivals, machine


def replayed(name: str, *, jobs: int = 1, results: Path = RESULTS) -> Verdicts:
    """Run an experiment that the package ships.

    Parameters
    ----------
    name : str
        Of its file, without the ending.
    jobs : int
        Cells at once.
    results : Path
        Where ``adaptive-spec compare`` leaves its results: what has been run by it is not run again.

    Raises
    ------
    ValueError
        If the experiment can't be run; the message names what is wrong.
    """
    experiment = Experiment.load(FOLDER / f"{name}.yaml")
    comparison = Comparison(experiment, results / name)
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, total = bar.add_task(name, total=0), 0

        def more(cells: int) -> None:
            nonlocal total
            total += cells
            bar.update(task, total=total)

        finished = comparison.run(jobs=jobs, progress=Told(more, lambda cell: bar.advance(task)))
    return Verdicts(finished, experiment.bootstrap)


def by_setting(rows: list[Row], machine: str | None = None) -> Iterator[tuple[Setting, Mapping[str, Row]]]:
    """The rows of each setting, by policy; of one machine alone if it is named."""
    settings: dict[Setting, dict[str, Row]] = {}
    for row in rows:
        settings.setdefault((row["trace"], row["arrivals"], row["machine"]), {})[row["policy"]] = row
    for setting, found in settings.items():
        if machine is None or setting[2] == machine:
            yield setting, found
