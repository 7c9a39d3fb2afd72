"""How an offline comparison is laid out on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

Row = dict[str, Any]

KINDS = {"ours": "bold", "ablation": "bold", "yardstick": "dim italic"}
LISTED = 12  # losses that are printed


def settings_of(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Every trace, arrivals and machine, in order, each once."""
    return list(dict.fromkeys((row["trace"], row["arrivals"], row["machine"]) for row in rows))


def gains_table(
    gains: Sequence[Row], setting: tuple[str, str, str], closed: bool, synthetic: bool, note: str = ""
) -> Table:
    """One row a policy, the best first: goodput, its ratios to the best fixed depth and to none, how it came about.

    Parameters
    ----------
    setting : tuple of str
        Trace, arrivals and machine.
    closed, synthetic : bool
        Of the arrivals, and of the trace.
    note : str
        What must be said beneath.
    """
    trace, arrivals, machine = setting
    rows = [row for row in gains if (row["trace"], row["arrivals"], row["machine"]) == setting]
    load = f"{arrivals} in flight" if closed else arrivals
    mark = " (synthetic acceptance)" if synthetic else ""
    measure = rows[0]["measure"]
    judged = "" if measure == "goodput" else "; ratios of tokens/s per user"
    table = Table(
        title=f"{trace}{mark} on {machine}, {load}{judged}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        caption=escape(note) or None, caption_justify="left",
    )  # fmt: skip
    table.add_column("policy", no_wrap=True)
    for heading in (
        "tokens/s", f"x {rows[0]['best_fixed']} (best fixed)\n[interval]", "x none\n[interval]", "tokens/s\nper user",
        "tokens\na step", "mean\ndepth", "off",
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: -row[measure]):
        table.add_row(
            escape(row["policy"]),
            f"{row['goodput']:,.0f}",
            interval(row, "ratio_to_best_fixed"),
            interval(row, "ratio_to_none"),
            f"{row['tokens_per_second_per_user']:,.1f}",
            f"{row['acceptance_length']:.2f}",
            f"{row['mean_depth']:.2f}",
            f"{row['off_share']:.0%}",
            style=KINDS.get(row["kind"]),
        )
    return table


def losses_table(losses: Sequence[Row], duels: int) -> Table:
    """Where one of ours was behind a rival, the worst first."""
    sure = sum(row["verdict"] == "loss" for row in losses)
    title = f"losses: behind in {len(losses)} of {duels} duels, in {sure} of them beyond the interval"
    if len(losses) > LISTED:
        title += f"; the {LISTED} worst"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("policy", "behind", "ratio [interval]", "trace", "arrivals", "machine"):
        table.add_column(heading, justify="right" if "ratio" in heading else "left")
    for row in losses[:LISTED]:
        rival = row["rival"] + (" (best fixed)" if row["rival_is_best_fixed"] else "")
        table.add_row(
            escape(row["policy"]), escape(rival), interval(row, "ratio"),
            escape(row["trace"] + (" (synthetic)" if row["synthetic"] else "")),
            escape(row["arrivals"]), escape(row["machine"]), style="red" if row["verdict"] == "loss" else None,
        )  # fmt: skip
    return table


def interval(row: Row, name: str) -> str:
    """An estimate and its interval."""
    return f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"
