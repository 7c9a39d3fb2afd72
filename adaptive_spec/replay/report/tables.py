"""Tables of a report: losses, all results, settings and versions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from adaptive_spec.replay.report.view import BEST, View
from adaptive_spec.replay.verdicts import Row
from adaptive_spec.tuning_file import write_yaml


def losses(view: View) -> str:
    """The duels in which a policy under test was behind, the worst first."""
    rows = view.verdicts.losses
    parts = ["<section><h2>Losses</h2>"]
    if not rows:
        return "".join([*parts, "<p>In no duel was a policy under test behind.</p></section>"])
    parts.append(
        f'<p class="caption">All {len(rows)} duels in which a policy under test was behind, the worst first; marked '
        "are those that the interval confirms.</p>"
    )
    cells = [
        [
            row["policy"],
            row["rival"] + (" (best fixed)" if row["rival_is_best_fixed"] else ""),
            _Number(_bracket(row, "ratio"), "bad" if row["verdict"] == "loss" else ""),
            row["trace"] + (" (synthetic)" if row["synthetic"] else ""),
            row["arrivals"],
            row["machine"],
        ]
        for row in rows
    ]
    head = ["policy", "behind", _Number("ratio [interval]"), "trace", "arrivals", "machine"]
    return "".join([*parts, _table(head, cells), "</section>"])


def results(view: View) -> str:
    """Every policy in every setting, to be unfolded."""
    parts = ["<section><h2>All results</h2>"]
    if view.open:
        parts.append('<p class="caption">Where requests come by themselves, ratios are of tokens/s per user.</p>')
    head = ["policy", _Number("tokens/s"), _Number(f"x {BEST}"), _Number("x none"), _Number("tokens/s per user"),
            _Number("tokens a step"), _Number("depth"), _Number("off"), _Number("TTFT p95 ms"), _Number("TPOT p95 ms"),
            _Number("kept promises")]  # fmt: skip
    for panel in view.panels:
        for load in view.loads:
            rows = [view.gain(panel, load, name) for name in view.kinds]
            rows.sort(key=lambda row: -row[row["measure"]])
            cells = [_result(row) for row in rows]
            where = f"{load} at once" if load in view.concurrency else load
            tag = '<span class="tag">synthetic</span>' if panel.synthetic else ""
            parts.append(
                f"<details><summary>{escape(f'{panel}, {where}')}{tag}</summary>{_table(head, cells)}</details>"
            )
    return "".join([*parts, "</section>"])


def _result(row: Row) -> list[Any]:
    ratio = row["ratio_to_best_fixed"]
    mark = "good" if row["ratio_to_best_fixed_low"] > 1 else "bad" if row["ratio_to_best_fixed_high"] < 1 else ""
    numbers = [
        _Number(f"{row['goodput']:,.0f}"),
        _Number(_bracket(row, "ratio_to_best_fixed"), mark if math.isfinite(ratio) else ""),
        _Number(_bracket(row, "ratio_to_none")),
        _Number(f"{row['tokens_per_second_per_user']:,.1f}"),
        _Number(f"{row['acceptance_length']:.2f}"),
        _Number(f"{row['mean_depth']:.2f}"),
        _Number(f"{row['off_share']:.0%}"),
    ]
    numbers += [_Number("-" if math.isnan(row[n]) else f"{1e3 * row[n]:,.1f}") for n in ("ttft_p95", "tpot_p95")]
    return [row["policy"], *numbers, _Number("-" if math.isnan(row["attainment"]) else f"{row['attainment']:.0%}")]


class _Number(str):
    """A cell that stands at the right, in a colour."""

    mark: str

    def __new__(cls, text: str, mark: str = "") -> _Number:
        made = super().__new__(cls, text)
        made.mark = mark
        return made


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def cell(kind: str, text: str) -> str:
        if isinstance(text, _Number):
            return f'<{kind} class="n {text.mark}">{escape(text)}</{kind}>'
        return f"<{kind}>{escape(text)}</{kind}>"

    body = "".join("<tr>" + "".join(cell("td", text) for text in row) + "</tr>" for row in rows)
    heading = "".join(cell("th", text) for text in head)
    return f'<div class="scroll"><table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>'


def _bracket(row: Row, name: str) -> str:
    return f"{row[name]:.3f} [{row[f'{name}_low']:.3f}, {row[f'{name}_high']:.3f}]"


def settings(view: View) -> str:
    """From what all this was made."""
    record = view.record
    told: dict[str, str] = {}
    for item in record.finished:
        told[f"trace {item.cell.trace}"] = str(item.result["trace_told"])
        told[f"machine {item.cell.machine}"] = str(item.result["source"]) or "source not given"
    share = record.experiment["split"]["training_share"]
    told["scored on"] = f"{1 - share:.0%} of the texts; the others are for peers that train"
    told |= record.versions
    pairs = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in told.items())
    given = {key: value for key, value in record.experiment.items() if key not in ("title", "description")}
    faults = sum(row["faults"] for row in view.verdicts.runs)
    failed = f'<p class="bad">Policies failed in {faults:.0f} decisions.</p>' if faults else ""
    return (
        f"<section><h2>Settings and versions</h2>{failed}<dl>{pairs}</dl><details><summary>The experiment file, "
        f"with all defaults</summary><pre>{escape(write_yaml(_plain(given)))}</pre></details></section>"
    )


def _plain(data: Any) -> Any:
    """Without what was left at nothing."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items() if value not in (None, {}, "")}
    return [_plain(item) for item in data] if isinstance(data, list) else data
