"""Ratios with intervals, rounds, and the best fixed depth, against independent computations."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from adaptive_spec.cli.bench_table import comparison_table
from adaptive_spec.cli.comparison import Comparison, Ratio, geometric_means, student_t
from adaptive_spec.cli.policy_run import PolicyRun


def a_run(goodput: float) -> PolicyRun:
    return PolicyRun(
        tokens=120, seconds=120 / goodput * 1.25, decode_tokens=100, decode_seconds=100 / goodput,
        tpot_seconds=[1 / goodput, 2 / goodput], sequence_steps=40, drafted=100, verified=90, accepted=60,
    )  # fmt: skip


def compared(goodputs: dict[str, list[float]], depths: dict[str, int | None]) -> Comparison:
    comparison = Comparison(4, "all", depths)
    for number in range(len(next(iter(goodputs.values())))):
        comparison.add_round({policy: a_run(goodputs[policy][number]) for policy in comparison.order})
    return comparison


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=2, max_size=20))
def test_the_interval_is_students_on_the_logarithm(pairs: list[tuple[float, float]]) -> None:
    over, under = zip(*pairs, strict=True)
    ratio = Ratio.paired(over, under)
    logs = np.log(np.array(over) / np.array(under))
    error = stats.sem(logs)
    t = stats.t.ppf(0.975, len(logs) - 1)
    assert ratio.value == pytest.approx(math.exp(logs.mean()))
    assert ratio.high == pytest.approx(math.exp(logs.mean() + t * error), rel=2e-3 * (1e-3 + t * error))
    assert ratio.low * ratio.high == pytest.approx(ratio.value**2)


@pytest.mark.parametrize("freedom", [1, 2, 5, 10, 11, 20, 100])
def test_students_t(freedom: int) -> None:
    assert student_t(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-3)


def test_one_round_has_no_interval() -> None:
    ratio = Ratio.paired([3.0], [2.0])
    assert ratio.value == pytest.approx(1.5)
    assert math.isnan(ratio.low)
    assert ratio.half_width == math.inf


def test_rounds_pair_what_ran_together() -> None:
    # A machine that slows down by half under both policies leaves their ratio alone.
    comparison = compared({"none": [40.0, 20.0, 30.0], "x": [60.0, 30.0, 45.0]}, {"none": 0, "x": None})
    ratio = comparison.ratio("x", "none")
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert comparison.settled


def test_the_order_rotates_and_every_policy_runs_once_a_round() -> None:
    comparison = Comparison(1, "all", {"a": 0, "b": 1, "c": None})
    order: list[str] = []
    for _ in range(3):
        order += comparison.order
        comparison.add_round({policy: a_run(10.0) for policy in comparison.order})
    assert "".join(order) == "abcbcacab"
    assert comparison.rounds == 3


def test_it_settles_only_when_every_ratio_is_within_3_percent() -> None:
    depths: dict[str, int | None] = {"none": 0, "calm": None, "wild": None}
    calm = compared({"none": [10.0] * 4, "calm": [15.0, 15.1, 15.0, 15.1], "wild": [20.0, 20.1, 20.2, 20.0]}, depths)
    assert calm.settled
    wild = compared({"none": [10.0] * 4, "calm": [15.0, 15.1, 15.0, 15.1], "wild": [20.0, 25.0, 18.0, 20.0]}, depths)
    assert not wild.settled
    few = compared({"none": [10.0] * 2, "calm": [15.0] * 2, "wild": [15.0] * 2}, depths)
    assert not few.settled, "two rounds that agree by chance are not enough"


def test_the_best_fixed_depth_is_the_fastest_of_none_and_fixed() -> None:
    goodputs = {"none": [10.0, 10.0], "fixed:2": [14.0, 15.0], "fixed:8": [12.0, 9.0], "mine": [20.0, 20.0]}
    comparison = compared(goodputs, {"none": 0, "fixed:2": 2, "fixed:8": 8, "mine": None})
    assert comparison.best_fixed == "fixed:2"
    summary = comparison.summary("mine")
    assert summary["ratio_to_best_fixed"]["value"] == pytest.approx(math.sqrt(20 / 14 * 20 / 15))
    assert summary["ratio_to_reference"]["value"] == pytest.approx(2.0)
    assert compared({"mine": [1.0]}, {"mine": None}).best_fixed is None


def test_the_summary_adds_up() -> None:
    summary = compared({"none": [10.0, 30.0, 20.0]}, {"none": 0}).summary("none")
    assert summary["decode_tokens_per_second"] == pytest.approx(20.0)
    assert (summary["decode_tokens_per_second_min"], summary["decode_tokens_per_second_max"]) == pytest.approx((10, 30))
    assert summary["end_to_end_tokens_per_second"] == pytest.approx(16.0)
    assert summary["acceptance"] == pytest.approx(60 / 90)
    assert summary["acceptance_length"] == pytest.approx(1 + 60 / 40)
    assert (summary["drafted"], summary["verified"], summary["accepted"]) == (100, 90, 60)
    assert summary["tpot_p50_ms"] == pytest.approx(1e3 * np.median([0.1, 0.2, 1 / 30, 2 / 30, 0.05, 0.1]))


def test_geometric_means_go_over_concurrencies() -> None:
    first = compared({"none": [10.0], "x": [20.0]}, {"none": 0, "x": None})
    second = compared({"none": [40.0], "x": [45.0]}, {"none": 0, "x": None})
    assert geometric_means([first, second]) == pytest.approx({"none": 20.0, "x": 30.0})


@pytest.mark.parametrize("width", [40, 80, 100, 160, 200])
def test_the_table_fits_and_loses_no_figure(width: int) -> None:
    goodputs = {"none": [10.0, 11.0], "fixed:2": [14.0, 15.0], "acceptance-bandit": [1200.0, 1201.0]}
    comparison = compared(goodputs, {"none": 0, "fixed:2": 2, "acceptance-bandit": None})
    out = io.StringIO()
    Console(file=out, width=width).print(comparison_table(comparison, width))
    shown = out.getvalue()
    assert "\u2026" not in shown
    assert "1200.5" in shown
    assert all(len(line) <= width for line in shown.splitlines())
    assert ("100 / 90 / 60" in shown) == (width >= 200)
