"""ComparisonFolder: what a comparison leaves behind, and how a report reads it again."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from adaptive_spec import __version__
from adaptive_spec.replay.cell import Cell, code_digest
from adaptive_spec.replay.comparison import CELLS, ComparisonError, Finished, write_whole
from adaptive_spec.replay.contestant import Contestant
from adaptive_spec.replay.experiment import BootstrapEntry, Experiment

NAME = "comparison.json"
SCHEMA = 1


@dataclass(frozen=True)
class ComparisonRecord:
    """A finished comparison.

    Attributes
    ----------
    title, description : str
    finished : list of Finished
        In the plan's order.
    bootstrap : BootstrapEntry
    experiment : dict
        The settings, as plain data.
    versions : dict
        Of what made it.
    """

    title: str
    description: str
    finished: list[Finished]
    bootstrap: BootstrapEntry
    experiment: dict[str, Any]
    versions: dict[str, str]


def write_record(folder: Path, experiment: Experiment, finished: Sequence[Finished]) -> Path:
    """Write which cells a comparison consists of, and from what it was made; return the file's path."""
    contestants = {item.contestant.name: item.contestant for item in finished}
    told = {
        "schema": SCHEMA,
        "title": experiment.title,
        "description": experiment.description,
        "versions": versions(),
        "experiment": experiment.model_dump(mode="json"),
        "contestants": [{"name": c.name, "kind": c.kind, "spec": dict(c.spec)} for c in contestants.values()],
        "cells": [
            {
                "policy": item.cell.policy,
                "trace": item.cell.trace,
                "arrivals": item.cell.arrivals,
                "machine": item.cell.machine,
                "seed": item.cell.seed,
                "key": item.cell.key,
                "made_from": json.loads(item.cell.made_from),
            }
            for item in finished
        ],
    }
    write_whole(folder / NAME, json.dumps(told, indent=1) + "\n")
    return folder / NAME


def read_record(folder: Path) -> ComparisonRecord:
    """Read a comparison's folder.

    Raises
    ------
    ComparisonError
        If it holds no comparison, or a damaged, unfinished or newer one.
    """
    path = folder / NAME
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ComparisonError(
            f"{folder}: holds no finished comparison (no {NAME}); make one with: adaptive-spec compare"
        ) from error
    except ValueError as error:
        raise ComparisonError(
            f"{path}: damaged ({error}); run adaptive-spec compare again, it goes on quickly"
        ) from error
    schema = told.get("schema") if isinstance(told, dict) else None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ComparisonError(f"{path}: schema {schema!r} isn't one that this version reads; upgrade adaptive-spec")
    contestants = {c["name"]: Contestant(c["name"], c["kind"], c["spec"]) for c in told["contestants"]}
    finished = []
    for item in told["cells"]:
        made_from = json.dumps(item["made_from"], sort_keys=True, separators=(",", ":"))
        cell = Cell(item["policy"], item["trace"], item["arrivals"], item["machine"], item["seed"], made_from)
        try:
            result = json.loads((folder / CELLS / f"{item['key']}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ComparisonError(
                f"{folder}: the cell {item['key']} ({cell}) is missing or damaged; run adaptive-spec compare again"
            ) from error
        finished.append(Finished(cell, contestants[cell.policy], result))
    return ComparisonRecord(
        title=told["title"],
        description=told["description"],
        finished=finished,
        bootstrap=BootstrapEntry(**told["experiment"]["bootstrap"]),
        experiment=told["experiment"],
        versions=told["versions"],
    )


def versions() -> dict[str, str]:
    """Of everything that the numbers may depend on."""
    found = {"adaptive-spec": __version__, "code": code_digest(), "python": platform.python_version()}
    for name in ("numpy", "scikit-learn", "pyarrow", "joblib"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {"machine": platform.machine(), "system": sys.platform}
