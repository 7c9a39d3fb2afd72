"""Page: the HTML of a report, in one file that needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from adaptive_spec.replay.comparison_folder import ComparisonRecord
from adaptive_spec.replay.report import detail_figures, load_figures
from adaptive_spec.replay.report.style import STYLE
from adaptive_spec.replay.report.view import BEST, Panel, View
from adaptive_spec.replay.verdicts import Row
from adaptive_spec.tuning_file import write_yaml

_WHO = (
    "Thick lines are the policies under test, thin ones peers, dotted ones yardsticks that know more than an engine can, "
    "grey ones all others (their names show when pointed at)."
)


def render(record: ComparisonRecord) -> str:
    """The whole page."""
    view = View(record)
    sections = [
        _head(view),
        _loads(view),
        _open_loads(view),
        _depths(view),
        _within(view),
        _gain_split(view),
        _losses(view),
        _results(view),
        _settings(view),
    ]
    title = escape(record.title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>\n<body><main>\n'
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def _head(view: View) -> str:
    record = view.record
    bootstrap = record.bootstrap
    duels = view.verdicts.duels
    counts = {word: sum(row["verdict"] == word for row in duels) for word in ("gain", "no difference", "loss")}
    seeds = len(record.experiment["seeds"])
    parts = [f"<header><h1>{escape(record.title)}</h1>"]
    if record.description:
        parts.append(f'<p class="lead-in">{escape(record.description)}</p>')
    if view.synthetic_note:
        parts.append(f"<p><strong>{escape(view.synthetic_note)}</strong></p>")
    if duels:
        parts.append(
            f"<p>Of {len(duels)} duels of {_listed(view.ours)} with a peer, with the best fixed depth in hindsight or with "
            f'no speculation, <strong class="good">{counts["gain"]} are gains</strong>, {counts["no difference"]} show no '
            f'difference within the interval and <strong class="bad">{counts["loss"]} are losses</strong>.</p>'
        )
    parts.append(
        f'<p class="caption">Every policy met the same texts in the same order on the same machine, under {seeds} '
        f"seed{'s' * (seeds != 1)}. Bands and brackets are {bootstrap.level:.0%} intervals of a bootstrap by text and seed; "
        "those of ratios are paired. The best fixed depth was chosen on the runs that it is compared on, which favours "
        "it.</p></header>"
    )
    return "".join(parts)


def _figure(title: str, svg: str, caption: str, panel: Panel | None = None, key: str = "") -> str:
    tag = '<span class="tag">synthetic</span>' if panel is not None and panel.synthetic else ""
    return (
        f"<figure><h3>{escape(title)}{tag}</h3>{key}{svg}<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _section(title: str, lead: str, figures: Sequence[str]) -> str:
    if not figures:
        return ""
    return (
        f'<section><h2>{escape(title)}</h2><p class="caption">{escape(lead)}</p>'
        f'<div class="grid2">{"".join(figures)}</div></section>'
    )


def _loads(view: View) -> str:
    if not view.closed:
        return ""
    figures = []
    for panel in view.panels:
        figures.append(
            _figure(f"Goodput: {panel}", load_figures.goodput(view, panel),
                    "Output tokens per second of the whole machine. The band shows how far texts differ.", panel)
        )  # fmt: skip
        figures.append(
            _figure(f"Against the best fixed depth: {panel}", load_figures.gain(view, panel), _said_gain(view, panel), panel)
        )
        if len(view.closed) > 1:
            figures.append(
                _figure(f"Frontier: {panel}", load_figures.frontier(view, panel),
                        "From right to left ever more sequences share the machine: each gets less, all together get more. "
                        "Up and to the right is better. Colours as in the plots beside.", panel)
            )  # fmt: skip
    return _section("Goodput over the load", f"A constant number of sequences decodes. {_WHO}", figures)


def _said_gain(view: View, panel: Panel) -> str:
    if not view.ours:
        return "Goodput as a multiple of that of the best fixed depth in hindsight."
    name = view.ours[0]
    told = []
    for load in view.closed:
        row = view.gain(panel, load, name)
        told.append(f"{row['ratio_to_best_fixed']:.3f} at {load} (best fixed: {row['best_fixed']})")
    return f"Goodput as a multiple of that of the best fixed depth in hindsight. {name}: " + ", ".join(told) + "."


def _open_loads(view: View) -> str:
    figures = []
    for panel in view.panels:
        for load in view.open:
            row = view.best(panel, load)
            figures.append(
                _figure(f"{load}: {panel}", load_figures.intervals(view, panel, load),
                        f"Tokens per busy second over those of {row['policy']}; {row['mean_sequences']:.1f} sequences decode "
                        "on average. While requests don't pile up, all policies yield what arrives, and what differs is how "
                        "long the machine works for it.", panel)
            )  # fmt: skip
    return _section("Arrivals", "Requests that come by themselves.", figures)


def _depths(view: View) -> str:
    figures = []
    for panel in view.panels:
        figures.append(
            _figure(f"Depth against load: {panel}", load_figures.depth(view, panel),
                    "Drafts verified per sequence and step, by how many sequences decoded in it.", panel)
        )  # fmt: skip
    shown = view.ours[:1]
    deepest = int(view.record.experiment["max_depth"])
    panel = view.panels[0]
    loads = view.closed or view.loads
    picked = list(dict.fromkeys([loads[0], loads[len(loads) // 2], loads[-1]]))
    for name in shown:
        for load in picked:
            title = f"{name}, {load} at once" if load in view.concurrency else f"{name}, {load}"
            figures.append(
                _figure(title, detail_figures.strips(view, panel, load, name),
                        f"Each strip is one sequence from its first step on ({panel}); each cell is one step, the darker "
                        "(in the dark: the brighter) the deeper.", panel,
                        detail_figures.strip_key(deepest))
            )  # fmt: skip
    return _section("Depth", "How deep sequences speculate, on average and one by one.", figures)


def _within(view: View) -> str:
    figures = []
    if view.highlighted:
        load = (view.closed or view.loads)[-1]
        where = f"{load} at once" if load in view.concurrency else load
        for panel in view.panels:
            figures.append(
                _figure(f"Regret, {where}: {panel}", detail_figures.regret(view, panel, load),
                        "Seconds that a run has needed more than the best fixed depth in hindsight for the same tokens, "
                        "warm-up included, mean over seeds. Falling lines gain on it.", panel)
            )  # fmt: skip
    for panel in view.panels:
        for name in view.ours[:1]:
            svg, said = detail_figures.calibration(view, panel, name)
            figures.append(
                _figure(f"Calibration of {name}: {panel}", svg,
                        f"Of drafts predicted to survive with a chance, the share that did, over all loads. {said}. "
                        "All slots on offer are judged, since a replay knows what would have come of each; those that were "
                        "bought are where the choice picks over-estimates.", panel)
            )  # fmt: skip
    return _section("Learning", "What it costs to learn, and how well the chances are known.", figures)


def _gain_split(view: View) -> str:
    figures = []
    present = {(row["trace"], row["machine"], row["policy"]) for row in view.verdicts.splits}
    for panel in view.panels:
        for name in view.ours[:2]:
            if (panel.trace, panel.machine, name) in present:
                figures.append(
                    _figure(f"{name}: {panel}", detail_figures.split(view, panel, name),
                            "Above the bars the gain over the best fixed depth in hindsight; the parts add up to it, in "
                            "logarithms. From load: one depth for all, by how full the machine is. From differences between "
                            "requests: beyond that. From not drafting: time of the drafter saved.", panel,
                            detail_figures.split_key())
                )  # fmt: skip
    return _section("Where gains come from", "The gain over the best fixed depth, split three ways.", figures)


# -------------------------------------------------------------------- tables


def _losses(view: View) -> str:
    rows = view.verdicts.losses
    parts = ["<section><h2>Losses</h2>"]
    if not rows:
        return "".join([*parts, "<p>In no duel was a policy under test behind.</p></section>"])
    parts.append(
        f'<p class="caption">All {len(rows)} duels in which a policy under test was behind, the worst first; marked are '
        "those that the interval confirms.</p>"
    )
    cells = [
        [
            row["policy"],
            row["rival"] + (" (best fixed)" if row["rival_is_best_fixed"] else ""),
            _Number(_bracket(row, "ratio"), "bad" if row["verdict"] == "loss" else ""),
            row["trace"],
            row["arrivals"],
            row["machine"],
        ]
        for row in rows
    ]
    head = ["policy", "behind", _Number("ratio [interval]"), "trace", "arrivals", "machine"]
    return "".join([*parts, _table(head, cells), "</section>"])


def _results(view: View) -> str:
    parts = ["<section><h2>All results</h2>"]
    head = ["policy", _Number("tokens/s"), _Number(f"x {BEST}"), _Number("x none"), _Number("tokens/s per user"),
            _Number("tokens a step"), _Number("depth"), _Number("off"), _Number("TTFT p95 ms"), _Number("TPOT p95 ms"),
            _Number("kept promises")]  # fmt: skip
    for panel in view.panels:
        for load in view.loads:
            rows = [view.gain(panel, load, name) for name in view.kinds]
            rows.sort(key=lambda row: -row["goodput"])
            cells = [_result(row) for row in rows]
            where = f"{load} at once" if load in view.concurrency else load
            tag = '<span class="tag">synthetic</span>' if panel.synthetic else ""
            parts.append(f"<details><summary>{escape(f'{panel}, {where}')}{tag}</summary>{_table(head, cells)}</details>")
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


# -------------------------------------------------------------------- settings


def _settings(view: View) -> str:
    record = view.record
    told: dict[str, str] = {}
    for item in record.finished:
        told[f"trace {item.cell.trace}"] = str(item.result["trace_told"])
        told[f"machine {item.cell.machine}"] = str(item.result["source"]) or "source not given"
    share = record.experiment["split"]["training_share"]
    told["scored on"] = f"{1 - share:.0%} of the texts; the others are for peers that train"
    told |= record.versions
    pairs = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in told.items())
    settings = {key: value for key, value in record.experiment.items() if key not in ("title", "description")}
    faults = sum(row["faults"] for row in view.verdicts.runs)
    failed = f'<p class="bad">Policies failed in {faults:.0f} decisions.</p>' if faults else ""
    return (
        f"<section><h2>Settings and versions</h2>{failed}<dl>{pairs}</dl><details><summary>The experiment file, with all "
        f"defaults</summary><pre>{escape(write_yaml(_plain(settings)))}</pre></details></section>"
    )


def _plain(data: Any) -> Any:
    """Without what was left at nothing."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items() if value not in (None, {}, "")}
    return [_plain(item) for item in data] if isinstance(data, list) else data


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else "no policy"
