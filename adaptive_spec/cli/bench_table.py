"""How a comparison of policies is laid out on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adaptive_spec.cli.comparison import Comparison

WIDTH_IN_FILES = 160  # where nobody's terminal sets one
PADDING = 2


@dataclass(slots=True, frozen=True)
class _Column:
    heading: str
    cells: list[str]
    rank: int  # the highest is the first to go where there is no room

    @property
    def width(self) -> int:
        return max(len(line) for cell in (self.heading, *self.cells) for line in cell.split("\n"))


def table_console() -> Console:
    """A console on stdout that gives tables room in files and pipes."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_IN_FILES)


def comparison_table(comparison: Comparison, width: int = WIDTH_IN_FILES) -> Table:
    """One row a policy; columns that don't fit into `width` are left out, the least telling first."""
    rows = [comparison.summary(policy) for policy in comparison.depths]
    best, reference = comparison.best_fixed, comparison.reference
    columns = [
        _Column("policy", [escape(row["policy"]) for row in rows], 0),
        _Column("decode\ntokens/s", [f"{row['decode_tokens_per_second']:.1f}" for row in rows], 1),
        _Column(
            "min to max",
            [f"{row['decode_tokens_per_second_min']:.1f} to {row['decode_tokens_per_second_max']:.1f}" for row in rows],
            8,
        ),
        _Column(f"x {reference}\n[95 %]", [_ratio(row, "ratio_to_reference", reference) for row in rows], 2),
        _Column(f"x {best}\n[95 %]", [_ratio(row, "ratio_to_best_fixed", best) for row in rows], 3),
        _Column("end to end\ntokens/s", [f"{row['end_to_end_tokens_per_second']:.1f}" for row in rows], 5),
        _Column(
            "TPOT ms\np50 / p95",
            [f"{_number(row['tpot_p50_ms'], '.1f')} / {_number(row['tpot_p95_ms'], '.1f')}" for row in rows],
            6,
        ),
        _Column("accepted", [_number(row["acceptance"], ".0%") for row in rows], 4),
        _Column("length", [_number(row["acceptance_length"], ".2f") for row in rows], 7),
        _Column(
            "drafted / verified\n/ accepted",
            [f"{row['drafted']:.0f} / {row['verified']:.0f} / {row['accepted']:.0f}" for row in rows],
            9,
        ),
    ]
    if best is None:
        columns = [column for column in columns if column.rank != 3]
    while len(columns) > 1 and sum(column.width + PADDING for column in columns) > width:
        columns.remove(max(columns, key=lambda column: column.rank))
    prompts = "" if comparison.category == "all" else f"{comparison.category}, "
    rounds = f"{comparison.rounds} round" + "s" * (comparison.rounds != 1)
    table = Table(
        title=f"{prompts}{comparison.concurrency} in flight, {rounds}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, PADDING, 0, 0),
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column.heading, justify="right" if column.rank else "left", no_wrap=True)
    for row, cells in zip(rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        table.add_row(*cells, style="bold" if row["policy"] == best else None)
    return table


def means_table(means: dict[str, dict[str, float]]) -> Table:
    """Geometric means over concurrencies, one row a policy, one column a category."""
    table = Table(title="decode tokens/s, geometric mean over concurrencies", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    for category in means:
        table.add_column(category, justify="right")
    for policy in next(iter(means.values())):
        table.add_row(escape(policy), *(f"{column[policy]:.1f}" for column in means.values()))
    return table


def _ratio(row: dict[str, Any], key: str, to: str | None) -> str:
    ratio = row[key]
    if ratio is None or row["policy"] == to:
        return "1"
    if ratio["low"] is None:
        return f"{ratio['value']:.3f}"
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _number(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
