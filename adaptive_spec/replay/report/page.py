"""Page: the HTML of a report, in one file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from adaptive_spec.replay.comparison_folder import ComparisonRecord
from adaptive_spec.replay.contestant import confidence_note
from adaptive_spec.replay.report import detail_figures, load_figures, tables
from adaptive_spec.replay.report.style import STYLE
from adaptive_spec.replay.report.view import Panel, View
from adaptive_spec.replay.verdicts import Row

_WHO = (
    "Thick lines are the policies under test, thin ones peers, dotted ones yardsticks that know more than an engine "
    "can, grey ones all others (their names show when pointed at)."
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
        tables.losses(view),
        tables.results(view),
        tables.settings(view),
    ]
    title = escape(record.title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>\n<body><main>\n'
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def _are(count: int, one: str, many: str) -> str:
    return f"{count} is {one}" if count == 1 else f"{count} are {many}"


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
    if note := confidence_note(item.contestant for item in record.finished):
        parts.append(f'<p class="caption">{escape(note)}</p>')
    if duels:
        parts.append(
            f"<p>Of {len(duels)} duels of {_listed(view.ours)} with a peer or an ablation, with the best fixed depth "
            f'in hindsight or with none, <strong class="good">{_are(counts["gain"], "a gain", "gains")}</strong>, '
            f"{counts['no difference']} show no difference within the interval and "
            f'<strong class="bad">{_are(counts["loss"], "a loss", "losses")}</strong>.</p>'
        )
    parts.append(
        f'<p class="caption">Every policy met the same texts in the same order on the same machine, under {seeds} '
        f"seed{'s' * (seeds != 1)}. Bands and brackets are {bootstrap.level:.0%} intervals of a bootstrap by text and "
        "seed; those of ratios are paired. The best fixed depth was chosen on the runs that it is compared on, "
        "which favours it.</p></header>"
    )
    return "".join(parts)


def _figure(title: str, svg: str, caption: str, panel: Panel | None = None, key: str = "") -> str:
    tag = '<span class="tag">synthetic</span>' if panel is not None and panel.synthetic else ""
    return f"<figure><h3>{escape(title)}{tag}</h3>{key}{svg}<figcaption>{escape(caption)}</figcaption></figure>"


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
            _figure(
                f"Against the best fixed depth: {panel}", load_figures.gain(view, panel), _said_gain(view, panel), panel
            )
        )
        if len(view.closed) > 1:
            figures.append(
                _figure(f"Frontier: {panel}", load_figures.frontier(view, panel),
                        "From right to left ever more sequences share the machine: each gets less, all together more. "
                        "Up and to the right is better. Colours as in the other plots.", panel)
            )  # fmt: skip
        figures.append(_depth(view, panel))
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


def _said_open(row: Row) -> str:
    told = f"{row['policy']}; {row['mean_sequences']:.1f} sequences decode on average."
    if row["measure"] == "goodput":
        return f"Tokens per busy second over those of {told}"
    return (
        f"Tokens per second that a request gains while it decodes, over those of {told} While requests don't pile up, "
        "all policies yield what arrives; what differs is how fast each is served."
    )


def _open_loads(view: View) -> str:
    figures = []
    for panel in view.panels:
        for load in view.open:
            row = view.best(panel, load)
            figures.append(
                _figure(f"{load}: {panel}", load_figures.intervals(view, panel, load), _said_open(row), panel)
            )
        if not view.closed:
            figures.append(_depth(view, panel))
    return _section("Arrivals", "Requests that come by themselves.", figures)


def _depth(view: View, panel: Panel) -> str:
    return _figure(
        f"Depth against load: {panel}",
        load_figures.depth(view, panel),
        "Drafts verified per sequence and step, by how many sequences decoded in it.",
        panel,
    )


def _depths(view: View) -> str:
    figures = []
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
                        f"Each strip is one sequence from its first step on ({panel}); each cell is one step, the "
                        "darker (in the dark: the brighter) the deeper.", panel,
                        detail_figures.strip_key(deepest))
            )  # fmt: skip
    return _section("Depths of single sequences", "How deep sequences speculate, step by step.", figures)


def _within(view: View) -> str:
    figures = []
    if view.highlighted:
        load = (view.closed or view.loads)[-1]
        where = f"{load} at once" if load in view.concurrency else load
        for panel in view.panels:
            figures.append(
                _figure(f"Regret, {where}: {panel}", detail_figures.regret(view, panel, load),
                        "Seconds that a run has needed more than the best fixed depth in hindsight for the same "
                        "tokens, warm-up included, mean over seeds. Falling lines gain on it.", panel)
            )  # fmt: skip
    for panel in view.panels:
        for name in view.ours[:1]:
            svg, said = detail_figures.calibration(view, panel, name)
            figures.append(
                _figure(f"Calibration of {name}: {panel}", svg,
                        f"Of drafts predicted to survive with a chance, the share that did, over all loads. {said}. "
                        "All slots on offer are judged, since a replay knows what would have come of each; those "
                        "that were bought are where the choice picks over-estimates.", panel)
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
                            "Above the bars the gain over the best fixed depth in hindsight; the parts add up to it, "
                            "in logarithms. From load: one depth for all, by how full the machine is. From differences "
                            "between requests: beyond that. From not drafting: time of the drafter saved.", panel,
                            detail_figures.split_key())
                )  # fmt: skip
    return _section("Where gains come from", "The gain over the best fixed depth, split three ways.", figures)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else "no policy"
