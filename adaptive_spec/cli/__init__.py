"""The `adaptive-spec` command: generate, bench, validate, record, compare, report."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from adaptive_spec import __version__
from adaptive_spec.cli import bench, compare, generate, record, report, validate
from adaptive_spec.cli.failure import CommandError

app = typer.Typer(
    name="adaptive-spec",
    help="Speculative decoding in which every sequence gets its own depth at every step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
validate.register(app)
generate.register(app)
bench.register(app)
record.register(app)
compare.register(app)
report.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adaptive-spec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Speculative decoding in which every sequence gets its own depth at every step."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 (failed) or 2 (used wrongly)."""
    try:
        app(list(sys.argv[1:] if arguments is None else arguments), prog_name="adaptive-spec")
    except CommandError as error:
        print(f"adaptive-spec: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as leave:  # typer reports its own usage errors, and always leaves this way
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    return 0
