"""Figures over the load: goodput, gain, the frontier of throughput and interactivity, and depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from adaptive_spec.replay.report.chart import Chart, Scale, spanning
from adaptive_spec.replay.report.view import BEST, Panel, View
from adaptive_spec.replay.verdicts import Row


def goodput(view: View, panel: Panel) -> str:
    """Tokens per second against concurrency."""
    return _sweep(view, panel, "goodput", "tokens/s", lambda values: spanning(values, "log"), bands=True)


def gain(view: View, panel: Panel) -> str:
    """Goodput over that of the best fixed depth in hindsight, paired."""
    return _sweep(view, panel, "ratio_to_best_fixed", "goodput / best fixed depth", spanning, bands=True, ratio=True)


def _rows(view: View, panel: Panel, name: str) -> list[tuple[int, Row]]:
    pick: Callable[[str], Row] = (
        (lambda load: view.best(panel, load)) if name == BEST else (lambda load: view.gain(panel, load, name))
    )
    return [(view.concurrency[load], pick(load)) for load in view.closed]


def _sweep(
    view: View,
    panel: Panel,
    key: str,
    title: str,
    scale: Callable[[list[float]], Scale],
    *,
    bands: bool,
    ratio: bool = False,
) -> str:
    series = {
        name: [(float(x), row[key], row[f"{key}_low"], row[f"{key}_high"]) for x, row in _rows(view, panel, name)]
        for name in [*view.drawn, BEST]
    }
    loads = [view.concurrency[load] for load in view.closed]
    shown = [name for name in series if view.style(name) != "quiet" and not (ratio and name == BEST)]
    values = [value for name in shown for _, *triple in series[name] for value in triple]
    if ratio:  # far below, nothing is to be told apart
        values = [max(value, 0.55) for value in values] + [1.02]
    chart = Chart(_load_scale(loads), scale(values), "sequences at once", title, x_ticks=loads)
    if ratio:
        chart.rule(1.0)
    for name, points in series.items():
        style = view.style(name)
        if ratio and name == BEST:
            continue
        if bands and name in view.ours[:2] and style != "quiet":
            chart.band([(x, low, high) for x, _, low, high in points], f"band {style}")
        chart.line([(x, y) for x, y, _, _ in points], f"line {style}", name)
        if style != "quiet":
            chart.label(name, style, points[-1][0], points[-1][1])
    if ratio:
        chart.label(BEST, "ink", max(loads), 1.0)
    return chart.svg(f"{title} against concurrency, {panel}")


def _load_scale(loads: Sequence[float]) -> Scale:
    low, high = min(loads), max(loads)
    return Scale(low / 1.15, high * 1.15, "log") if low < high else Scale(low / 2, high * 2, "log")


def frontier(view: View, panel: Panel) -> str:
    """Tokens per second of one user against those of the machine, one point a concurrency."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name in [*view.drawn, BEST]:
        rows = _rows(view, panel, name)
        series[name] = [(row["tokens_per_second_per_user"], row["goodput"]) for _, row in rows]
    shown = [point for name, points in series.items() if view.style(name) != "quiet" for point in points]
    x, y = spanning([p[0] for p in shown], "log"), spanning([p[1] for p in shown], "log")
    chart = Chart(x, y, "tokens/s of one user", "tokens/s of the machine", labelled=False)
    for name, points in series.items():
        chart.line(points, f"line {view.style(name)}", name)
    return chart.svg(f"Throughput against interactivity, {panel}")


def depth(view: View, panel: Panel) -> str:
    """Mean depth against the number of sequences that decode."""
    names = [name for name in view.highlighted if view.kinds[name] != "fixed"]
    closed = len(view.closed) > 1
    series = {name: _closed_depths(view, panel, name) if closed else _depths(view, panel, name) for name in names}
    loads = [max(1.0, x) for points in series.values() for x, _ in points] or [1.0]
    deepest = max((y for points in series.values() for _, y in points), default=1.0)
    low, high = min(loads), max(loads)
    ticks = [2.0**i for i in range(0, 14) if low / 1.15 <= 2.0**i <= high * 1.15]
    chart = Chart(_load_scale([low, high]), Scale(0.0, max(1.0, deepest * 1.08)), "sequences that decode", "mean depth",
                  x_ticks=ticks or None)  # fmt: skip
    for name in reversed(list(series)):
        points = series[name]
        if points:
            chart.line(points, f"line {view.style(name)}", name)
            chart.label(name, view.style(name), *points[-1])
    return chart.svg(f"Mean depth against load, {panel}")


def _closed_depths(view: View, panel: Panel, name: str) -> list[tuple[float, float]]:
    rows = [view.gain(panel, load, name) for load in view.closed]
    return [(row["mean_sequences"], row["mean_depth"]) for row in rows]


def _depths(view: View, panel: Panel, name: str) -> list[tuple[float, float]]:
    """By buckets of load, over all arrivals; loads of which there were hardly any steps say little."""
    buckets: dict[int, list[float]] = {}
    for load in view.loads:
        for result in view.standings(panel, load)[name].runs.values():
            for number, bucket in result["loads"].items():
                sums = buckets.setdefault(int(number), [0.0, 0.0, 0.0])
                for i, key in enumerate(("steps", "sequence_steps", "verified")):
                    sums[i] += bucket[key]
    enough = 0.01 * sum(sums[0] for sums in buckets.values())
    return [(present / steps, verified / present) for _, (steps, present, verified) in sorted(buckets.items())
            if steps >= enough]  # fmt: skip


def intervals(view: View, panel: Panel, load: str) -> str:
    """Each policy's ratio to the best fixed depth, with its interval: for loads that are no number."""
    rows = [view.gain(panel, load, name) for name in view.kinds if view.kinds[name] != "fixed" or name == "none"]
    rows.sort(key=lambda row: -row["ratio_to_best_fixed"])
    key = "ratio_to_best_fixed"
    finite = [row[part] for row in rows for part in (key, f"{key}_low", f"{key}_high") if math.isfinite(row[part])]
    scale = spanning([*finite, 1.0])
    left, right, each, top = 158, 428, 20, 10
    height = top + each * len(rows) + 42

    def at(value: float) -> float:
        return left + min(max(scale.share(value), 0.0), 1.0) * (right - left)

    parts = [f'<svg viewBox="0 0 440 {height}" role="img" aria-label="Ratios, {escape(load, quote=True)}">']
    for tick in scale.ticks(4):
        parts.append(f'<line class="grid" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{top}" y2="{height - 36}"/>')
        parts.append(f'<text text-anchor="middle" x="{at(tick):.1f}" y="{height - 20}">{tick:.3g}</text>')
    parts.append(f'<line class="rule" x1="{at(1):.1f}" x2="{at(1):.1f}" y1="{top}" y2="{height - 36}"/>')
    for number, row in enumerate(rows):
        y = top + each * (number + 0.5)
        style = view.style(row["policy"]).split()[0]
        named = "value" if style == "quiet" else "name"
        shown = row["policy"] if len(row["policy"]) <= 22 else row["policy"][:21] + "…"
        parts.append(f'<g class="{style}"><text class="{named}" text-anchor="end" x="{left - 10}" y="{y + 4:.1f}">'
                     f"{escape(shown)}</text>")  # fmt: skip
        if math.isfinite(row[f"{key}_low"]):
            parts.append(f'<line class="whisker" x1="{at(row[f"{key}_low"]):.1f}" x2="{at(row[f"{key}_high"]):.1f}" '
                         f'y1="{y:.1f}" y2="{y:.1f}"/>')  # fmt: skip
        parts.append(f'<circle class="dot" cx="{at(row[key]):.1f}" cy="{y:.1f}" r="4"/></g>')
    judged = "goodput" if rows[0]["measure"] == "goodput" else "tokens/s per user"
    parts.append(f'<text class="title" text-anchor="middle" x="{(left + right) / 2:.0f}" y="{height - 3}">'
                 f"{judged} / {escape(rows[0]['best_fixed'])} (best fixed depth)</text></svg>")  # fmt: skip
    return "".join(parts)
