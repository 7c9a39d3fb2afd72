"""Chart: axes, lines, bands and direct labels as SVG text, coloured by the page's own style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

WIDTH, HEIGHT = 440, 320
LEFT, TOP, BOTTOM = 50, 28, 42
MARGIN = 14
LABEL_WIDTH = 152  # beside the plot; a phone shows the same names below it
LINE_HEIGHT = 14
LABEL_CHARACTERS = 21


@dataclass(frozen=True)
class Scale:
    """From values to places along an axis.

    Attributes
    ----------
    low, high : float
        Values at the ends.
    kind : {"linear", "log"}
    """

    low: float
    high: float
    kind: Literal["linear", "log"] = "linear"

    def share(self, value: float) -> float:
        """Where a value lies, 0 to 1 from low to high."""
        if self.kind == "log":
            return math.log(max(value, 1e-12) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values between the ends."""
        if self.kind == "log":
            return self._log_ticks(count)
        step = _round_step((self.high - self.low) / max(1, count))
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _log_ticks(self, count: int) -> list[float]:
        found: list[float] = []
        for multiples in ((1,), (1, 3), (1, 2, 5)):
            decades = range(math.floor(math.log10(self.low)) - 1, math.ceil(math.log10(self.high)) + 1)
            found = [m * 10.0**d for d in decades for m in multiples]
            found = [v for v in found if self.low * (1 - 1e-9) <= v <= self.high * (1 + 1e-9)]
            if len(found) >= max(3, count - 2):
                return found[:: -(-len(found) // (2 * count))]
        return found if len(found) >= 3 else Scale(self.low, self.high).ticks(count)


def spanning(values: Sequence[float], kind: Literal["linear", "log"] = "linear", room: float = 0.06) -> Scale:
    """A scale that holds all values with a little room around them."""
    known = [v for v in values if math.isfinite(v) and (kind == "linear" or v > 0)]
    if not known:
        return Scale(1.0, 10.0, kind) if kind == "log" else Scale(0.0, 1.0)
    low, high = min(known), max(known)
    if kind == "log":
        span = max(math.log(high / low), 0.1) * room
        return Scale(low * math.exp(-span), high * math.exp(span), kind)
    span = max(high - low, abs(high) * 0.02, 1e-9) * room
    return Scale(low - span, high + span)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= rough * 0.999)


def short(value: float) -> str:
    """A number for an axis."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"


@dataclass
class _Label:
    text: str
    style: str
    x: float
    y: float


@dataclass
class Chart:
    """One plot.

    Attributes
    ----------
    x, y : Scale
    x_title, y_title : str
    x_ticks : sequence of float, optional
        In the place of round ones.
    percent : bool
        Whether y's ticks are shares.
    labelled : bool
        Whether room is left at the right for labels.
    """

    x: Scale
    y: Scale
    x_title: str
    y_title: str
    x_ticks: Sequence[float] | None = None
    percent: bool = False
    labelled: bool = True
    height: int = HEIGHT
    _marks: list[str] = field(default_factory=list)
    _labels: list[_Label] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Of the whole figure."""
        return WIDTH + 30 if self.labelled else WIDTH

    @property
    def right(self) -> float:
        """Where the plot ends and the labels begin."""
        return self.width - (LABEL_WIDTH if self.labelled else MARGIN)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Place of a point, which may lie outside of the plot."""
        px = LEFT + self.x.share(x) * (self.right - LEFT)
        return px, self.height - BOTTOM - self.y.share(y) * (self.height - BOTTOM - TOP)

    def line(self, points: Sequence[tuple[float, float]], style: str, title: str, dots: bool = True) -> None:
        """A line, the points of which are marked if they are few; what isn't finite is left out."""
        places = [self.at(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
        if not places:
            return
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self._marks.append(f'<g class="{style}"><title>{escape(title)}</title><polyline points="{path}"/>')
        if dots and len(places) <= 24:
            self._marks += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in places]
        self._marks.append("</g>")

    def band(self, points: Sequence[tuple[float, float, float]], style: str) -> None:
        """The area between two values at each x."""
        known = [(x, low, high) for x, low, high in points if math.isfinite(low) and math.isfinite(high)]
        if len(known) == 1:  # an interval at one place
            x, low, high = known[0]
            (px, y0), (_, y1) = self.at(x, low), self.at(x, high)
            self._marks.append(
                f'<g class="{style}"><line x1="{px:.1f}" x2="{px:.1f}" y1="{y0:.1f}" y2="{y1:.1f}"/></g>'
            )
        elif known:
            around = [self.at(x, high) for x, _, high in known] + [self.at(x, low) for x, low, _ in reversed(known)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in around)
            self._marks.append(f'<g class="{style}"><polygon points="{path}"/></g>')

    def rule(self, value: float, note: str = "") -> None:
        """A horizontal line at a value that means something."""
        (x0, y), (x1, _) = self.at(self.x.low, value), self.at(self.x.high, value)
        self._marks.append(f'<line class="rule" x1="{x0:.1f}" x2="{x1:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if note:
            self._marks.append(f'<text class="note" x="{x0 + 4:.1f}" y="{y - 4:.1f}">{escape(note)}</text>')

    def diagonal(self) -> None:
        """The line y = x."""
        low, high = max(self.x.low, self.y.low), min(self.x.high, self.y.high)
        (x0, y0), (x1, y1) = self.at(low, low), self.at(high, high)
        self._marks.append(f'<line class="rule" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>')

    def bar(self, x: float, width: float, low: float, high: float, style: str, title: str) -> None:
        """A bar between two values, `width` in units of the figure, around x."""
        (px, y0), (_, y1) = self.at(x, low), self.at(x, high)
        self._marks.append(
            f'<rect class="{style}" x="{px - width / 2:.1f}" y="{min(y0, y1):.1f}" width="{width:.1f}" '
            f'height="{abs(y1 - y0):.1f}"><title>{escape(title)}</title></rect>'
        )

    def label(self, text: str, style: str, x: float, y: float) -> None:
        """A label at the right, as near to y as the others let it be."""
        if math.isfinite(y):
            shown = text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"
            px, py = self.at(x, y)
            self._labels.append(_Label(shown, style, px, min(max(py, float(TOP)), float(self.height - BOTTOM))))

    def svg(self, told: str) -> str:
        """The whole plot; `told` says in words what it shows."""
        box = f"{LEFT - 4} {TOP - 4} {self.right - LEFT + 8:.0f} {self.height - BOTTOM - TOP + 8}"
        x, y, width, height = box.split()
        parts = [f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(told, quote=True)}">']
        parts += self._axes()
        # What lies outside is cut off, not pushed to the edge.
        parts.append(f'<svg class="inside" x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{box}">')
        parts += self._marks
        parts.append("</svg>")
        parts += self._placed_labels()
        parts.append("</svg>")
        if not self._labels:
            return f'<div class="plot">{"".join(parts)}</div>'
        names = "".join(f'<li class="{label.style}"><span></span>{escape(label.text)}</li>' for label in self._labels)
        return f'<div class="plot labelled">{"".join(parts)}</div><ul class="key names">{names}</ul>'

    def _axes(self) -> list[str]:
        bottom = self.height - BOTTOM
        parts = []
        for value in self.y.ticks():
            _, y = self.at(self.x.low, value)
            shown = f"{100 * value:.3g} %" if self.percent else short(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">{shown}</text>')
        last = -math.inf
        for value in self.x_ticks if self.x_ticks is not None else self.x.ticks(4):
            x, _ = self.at(value, self.y.low)
            if x - last < 26:
                continue
            last = x
            parts.append(f'<line class="tickmark" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
            parts.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{bottom + 17}">{short(value)}</text>')
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{self.right}" y1="{bottom}" y2="{bottom}"/>')
        middle = (LEFT + self.right) / 2
        parts.append(
            f'<text class="title" text-anchor="middle" x="{middle:.0f}" y="{self.height - 6}">'
            f"{escape(self.x_title)}</text>"
        )
        parts.append(f'<text class="title" x="2" y="10">{escape(self.y_title)}</text>')
        return parts

    def _placed_labels(self) -> list[str]:
        ordered = sorted(self._labels, key=lambda label: label.y)
        places = spread([label.y for label in ordered], LINE_HEIGHT, TOP + 4, self.height - BOTTOM + 4)
        parts = []
        for label, y in zip(ordered, places, strict=True):
            x = self.right + 14
            parts.append(f'<g class="{label.style}"><line class="lead" x1="{label.x + 3:.1f}" y1="{label.y:.1f}" '
                         f'x2="{x - 3:.1f}" y2="{y:.1f}"/><text class="name" x="{x:.1f}" y="{y + 4:.1f}">'
                         f"{escape(label.text)}</text></g>")  # fmt: skip
        return parts


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near to the wanted ones (rising) as a gap between neighbours allows, within two bounds if they fit.

    Neighbours that would overlap form blocks around the mean of what they want; blocks that meet are joined.
    """
    blocks: list[list[float]] = []  # [sum of what the members want less their offsets, members]

    def start(block: list[float]) -> float:
        highest = max(low, high - gap * (block[1] - 1))
        return min(max(block[0] / block[1], low), highest)

    for place in wanted:
        blocks.append([place, 1.0])
        while len(blocks) > 1 and start(blocks[-2]) + gap * blocks[-2][1] > start(blocks[-1]):
            total, members = blocks.pop()
            blocks[-1][0] += total - members * gap * blocks[-1][1]
            blocks[-1][1] += members
    return [start(block) + gap * i for block in blocks for i in range(int(block[1]))]
