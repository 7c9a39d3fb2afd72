"""The report: it says what it must, needs no network, and a real browser shows it without complaint."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, installed
from quick_experiment import data

from adaptive_spec.cli import main
from adaptive_spec.replay.comparison import Comparison
from adaptive_spec.replay.comparison_folder import write_record
from adaptive_spec.replay.experiment import Experiment

VOID = {"meta", "link"}


class Outline(HTMLParser):
    """Headings, captions and whether tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.external: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h2", "figcaption", "figure"):
            self.text.setdefault(tag, []).append("")
        self.external += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("data:")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        for tag in ("h2", "figcaption"):
            if tag in self.open:
                self.text[tag][-1] += text


def made(folder: Path, **changes: Any) -> Path:
    """A comparison's folder."""
    asked = Experiment.parse(data(**changes))
    write_record(folder, asked, Comparison(asked, folder).run())
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a comparison with closed and open loads, and a policy of a long name."""
    folder = made(
        tmp_path_factory.mktemp("compared"),
        policies=["roofline-budget", {"name": "a policy of a name that is rather long & <odd>", "policy": "turbospec"},
                  "acceptance-bandit", "best-by-load", "clairvoyant", "hf-heuristic", "sglang-ema", "mlc-table",
                  "hf-confidence", "trtllm-schedule", "without-exploration"],
        arrivals=[{"closed": [1, 6]}, {"poisson": 30.0, "seconds": 1.0}],
    )  # fmt: skip
    assert main(["report", str(folder)]) == 0
    return folder / "report.html"


def test_every_part_is_there_and_every_figure_has_a_caption(page: Path) -> None:
    outline = Outline()
    outline.feed(page.read_text(encoding="utf-8"))
    assert outline.open == []
    assert outline.text["h2"] == [
        "Goodput over the load",
        "Arrivals",
        "Depths of single sequences",
        "Learning",
        "Where gains come from",
        "Losses",
        "All results",
        "Settings and versions",
    ]
    assert len(outline.text["figure"]) == len(outline.text["figcaption"]) >= 9
    assert all(len(caption) > 40 for caption in outline.text["figcaption"])


def test_nothing_comes_from_elsewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    outline = Outline()
    outline.feed(text)
    assert outline.external == []
    assert not re.search(r"@import|url\(|<script|https?://(?!www\.w3\.org)", text)


def test_synthetic_traces_are_called_so(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "Acceptance of made is synthetic: generated, not recorded." in text
    figures = text.count("<figure>")
    assert text.count('<span class="tag">synthetic</span></h3>') == figures


def test_losses_on_synthetic_traces_are_called_so_and_the_stand_in_is_told(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    losses = text[text.index("<h2>Losses") : text.index("<h2>All results")]
    assert losses.count("<td>made (synthetic)</td>") == losses.count("<tr>") - 1 > 0
    assert "confidence: hf-confidence. Traces hold none; in its place they get the same stand-in" in unescape(text)


def test_names_are_escaped(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<odd>" not in text
    assert "&lt;odd&gt;" in text


def test_few_lines_are_coloured_and_no_colour_twice_in_a_plot(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for plot in re.findall(r'<svg class="inside".*?</svg>', text, flags=re.DOTALL):
        lines = [style for style in re.findall(r'<g class="line ([^"]*)">', plot) if style != "quiet"]
        colours = [style.split()[0] for style in lines]
        assert len(colours) == len(set(colours)) <= 8


def test_the_same_comparison_gives_the_same_page(page: Path, tmp_path: Path) -> None:
    other = tmp_path / "again.html"
    assert main(["report", str(page.parent), "--output", str(other)]) == 0
    assert other.read_bytes() == page.read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"policies": ["none"], "arrivals": [{"closed": 3}]},
        {"policies": ["turbospec"], "arrivals": [{"poisson": 30.0, "seconds": 0.5}]},
        {"policies": ["roofline-budget"], "seeds": 1, "run": {"steps": 2}},
    ],
    ids=["no policy", "open alone", "hardly a step"],
)
def test_a_scanty_comparison_has_a_page_too(changes: dict[str, Any], tmp_path: Path) -> None:
    assert main(["report", str(made(tmp_path, **changes))]) == 0
    outline = Outline()
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    outline.feed(text)
    assert outline.open == []
    assert not re.search(r'"[^"]*\bnan\b[^"]*"', "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)))


@pytest.mark.skipif(installed() is None, reason="no Chromium or Chrome is installed")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_complaint(page: Path, width: int, dark: bool, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        browser.open(page, width, dark)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.value("innerWidth") == width
        assert browser.errors == []
        assert browser.requests == [page.resolve().as_uri()]
        assert browser.value("[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().height > 15)")
        # Nothing that is shown within a figure reaches over its edge.
        over = browser.value(
            "[...document.querySelectorAll('figure')].flatMap(f => [...f.querySelectorAll('.plot,figcaption,h3,.key')]"
            ".filter(e => e.getBoundingClientRect().right > f.getBoundingClientRect().right + 1).map(e => e.className))"
        )
        assert over == []
        if width > 600:  # labels keep within their figure, and off each other
            boxes = browser.value(
                "[...document.querySelectorAll('.plot.labelled>svg')].map(s => [s.getBoundingClientRect().right,"
                "...[...s.querySelectorAll('.name')].map(n => {const b = n.getBoundingClientRect();"
                "return [b.top, b.bottom, b.right]})])"
            )
            assert boxes
            for right, *labels in boxes:
                assert all(label[2] <= right + 1 for label in labels)
                tops = sorted(label[0] for label in labels)
                assert all(later - earlier > 10 for earlier, later in pairwise(tops))
        background = browser.value("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(20, 23, 26)") is dark
