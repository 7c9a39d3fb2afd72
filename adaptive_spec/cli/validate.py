"""`adaptive-spec validate`: check a tuning file without loading an engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from adaptive_spec.config import CostConfig, TuningConfig, TuningError
from adaptive_spec.cost import ModelGeometry, Profile
from adaptive_spec.tuning_file import Problem, TuningFile

EXAMPLES = """
Examples:

  adaptive-spec validate tuning.yaml

  adaptive-spec validate tuning.yaml --show

  adaptive-spec validate staging.yaml production.yaml --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate", epilog=EXAMPLES)(validate)


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Tuning files.")],
    show: Annotated[bool, typer.Option("--show", help="Print each tuning with all defaults filled in.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list on stdout.")] = False,
) -> None:
    """Check tuning files, and the files that they name; every mistake is told with its line and its remedy."""
    results = []
    for path in files:
        try:
            tuning = _load(path)
        except TuningError as error:
            results.append({"file": str(path), "valid": False, "errors": str(error).splitlines()})
        else:
            results.append({"file": str(path), "valid": True, "errors": [], "tuning": tuning.model_dump(mode="json")})
            if not as_json:
                typer.echo(
                    tuning.dump() if show else f"{path}: valid, {tuning.policy.name} up to depth {tuning.max_depth}"
                )
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        for result in results:
            for line in result["errors"]:  # type: ignore[attr-defined]
                print(line, file=sys.stderr)
    if not all(result["valid"] for result in results):
        raise typer.Exit(1)


def _load(path: Path) -> TuningConfig:
    """A tuning whose files can be read, too; TuningError if it can't serve."""
    tuning = TuningConfig.load(path)
    if problems := unusable_files(tuning.cost):
        raise TuningFile.read(path).error(problems)
    return tuning


def unusable_files(config: CostConfig) -> list[Problem]:
    """What is wrong with the files that the cost's section names, as an engine would find it when it starts."""
    readers: dict[str, Callable[[Path], object]] = {
        "file": Profile.from_file,
        "geometry_file": ModelGeometry.from_config,
    }
    problems = []
    for key, read in readers.items():
        path: Path | None = getattr(config, key)
        if path is None:
            continue
        try:
            read(path)
        except (ValueError, OSError) as error:
            message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            if not path.is_absolute():
                message += f" (a relative path begins in the working directory of whoever reads it; here: {Path.cwd()})"
            problems.append(Problem(("cost", key), f"can't be used: {message}"))
    return problems
