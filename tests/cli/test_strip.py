"""Strips of depths, and the live view that shows them."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pytest
from rich.console import Console

from adaptive_spec.cli.generate import Answer
from adaptive_spec.cli.live_view import LiveView
from adaptive_spec.cli.strip import BLOCKS, NO_DRAFT, Strip, StripRecorder, block, colour


@pytest.mark.parametrize("max_depth", [1, 3, 5, 8, 16, 64])
def test_deeper_is_never_lower_and_the_deepest_is_full(max_depth: int) -> None:
    drawn = [block(depth, max_depth) for depth in range(max_depth + 1)]
    assert drawn[0] == NO_DRAFT
    assert drawn[-1] == BLOCKS[-1]
    heights = [BLOCKS.index(sign) for sign in drawn[1:]]
    assert heights == sorted(heights)
    if max_depth <= len(BLOCKS):
        assert len(set(heights)) == max_depth, "every depth has a sign of its own"


def test_colours_tell_accepted_from_rejected() -> None:
    assert len({colour(0, 0), colour(3, 0), colour(3, 1), colour(3, 3)}) == 4


def test_a_strip_keeps_its_counts() -> None:
    strip = Strip()
    assert strip.acceptance != strip.acceptance
    for depth, accepted in ((0, 0), (4, 4), (4, 1), (2, 0)):
        strip.add(depth, accepted)
    assert strip.plain(8) == "·▄▄▂"
    assert strip.plain(8, last=2) == "▄▂"
    text = strip.render(8)
    assert text.plain == strip.plain(8)
    assert [span.style for span in text.spans] == [colour(0, 0), colour(4, 4), colour(4, 1), colour(2, 0)]
    assert strip.acceptance == 0.5
    assert strip.acceptance_length == 1 + 5 / 4
    with pytest.raises(ValueError, match="3 drafts accepted of 2"):
        strip.add(2, 3)


@dataclass
class Text:
    id: int


@dataclass
class Report:
    sequences: list[Text]
    verified: np.ndarray
    accepted: np.ndarray


def test_the_recorder_keeps_sequences_apart_whatever_their_order() -> None:
    recorder = StripRecorder()
    recorder(Report([Text(1), Text(2)], np.array([3, 0]), np.array([1, 0])))
    recorder(Report([Text(2), Text(1)], np.array([5, 2]), np.array([5, 2])))
    recorder(Report([], np.array([], dtype=int), np.array([], dtype=int)))
    assert recorder.strips[1] == Strip([3, 2], [1, 2])
    assert recorder.strips[2] == Strip([0, 5], [0, 5])


@pytest.mark.parametrize("count", [1, 3])
def test_the_live_view_shows_strips_and_in_the_end_the_whole_text(count: int) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=20, color_system=None)
    answers = [Answer(f"question {i}") for i in range(count)]
    with LiveView(answers, 8, console) as view:
        for answer in answers:
            answer.text = "word " * 200 + "end."
            answer.tokens = 201
            for _ in range(100):
                answer.strip.add(8, 8)
        console.print(view.view(2.0))
    shown = out.getvalue()
    assert f"{201 * count} tokens, {201 * count / 2:.1f} tokens/s, acceptance length 9.00" in shown
    assert shown.rstrip().count("end.") >= count
    assert "█" * 20 in shown
