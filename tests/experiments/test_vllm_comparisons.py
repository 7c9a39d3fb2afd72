"""The comparisons over real vLLM engines, on a machine whose speeds are known."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adaptive_spec.experiments import vllm_throughput as throughput
from adaptive_spec.experiments.gpu import vllm_sweep as sweeping
from adaptive_spec.experiments.measured_cells import MeasuredCells

PROMPTS = [[1, 2, 3], [4, 5]]
SPEED = {0: (30.0, 200.0), 2: (50.0, 180.0), 7: (60.0, 120.0)}  # tokens per second at 1 and 16, by depth


class Machine:
    """In the place of an engine: answers every prompt with ten tokens, at a speed that follows from the depth."""

    def __init__(self, threads: int = 2) -> None:
        self.threads = threads
        self.runs: list[dict[str, Any]] = []

    def run(self, prompts: Sequence[Sequence[int]], concurrency: int, max_tokens: int, **how: Any) -> dict[str, Any]:
        self.runs.append({"prompts": list(prompts), "concurrency": concurrency, **how})
        tokens = 10 * len(prompts)
        if how.get("save") is not None:
            how["save"].write_text("learned")
        if how.get("mode") == "on":
            speed = 1.02 * max(speeds[concurrency > 1] for speeds in SPEED.values())
        else:
            schedule = how.get("schedule") or [(1, concurrency, 0)]
            depth = next(depth for first, last, depth in schedule if first <= concurrency <= last)
            speed = SPEED[depth][concurrency > 1]
        return {"tokens": tokens, "seconds": tokens / speed, "threads": self.threads}


def shown(table: Any) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def turns(folder: Path, plain: Machine, speculating: Machine) -> throughput.Turns:
    cells = MeasuredCells(folder / "cells.jsonl", {})
    return throughput.Turns(plain, speculating, cells, (2, 7), 10, folder / "learned")  # type: ignore[arg-type]


def test_throughput_compares_each_setting_and_stops_when_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "TUNED_DEPTHS", (0, 2, 7))
    plain, speculating = Machine(), Machine()
    measured = turns(tmp_path, plain, speculating)
    measured.schedule = throughput.tune(measured, [1, 16], PROMPTS[1:])
    assert measured.schedule[0] == (1, measured.schedule[0][1], 7)
    assert measured.schedule[-1][1:] == (16, 0)
    throughput.settle(measured, [1, 16], PROMPTS[1:])
    learning = [run for run in speculating.runs if run.get("save")]
    assert [run["load"] for run in learning] == [None, learning[0]["save"]]
    said: list[str] = []
    throughput.compare(measured, [1, 16], PROMPTS, 8, 0, said.append)
    assert len(said) == 4  # two rounds at each concurrency: the speeds do not vary
    assert all(run["prompts"] == PROMPTS for run in plain.runs)
    assert all(run["load"] == measured.state for run in speculating.runs if run.get("mode") and not run.get("save"))
    result = throughput.summary(measured, [1, 16])
    assert result["concurrency"]["1"]["best"] in ("fixed 7", "dynamic-sd")
    assert result["concurrency"]["16"]["over_best"]["value"] == pytest.approx(1.02)
    assert result["geometric_mean"]["fixed 7"] == pytest.approx((1.02 * 1.02 * 200 / 120) ** 0.5)
    assert result["concurrency"]["16"]["off_over_none"]["value"] == pytest.approx(1.0)
    text = shown(throughput.table(result, measured.settings))
    assert "geometric mean" in text
    assert "1.020 +-0.0 %" in text
    before = len(speculating.runs)
    throughput.compare(measured, [1, 16], PROMPTS, 2, 0, said.append)  # all cells are there
    assert len(speculating.runs) == before


def test_rounds_go_over_all_concurrencies_until_each_is_known(tmp_path: Path) -> None:
    class Wavering(Machine):
        def run(self, prompts: Sequence[Sequence[int]], concurrency: int, *rest: Any, **how: Any) -> dict[str, Any]:
            result = super().run(prompts, concurrency, *rest, **how)
            if concurrency == 1:
                result["seconds"] *= 1 + 0.2 * (len(self.runs) % 2)
            return result

    measured = turns(tmp_path, Machine(), Wavering())
    measured.state.write_text("learned")
    measured.schedule = [(1, 16, 2)]
    said: list[str] = []
    throughput.compare(measured, [1, 16], PROMPTS, 4, 0, said.append)
    assert [line.partition(":")[0] for line in said] == [
        "round 1, concurrency 1", "round 1, concurrency 16", "round 2, concurrency 1", "round 2, concurrency 16",
        "round 3, concurrency 1", "round 4, concurrency 1",
    ]  # fmt: skip
    assert "+-inf %" in said[0]
    assert "+-0.0 %" in said[3]


def test_throughput_refuses_engines_with_other_numbers_of_threads(tmp_path: Path) -> None:
    measured = turns(tmp_path, Machine(threads=2), Machine(threads=1))
    measured.state.write_text("learned")
    with pytest.raises(RuntimeError, match=r"on \[1, 2\] threads"):
        throughput.compare(measured, [1], PROMPTS, 1, 0, print)


def sweep(folder: Path, seconds: float) -> sweeping.Sweep:
    engines = {sweeping.OURS: Machine(), sweeping.NONE: Machine()}
    left_out = {(sweeping.VERIFICATION, 0): "this machine has none"}
    cells = MeasuredCells(folder / "cells.jsonl", {})
    deadline = time.monotonic() + seconds
    return sweeping.Sweep(engines, cells, [2, 7], 10, deadline, folder / "learned", left_out=left_out)  # type: ignore[arg-type]


def test_a_sweep_with_time_measures_everything(tmp_path: Path) -> None:
    whole = sweep(tmp_path, 1e6)
    whole.learn([1, 16], PROMPTS)
    whole.compare([1, 16], PROMPTS, 2, 0)
    assert list(whole.left_out) == [(sweeping.VERIFICATION, 0)]
    assert (whole.schedule[0][2], whole.schedule[-1][2]) == (7, 0)
    rows = whole.report([1, 16])["tokens_per_second"]
    assert rows["16"].keys() == {"none", "fixed 2", "fixed 7", "dynamic-sd", "plugin"}
    assert rows["16"]["dynamic-sd"] == pytest.approx(200.0)
    text = shown(whole.table([1, 16]))
    assert "1.020 +-0 %" in text
    assert "-" in text


def test_a_sweep_without_time_says_what_it_left_out(tmp_path: Path) -> None:
    short = sweep(tmp_path, -1.0)
    short.learn([1, 16], PROMPTS)
    short.compare([1, 16], PROMPTS, 3, 0)
    assert not short.cells.cells
    assert short.left_out[sweeping.TABLE, 0] == "no time was left to tune it"
    assert {why for (s, c), why in short.left_out.items() if c} == {sweeping.OUT_OF_TIME}
    assert {s for s, c in short.left_out if c == 16} == {"none", "fixed 2", "fixed 7", "plugin"}
    assert short.report([16])["tokens_per_second"] == {"16": {}}
    assert "-" in shown(short.table([16]))
