"""`adaptive-spec validate`: check a tuning file without loading an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from adaptive_spec.config import TuningConfig, TuningError

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
    """Check tuning files; every mistake is told with its line and its remedy."""
    results = []
    for path in files:
        try:
            tuning = TuningConfig.load(path)
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
