"""`adaptive-spec report`: one self-contained HTML page of a finished comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from adaptive_spec.cli.failure import UsageError, failing

EXAMPLES = """
Examples:

  adaptive-spec report results/quick

  adaptive-spec report results/quick --output page.html
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", epilog=EXAMPLES)(report)


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that adaptive-spec compare wrote.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write [FOLDER/report.html].", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Write one HTML page with plots, readable without a network, in the dark and on a phone."""
    target = output or folder / "report.html"
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; adaptive-spec compare makes one")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: there is no folder {target.parent}; make it first")
    with failing(""):
        from adaptive_spec.replay.comparison_folder import read_record
        from adaptive_spec.replay.report.page import render

        page = render(read_record(folder))
        target.write_text(page, encoding="utf-8")
    size = len(page.encode())
    if as_json:
        typer.echo(json.dumps({"file": str(target), "bytes": size}, indent=2))
    else:
        typer.echo(f"{target}: {size / 1e3:,.0f} kB, needs nothing else")
