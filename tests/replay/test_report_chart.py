"""Charts: scales, ticks and labels that don't overlap."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.replay.report.chart import Chart, Scale, spanning, spread

values = st.floats(1e-6, 1e9)


@given(values, values, st.sampled_from(["linear", "log"]))
@settings(deadline=None, max_examples=80)
def test_ticks_lie_within_the_scale_and_rise(a: float, b: float, kind: str) -> None:
    scale = spanning([a, b], kind)  # type: ignore[arg-type]
    ticks = scale.ticks()
    assert all(-1e-6 <= scale.share(tick) <= 1 + 1e-6 for tick in ticks)
    assert all(x < y for x, y in pairwise(ticks))
    assert 1 <= len(ticks) <= 14
    assert 0 <= scale.share(a) <= 1 >= scale.share(b) >= 0


@given(st.lists(st.floats(0, 300), min_size=1, max_size=12))
@settings(deadline=None, max_examples=80)
def test_labels_keep_their_distance_order_and_bounds(wanted: list[float]) -> None:
    wanted.sort()
    places = spread(wanted, 14, 0, 300)
    assert all(y - x >= 14 - 1e-9 for x, y in pairwise(places))
    assert places[0] >= -1e-9
    assert places[-1] <= 300 + 1e-9


def test_labels_that_have_room_stay_where_they_belong() -> None:
    assert spread([10, 50, 200], 14, 0, 300) == [10, 50, 200]
    assert spread([100, 100], 14, 0, 300) == [93, 107]


def test_an_svg_is_well_formed_and_escaped() -> None:
    chart = Chart(Scale(1, 256, "log"), spanning([1.0, 2.0]), "a < b", "c & d", x_ticks=[1, 8, 64, 256])
    chart.band([(1, 1, 2), (256, 1.5, math.nan), (64, 1, 1.5)], "band s1")
    chart.band([(8, 1.0, 1.5)], "band s1")
    chart.line([(1, 1.0), (8, math.nan), (256, 2.0)], "line s1", "<policy>")
    chart.label("<policy> with a name that is far too long", "s1", 256, 2.0)
    text = chart.svg('told "so"')
    root = ElementTree.fromstring(f"<div>{text}</div>")
    assert "nan" not in text
    labels = [node.text for node in root.iter("text") if node.get("class") == "name"]
    assert labels == ["<policy> with a name…"]
    assert [node.text for node in root.iter("li")] == [None]
    assert root.find(".//polyline") is not None


@pytest.mark.parametrize("data", [[], [math.nan], [5.0], [0.0, 0.0]])
def test_a_scale_of_hardly_anything_can_be_drawn(data: list[float]) -> None:
    for kind in ("linear", "log"):
        scale = spanning(data, kind)  # type: ignore[arg-type]
        assert scale.low < scale.high
        assert math.isfinite(scale.share(scale.low))
