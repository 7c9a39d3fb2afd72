"""Comparison: the cells of an experiment, run through joblib and kept in a folder, so that a run can be resumed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from adaptive_spec.replay.cell import Cell, run_cell
from adaptive_spec.replay.comparison_plan import ComparisonPlan
from adaptive_spec.replay.contestant import Contestant, with_table
from adaptive_spec.replay.experiment import Experiment
from adaptive_spec.replay.gain_split import load_table
from adaptive_spec.replay.metrics import LoadBucket, RunMetrics

Backend = Literal["loky", "ray", "dask"]
BACKENDS = ("loky", "ray", "dask")
CELLS = "cells"


class ComparisonError(ValueError):
    """A comparison that can't be run, or went wrong; the message says where."""


@dataclass
class Finished:
    """A cell and what it came to."""

    cell: Cell
    contestant: Contestant
    result: dict[str, Any]


@dataclass
class Progress:
    """Who wants to know how far a comparison is: `total` is called once a phase, `done` after each cell."""

    total: Callable[[int], None] = field(default=lambda cells: None)
    done: Callable[[Cell], None] = field(default=lambda cell: None)


class Comparison:
    """Runs an experiment, and keeps every finished cell.

    Parameters
    ----------
    experiment : Experiment
    folder : Path
        Finished cells lie in its folder ``cells``, each named by the hash of all that it was made from, the code
        included: what is there is not run again, and whatever has changed has another name.
    """

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment = experiment
        self.folder = folder
        self.plan = ComparisonPlan(experiment)
        self.resumed = 0

    def run(self, backend: Backend = "loky", jobs: int = 1, progress: Progress | None = None) -> list[Finished]:
        """Run what isn't finished, and return all cells in the plan's order.

        Parameters
        ----------
        backend : {"loky", "ray", "dask"}
            Of joblib; with one job everything runs in this process. The numbers are the same.
        jobs : int
            At once; -1 for as many as there are processors.
        progress : Progress, optional

        Raises
        ------
        ComparisonError
            If the backend isn't installed, or cells failed; those that didn't are kept.
        """
        progress = progress or Progress()
        (self.folder / CELLS).mkdir(parents=True, exist_ok=True)
        self.resumed = 0
        finished = self._phase(self.plan.independent, backend, jobs, progress)
        for contestant in self.plan.tabled:
            finished += self._by_load(contestant, finished, backend, jobs, progress)
        order = {c.name: number for number, c in enumerate(self.plan.contestants)}
        settings = {(t.name, load.name, m.name): i for i, (t, load, m) in enumerate(self.plan.settings())}
        finished.sort(key=lambda f: (
            settings[f.cell.trace, f.cell.arrivals, f.cell.machine], order[f.cell.policy], f.cell.seed
        ))  # fmt: skip
        return finished

    def _phase(
        self, contestants: Sequence[Contestant], backend: Backend, jobs: int, progress: Progress
    ) -> list[Finished]:
        return self._cells(self.plan.cells(contestants), {c.name: c for c in contestants}, backend, jobs, progress)

    def _by_load(
        self, contestant: Contestant, fixed: Sequence[Finished], backend: Backend, jobs: int, progress: Progress
    ) -> list[Finished]:
        """Run the best uniform depth by load: a table for each trace and machine, out of its runs of fixed depths."""
        cells: list[Cell] = []
        for trace in self.plan.traces:
            for machine in self.plan.machines:
                own = [f for f in fixed if (f.cell.trace, f.cell.machine) == (trace.name, machine.name)]
                runs: dict[int, list[RunMetrics]] = {}
                for item in own:
                    if item.contestant.depth is not None:
                        runs.setdefault(item.contestant.depth, []).append(metrics_of(item.result))
                found = with_table(contestant, load_table(runs))
                for load in self.plan.loads:
                    for seed in self.experiment.seeds:
                        cells.append(self.plan.cell(found, trace, load, machine, seed))
        return self._cells(cells, {contestant.name: contestant}, backend, jobs, progress)

    def _cells(
        self, cells: list[Cell], contestants: dict[str, Contestant], backend: Backend, jobs: int, progress: Progress
    ) -> list[Finished]:
        results: dict[str, dict[str, Any]] = {}
        progress.total(len(cells))
        waiting: dict[str, Cell] = {}
        for cell in cells:
            known = results.get(cell.key) or self._read(cell.key)
            if known is not None:
                results[cell.key] = known
                self.resumed += 1
                progress.done(cell)
            elif cell.key in waiting:
                progress.done(cell)
            else:
                waiting[cell.key] = cell
        failures: list[str] = []
        for key, result in run_all(list(waiting.values()), backend, jobs):
            if "error" in result:
                failures.append(f"{waiting[key]}: {result['error']}")
            else:
                self._write(key, result)
                results[key] = result
            progress.done(waiting[key])
        if failures:
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            raise ComparisonError(f"{failures[0]}{more}; finished cells are kept in {self.folder / CELLS}")
        return [Finished(cell, contestants[cell.policy], results[cell.key]) for cell in cells]

    # ---------------------------------------------------------------- the folder

    def _path(self, key: str) -> Path:
        return self.folder / CELLS / f"{key}.json"

    def _read(self, key: str) -> dict[str, Any] | None:
        try:
            read = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there, or damaged: it is run
            return None
        return read if isinstance(read, dict) and "row" in read else None

    def _write(self, key: str, result: dict[str, Any]) -> None:
        write_whole(self._path(key), json.dumps(result))


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def metrics_of(result: dict[str, Any]) -> RunMetrics:
    """What a cell's result says of goodput and load, as the split of gains takes it."""
    row = result["row"]
    return RunMetrics(
        tokens=row["tokens"],
        seconds=row["seconds"],
        off_saving_seconds=row["off_saving_seconds"],
        by_load={int(number): LoadBucket(**bucket) for number, bucket in result["loads"].items()},
    )


# -------------------------------------------------------------------- joblib


def run_all(cells: Sequence[Cell], backend: Backend, jobs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run cells, and yield each with its key as soon as it is finished; a cell that failed yields an ``error``."""
    if not cells:
        return
    try:
        import joblib
    except ModuleNotFoundError as error:
        raise ComparisonError("needs joblib; install it with: pip install 'adaptive-spec[replay]'") from error
    jobs = joblib.cpu_count() if jobs == -1 else jobs
    if jobs == 1 and backend == "loky":
        yield from map(_run, cells)
        return
    with _Cluster(backend, jobs), joblib.parallel_config(backend=backend, n_jobs=jobs):
        for part in _portions(cells, backend, jobs):
            yield from joblib.Parallel(return_as="generator_unordered" if backend == "loky" else "list", batch_size=1)(
                joblib.delayed(_run)(cell) for cell in part
            )


def _portions(cells: Sequence[Cell], backend: Backend, jobs: int) -> Iterable[Sequence[Cell]]:
    """All at once where joblib hands results back one by one; else in portions, so that an end loses little."""
    size = len(cells) if backend == "loky" else 8 * jobs
    return (cells[start : start + size] for start in range(0, len(cells), size))


class _Cluster:
    """What a backend needs around its work."""

    def __init__(self, backend: Backend, jobs: int) -> None:
        self.backend, self.jobs = backend, jobs
        self._client: Any = None

    def __enter__(self) -> None:
        try:
            if self.backend == "ray":
                from ray.util.joblib import register_ray

                register_ray()
            elif self.backend == "dask":
                import distributed

                cluster: Any = distributed  # untyped
                try:
                    cluster.get_client()
                except ValueError:  # no cluster of the user's own
                    self._client = cluster.Client(n_workers=self.jobs, threads_per_worker=1, dashboard_address=None)
        except ModuleNotFoundError as error:
            package = {"ray": "ray[default]", "dask": "distributed"}[self.backend]
            raise ComparisonError(
                f"backend {self.backend} needs the module {error.name}; install it with: pip install '{package}', or "
                "use --backend loky"
            ) from error

    def __exit__(self, *error: object) -> None:
        if self._client is not None:
            self._client.close()


def _run(cell: Cell) -> tuple[str, dict[str, Any]]:
    try:
        return cell.key, run_cell(cell.made_from, dict(cell.files))
    except (ValueError, KeyError, OSError, ArithmeticError, IndexError, TypeError, AssertionError) as error:
        return cell.key, {"error": f"{type(error).__name__}: {error}"}
