"""Figures of what happens within runs: depths of single sequences, regret, calibration, and where gains come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from adaptive_spec.replay.report.chart import Chart, Scale, spanning
from adaptive_spec.replay.report.view import Panel, View
from adaptive_spec.replay.verdicts import best_fixed_of
from adaptive_spec.step import FloatArray

PARTS = (("log_from_load", "from load", "s1"), ("log_from_requests", "from differences between requests", "s3"),
         ("log_from_not_drafting", "from not drafting", "s5"))  # fmt: skip


def strips(view: View, panel: Panel, load: str, policy: str) -> str:
    """The depths of single sequences, one strip each, one cell a step."""
    found: list[dict[str, Any]] = []
    for result in view.standings(panel, load)[policy].runs.values():
        found += [strip for strip in result["strips"] if len(found) < 8]
        break
    deepest = int(view.record.experiment["max_depth"])
    steps = max((len(strip["depths"]) for strip in found), default=1)
    left, right, each, top = 126, 436, 22, 4  # a name of sixteen characters fits on the left
    height = top + each * max(1, len(found)) + 34
    width = (right - left) / steps
    told = f"Depths of {len(found)} sequences, {policy}, {load} at once"
    parts = [f'<svg viewBox="0 0 440 {height}" role="img" aria-label="{escape(told, quote=True)}">']
    if not found:
        parts.append('<text x="12" y="20">No sequence was followed from its beginning to its end in this run.</text>')
    for number, strip in enumerate(sorted(found, key=lambda strip: (strip["category"], strip["text"]))):
        y = top + each * number
        category = strip["category"] if len(strip["category"]) <= 12 else f"{strip['category'][:11]}…"
        name = f"{category} {strip['text']}"
        parts.append(f'<text text-anchor="end" x="{left - 8}" y="{y + 15}">{escape(name)}</text>')
        at = 0
        for depth, same in groupby(strip["depths"]):
            count = len(list(same))
            share = round(100 * depth / deepest)
            parts.append(
                f'<rect x="{left + at * width:.1f}" y="{y + 2}" width="{count * width + 0.2:.1f}" height="{each - 5}" '
                f'style="fill:color-mix(in oklab,var(--d1) {share}%,var(--d0))"><title>depth {depth}</title></rect>'
            )
            at += count
    middle = (left + right) / 2
    for step, anchor in ((1, "start"), (steps, "end")):
        x = left if step == 1 else right
        parts.append(f'<text text-anchor="{anchor}" x="{x}" y="{height - 18}">{step}</text>')
    parts.append(
        f'<text class="title" text-anchor="middle" x="{middle:.0f}" y="{height - 6}">steps of the sequence</text>'
    )
    return "".join([*parts, "</svg>"])


def strip_key(deepest: int) -> str:
    """The colours of depths."""
    marks = sorted({0, deepest // 4, deepest // 2, deepest * 3 // 4, deepest})
    items = "".join(
        f'<li><span style="background:color-mix(in oklab,var(--d1) {round(100 * d / deepest)}%,var(--d0))"></span>'
        f"depth {d}</li>"
        for d in marks
    )
    return f'<ul class="key">{items}</ul>'


def regret(view: View, panel: Panel, load: str) -> str:
    """Seconds behind the best fixed depth after the same number of tokens, as a run goes on."""
    standings = view.standings(panel, load)
    best = best_fixed_of(standings)
    series: dict[str, list[tuple[float, float]]] = {}
    for name in view.highlighted:
        curves = [_behind(run["course"], best.runs[seed]["course"]) for seed, run in standings[name].runs.items()]
        last = min(curve[0][-1] for curve in curves)
        grid = np.linspace(0.0, last, 60)
        mean = np.mean([np.interp(grid, *curve) for curve in curves], axis=0)
        series[name] = list(zip(grid.tolist(), mean.tolist(), strict=True))
    shown = [y for name, points in series.items() if view.kinds[name] != "yardstick" for _, y in points]
    shown = shown or [y for points in series.values() for _, y in points]
    last = max(points[-1][0] for points in series.values())
    chart = Chart(Scale(0.0, last), spanning([*shown, 0.0]), "tokens emitted", "seconds behind the best fixed depth")
    chart.rule(0.0)
    for name in reversed(list(series)):
        chart.line(series[name], f"line {view.style(name)}", name, dots=False)
        chart.label(name, view.style(name), *series[name][-1])
    return chart.svg(f"Regret against the best fixed depth, {panel}, {load}")


def _behind(course: dict[str, Sequence[float]], best: dict[str, Sequence[float]]) -> tuple[FloatArray, FloatArray]:
    """Tokens, and seconds that a run needed for them more than another."""
    tokens, seconds = np.asarray(course["tokens"], float), np.asarray(course["seconds"], float)
    known = tokens <= best["tokens"][-1]
    tokens, seconds = tokens[known], seconds[known]
    return tokens, seconds - np.interp(tokens, best["tokens"], best["seconds"])


def calibration(view: View, panel: Panel, policy: str) -> tuple[str, str]:
    """Predicted survival against the share that held, and the figures in words."""
    chart = Chart(Scale(0.0, 1.0), Scale(0.0, 1.0), "predicted survival", "share that survived", labelled=True)
    chart.diagonal()
    said = []
    for kind, style in (("all", "s1 thick"), ("bought", "s2")):
        sums = np.zeros((3, 20))
        log_loss = 0.0
        for load in view.loads:
            for result in view.standings(panel, load)[policy].runs.values():
                own = result["calibration"][kind]
                sums += np.array([own["count"], own["predicted"], own["kept"]])
                log_loss += own["log_loss"]
        count, predicted, kept = sums
        total = float(count.sum())
        if not total:
            continue
        enough = count >= max(20.0, 1e-4 * total)
        points = list(
            zip((predicted[enough] / count[enough]).tolist(), (kept[enough] / count[enough]).tolist(), strict=True)
        )
        name = "all slots" if kind == "all" else "bought slots"
        chart.line(points, f"line {style}", name)
        if points:
            chart.label(name, style, *points[-1])
        error = float(np.abs(predicted - kept).sum() / total)
        bias = float((predicted - kept).sum() / total)
        said.append(f"{name}: calibration error {error:.3f}, bias {bias:+.3f}, log-loss {log_loss / total:.3f}")
    return chart.svg(f"Calibration, {policy}, {panel}"), "; ".join(said)


def split(view: View, panel: Panel, policy: str) -> str:
    """The gain over the best fixed depth in three parts, one column a load."""
    rows = {
        row["arrivals"]: row
        for row in view.verdicts.splits
        if (row["trace"], row["machine"], row["policy"]) == (panel.trace, panel.machine, policy)
    }
    loads = [load for load in [*view.closed, *view.open] if load in rows]
    stacks = [_stack([rows[load][key] for key, _, _ in PARTS]) for load in loads]
    ends = [end for stack in stacks for span in stack for end in span]
    scale = spanning([*ends, 0.02, -0.005], room=0.1)
    chart = Chart(Scale(-0.5, len(loads) - 0.5), scale, "sequences at once" if not view.open else "load",
                  "gain over the best fixed depth", x_ticks=[], percent=True, labelled=False)  # fmt: skip
    chart.rule(0.0)
    marks: list[str] = []
    width = min(46.0, 300.0 / len(loads))
    for number, (load, stack) in enumerate(zip(loads, stacks, strict=True)):
        for (low, high), (key, name, style) in zip(stack, PARTS, strict=True):
            chart.bar(number, width, low, high, f"fill {style}", f"{load}: {name} {100 * rows[load][key]:+.1f} %")
        x, y = chart.at(number, max(0.0, *(end for span in stack for end in span)))
        marks.append(f'<text class="value" text-anchor="middle" x="{x:.1f}" y="{y - 5:.1f}">'
                     f"{100 * rows[load]['log_gain']:+.1f} %</text>")  # fmt: skip
        room = int(350 / len(loads) / 7)  # characters
        shown = load if len(load) <= room else load[: max(1, room - 1)] + "…"
        marks.append(
            f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{chart.height - 25}">{escape(shown)}</text>'
        )
    drawn = chart.svg(f"Gain of {policy} in three parts, {panel}")
    return drawn.removesuffix("</svg></div>") + "".join(marks) + "</svg></div>"


def split_key() -> str:
    """The colours of the parts."""
    items = "".join(f'<li><span class="{style}"></span>{name}</li>' for _, name, style in PARTS)
    return f'<ul class="key">{items}</ul>'


def _stack(parts: Sequence[float]) -> list[tuple[float, float]]:
    """Where the bar of each part lies: positive ones upon each other, negative ones below zero."""
    up = down = 0.0
    spans = []
    for part in parts:
        if not math.isfinite(part):
            spans.append((0.0, 0.0))
        elif part >= 0:
            spans.append((up, up := up + part))
        else:
            spans.append((down, down := down + part))
    return spans
