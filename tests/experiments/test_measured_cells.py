"""Cells that long measurements keep on disk, their ratios, and the table that is tuned from them."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cli.failure import CommandError
from adaptive_spec.experiments.measured_cells import MeasuredCells
from adaptive_spec.experiments.vllm_throughput import numbers, schedule_of

WHAT = {"prompts": ["a", "b"], "concurrency": (1, 4)}


def test_a_measurement_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "cells.jsonl"
    cells = MeasuredCells(file, WHAT)
    cells.add("none", 4, 0, {"tokens": 100, "seconds": 2.0})
    cells.add("plugin", 4, 0, {"tokens": 120, "seconds": 2.0})
    with file.open("a") as out:
        out.write('{"setting": "plugin", "concurrency": 4, "rou')  # killed while it wrote
    again = MeasuredCells(file, WHAT)
    assert ("none", 4, 0) in again
    assert ("plugin", 4, 1) not in again
    assert again.cells == cells.cells
    ratio = again.ratio("plugin", "none", 4)
    assert ratio is not None
    assert ratio.value == pytest.approx(1.2)
    assert math.isinf(ratio.half_width)
    assert again.ratio("plugin", "fixed 4", 4) is None
    assert math.isnan(again.goodput("fixed 4", 4))
    again.add("plugin", 4, 1, {"tokens": 130, "seconds": 2.0})
    assert MeasuredCells(file, WHAT).cells == again.cells


def test_a_file_of_another_measurement_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    MeasuredCells(file, WHAT)
    with pytest.raises(ValueError, match="holds another measurement"):
        MeasuredCells(file, WHAT | {"concurrency": (1, 8)})
    file.write_text("no JSON\n")
    with pytest.raises(ValueError, match="is no file of measured cells"):
        MeasuredCells(file, WHAT)
    file.write_text("not even a line")
    with pytest.raises(ValueError, match="holds another measurement"):
        MeasuredCells(file, WHAT)
    assert file.read_text() == "not even a line"


def test_ratios_are_paired_by_round(tmp_path: Path) -> None:
    cells = MeasuredCells(tmp_path / "cells.jsonl", WHAT)
    for round, machine in enumerate((1.0, 3.0, 0.4)):  # the machine's speed moves far more than the ratio
        cells.add("none", 1, round, {"tokens": 100, "seconds": 1.0 / machine})
        cells.add("plugin", 1, round, {"tokens": 110 + round, "seconds": 1.0 / machine})
    cells.add("plugin", 1, 3, {"tokens": 1, "seconds": 1.0})  # a round that the other lacks
    ratio = cells.ratio("plugin", "none", 1)
    assert ratio is not None
    assert ratio.value == pytest.approx((1.10 * 1.11 * 1.12) ** (1 / 3))
    assert ratio.half_width < 0.03


def test_the_schedule_takes_the_best_depth_of_every_batch_size() -> None:
    goodput = {(0, 1): 30.0, (4, 1): 60.0, (0, 16): 200.0, (4, 16): 150.0}
    schedule = schedule_of(goodput, [0, 4], [1, 16])
    assert schedule[0][0] == 1
    assert schedule[-1][1] == 16
    assert [depth for _, _, depth in schedule] == [4, 0]
    # Where the lines cross: log goodput is linear in the log of the batch size.
    share = math.log(60 / 30) / (math.log(60 / 30) + math.log(200 / 150))
    assert schedule[0][1] == int(16**share)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1.0, 1e4), min_size=12, max_size=12))
def test_a_schedule_has_no_gap_and_is_exact_where_it_was_measured(values: list[float]) -> None:
    depths, sizes = (0, 2, 7), (1, 4, 16, 32)
    goodput = {(d, c): values[i * len(sizes) + j] for i, d in enumerate(depths) for j, c in enumerate(sizes)}
    schedule = schedule_of(goodput, depths, sizes)
    assert [schedule[0][0], schedule[-1][1]] == [1, 32]
    assert all(before[1] + 1 == after[0] and before[2] != after[2] for before, after in pairwise(schedule))
    for size in sizes:
        depth = next(depth for first, last, depth in schedule if first <= size <= last)
        assert goodput[depth, size] == pytest.approx(max(goodput[d, size] for d in depths))


def test_numbers_are_read_or_refused() -> None:
    assert numbers("16,1,4,4", "--concurrency") == [1, 4, 16]
    with pytest.raises(CommandError, match="--fixed is '2;4'"):
        numbers("2;4", "--fixed")
    with pytest.raises(CommandError, match="the least is 1"):
        numbers("0,4", "--fixed")
