"""Comparisons: the same numbers whatever runs them, resumed and kept cells, and what the tables say."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick_experiment import data

from adaptive_spec.cli.compare_table import gains_table, losses_table
from adaptive_spec.config import TuningConfig
from adaptive_spec.replay import cell as cell_module
from adaptive_spec.replay import comparison as comparison_module
from adaptive_spec.replay.arrivals import ClosedConcurrency
from adaptive_spec.replay.cell import load_texts, make_machine, run_cell
from adaptive_spec.replay.comparison import Comparison, ComparisonError, Progress
from adaptive_spec.replay.comparison_folder import read_record, write_record
from adaptive_spec.replay.contestant import confidence_note, find_contestant
from adaptive_spec.replay.controllers import TunedController
from adaptive_spec.replay.experiment import Experiment
from adaptive_spec.replay.simulator import simulate
from adaptive_spec.replay.verdicts import Verdicts


def experiment(**changes: Any) -> Experiment:
    return Experiment.parse(data(**changes))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path, Verdicts]:
    """The small experiment, run in this process."""
    folder = tmp_path_factory.mktemp("small")
    asked = experiment()
    finished = Comparison(asked, folder).run()
    verdicts = Verdicts(finished, asked.bootstrap)
    write_record(folder, asked, finished)
    verdicts.write(folder)
    return asked, folder, verdicts


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_two_processes_write_the_same_bytes_as_one(small: tuple[Experiment, Path, Verdicts], tmp_path: Path) -> None:
    asked, folder, _ = small
    finished = Comparison(asked, tmp_path).run("loky", jobs=2)
    write_record(tmp_path, asked, finished)
    Verdicts(finished, asked.bootstrap).write(tmp_path)
    assert written(tmp_path) == written(folder)
    assert {"runs.csv", "runs.parquet", "gains.csv", "duels.csv", "splits.csv", "comparison.json"} <= set(
        written(tmp_path)
    )


def test_dask_writes_the_same_bytes(small: tuple[Experiment, Path, Verdicts], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="dask's distributed is not installed")
    asked, folder, _ = small
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None):
        finished = Comparison(asked, tmp_path).run("dask", jobs=2)
    Verdicts(finished, asked.bootstrap).write(tmp_path)
    assert written(tmp_path)["runs.csv"] == written(folder)["runs.csv"]


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_backend_that_is_missing_is_named_with_its_remedy(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import builtins

    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] in ("ray", "distributed"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ComparisonError, match=f"backend {backend} needs the module .*pip install.*--backend loky"):
        Comparison(experiment(), tmp_path).run(backend, jobs=2)


def test_finished_cells_are_not_run_again(
    small: tuple[Experiment, Path, Verdicts], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, folder, _ = small
    monkeypatch.setattr(comparison_module, "run_cell", lambda *arguments: pytest.fail("a finished cell was run again"))
    told: list[int] = []
    again = Comparison(asked, folder)
    finished = again.run(progress=Progress(total=told.append))
    assert again.resumed == len(finished) == sum(told)


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = experiment(policies=["turbospec"], arrivals=[{"closed": 4}])
    ran: list[str] = []

    def interrupted(made_from: str, files: Any) -> dict[str, Any]:
        if len(ran) == 3:
            raise KeyboardInterrupt
        ran.append(made_from)
        return run_cell(made_from, files)

    monkeypatch.setattr(comparison_module, "run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Comparison(asked, tmp_path).run()
    monkeypatch.setattr(comparison_module, "run_cell", lambda *given: ran.append(given[0]) or run_cell(*given))
    again = Comparison(asked, tmp_path)
    finished = again.run()
    assert again.resumed == 3
    assert len(ran) == len(set(ran)) == len(finished) == 8


def test_a_changed_setting_and_a_damaged_cell_are_run(tmp_path: Path) -> None:
    asked = experiment(policies=["turbospec"], arrivals=[{"closed": 4}], seeds=1)
    first = Comparison(asked, tmp_path).run()
    other = experiment(policies=["turbospec"], arrivals=[{"closed": 4}], seeds=1, run={"steps": 30})
    changed = Comparison(other, tmp_path)
    changed.run()
    assert changed.resumed == 0
    path = tmp_path / "cells" / f"{first[0].cell.key}.json"
    whole = path.read_text()
    path.write_text(whole[:40])
    mended = Comparison(asked, tmp_path)
    mended.run()
    assert mended.resumed == len(first) - 1
    assert path.read_text() == whole


def test_a_changed_code_is_run_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = experiment(policies=["turbospec"], arrivals=[{"closed": 2}], seeds=1, run={"steps": 5})
    Comparison(asked, tmp_path).run()
    monkeypatch.setattr("adaptive_spec.replay.comparison_plan.code_digest", lambda: "another")
    again = Comparison(asked, tmp_path)
    again.run()
    assert again.resumed == 0


def test_a_cell_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    azure = tmp_path / "a.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,5\nnonsense,1,1\n")
    asked = experiment(policies=["turbospec"], arrivals=[{"closed": 2}, {"azure": str(azure)}], seeds=1)
    with pytest.raises(
        ComparisonError, match=r"none on made, a, small, seed 0: ArrivalFileError: .*a.csv:3.*and 3 more"
    ):
        Comparison(asked, tmp_path / "out").run()
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 4


def test_a_cell_is_what_simulate_says() -> None:
    asked = experiment(policies=["roofline-budget"], arrivals=[{"closed": 5}], seeds=[3])
    comparison = Comparison(asked, Path("unused"))
    (cell,) = [cell for cell in comparison.plan.cells(comparison.plan.independent) if cell.policy == "roofline-budget"]
    spec = json.loads(cell.made_from)
    row = run_cell(cell.made_from, {})["row"]
    served = load_texts(cell_module.canonical({**spec["trace"], "split": spec["split"]}), "", 4).served
    machine = make_machine(spec["machine"], "")
    run = simulate(served, TunedController(TuningConfig(max_depth=4)), ClosedConcurrency(5), machine, seed=3, steps=40)
    expected = run.metrics.summary()
    assert {name: row[name] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_the_texts_shares_add_up_to_the_run(small: tuple[Experiment, Path, Verdicts]) -> None:
    _, _, verdicts = small
    for standings in verdicts.standings.values():
        for standing in standings.values():
            for result in standing.runs.values():
                assert sum(result["texts"]["tokens"]) == result["row"]["tokens"]
                assert math.isclose(sum(result["texts"]["seconds"]), result["row"]["busy_seconds"])
            # In a closed queue nothing is idle, so goodput is the ratio of both sums.
            pooled = standing.pooled
            assert math.isclose(standing.goodput.rate, pooled.goodput)


def test_all_policies_meet_the_same_texts_in_runs_of_equal_tokens() -> None:
    asked = experiment(
        policies=["turbospec"],
        arrivals=[{"closed": 1, "random_offsets": False}],
        run={"tokens": 96, "warmup": 0.0},
        seeds=1,
    )
    comparison = Comparison(asked, Path("unused"))
    tokens = []
    for cell in comparison.plan.cells(comparison.plan.independent):
        texts = run_cell(cell.made_from, {})["texts"]["tokens"]
        tokens.append([t > 8 for t in texts])  # the last step may begin another text
    assert all(row == tokens[0] for row in tokens)


def test_a_policy_equals_itself_without_uncertainty(small: tuple[Experiment, Path, Verdicts]) -> None:
    _, _, verdicts = small
    for row in verdicts.gains:
        if row["policy"] == row["best_fixed"]:
            assert (
                row["ratio_to_best_fixed"] == row["ratio_to_best_fixed_low"] == row["ratio_to_best_fixed_high"] == 1.0
            )


def test_losses_stand_beside_gains(small: tuple[Experiment, Path, Verdicts]) -> None:
    _, _, verdicts = small
    assert {row["policy"] for row in verdicts.duels} == {"roofline-budget"}
    assert {row["rival"] for row in verdicts.duels} >= {"turbospec", "dynamic-sd", "none"}
    assert "clairvoyant" not in {row["rival"] for row in verdicts.duels}
    for row in verdicts.duels:
        wanted = "gain" if row["ratio_low"] > 1 else "loss" if row["ratio_high"] < 1 else "no difference"
        assert row["verdict"] == wanted
    behind = [row for row in verdicts.duels if row["ratio"] < 1]
    assert sorted(map(id, verdicts.losses)) == sorted(map(id, behind))


def test_every_table_marks_synthetic_traces(small: tuple[Experiment, Path, Verdicts]) -> None:
    _, folder, verdicts = small
    assert verdicts.losses
    for name in ("runs", "gains", "duels", "splits"):
        with (folder / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert all("acceptance 0.6" in row["synthetic"] for row in rows), name
    assert list(losses_table(verdicts.losses, 9).columns[3].cells) == ["made (synthetic)"] * len(verdicts.losses)


def test_what_stands_for_a_confidence_is_told(small: tuple[Experiment, Path, Verdicts]) -> None:
    _, _, verdicts = small
    contestants = [find_contestant(name, name, TuningConfig(max_depth=4)) for name in ("turbospec", "hf-confidence")]
    assert confidence_note(contestants[:1]) == ""
    note = confidence_note(contestants)
    assert note.startswith("Made for a draft's confidence: hf-confidence.")
    assert "turbospec" not in note
    setting = ("made", "6", "small")
    assert gains_table(verdicts.gains, setting, True, True, note).caption == note
    assert gains_table(verdicts.gains, setting, True, True).caption is None


def test_the_parts_of_a_gain_add_up(small: tuple[Experiment, Path, Verdicts]) -> None:
    _, _, verdicts = small
    ratio = {(row["arrivals"], row["policy"]): row["ratio_to_best_fixed"] for row in verdicts.gains}
    assert verdicts.splits
    for row in verdicts.splits:
        parts = row["log_from_load"] + row["log_from_requests"] + row["log_from_not_drafting"]
        assert math.isclose(parts, row["log_gain"], abs_tol=1e-12)
        assert math.isclose(math.exp(parts), ratio[row["arrivals"], row["policy"]], rel_tol=1e-9)


def test_tables_agree_and_a_record_reads_back(small: tuple[Experiment, Path, Verdicts]) -> None:
    import pyarrow.parquet as pq

    asked, folder, verdicts = small
    for name, rows in verdicts.tables().items():
        table = pq.read_table(folder / f"{name}.parquet")
        with (folder / f"{name}.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        assert table.num_rows == len(lines) == len(rows)
        assert table.column_names == list(lines[0])
    record = read_record(folder)
    assert record.title == asked.title
    again = Verdicts(record.finished, record.bootstrap)
    np.testing.assert_equal(again.tables(), verdicts.tables())


def test_a_record_that_is_missing_or_newer_is_refused(small: tuple[Experiment, Path, Verdicts], tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match=r"holds no finished comparison.*adaptive-spec compare"):
        read_record(tmp_path)
    told = json.loads((small[1] / "comparison.json").read_text())
    (tmp_path / "comparison.json").write_text(json.dumps(told))
    with pytest.raises(ComparisonError, match="is missing or damaged; run adaptive-spec compare again"):
        read_record(tmp_path)
    (tmp_path / "comparison.json").write_text(json.dumps({**told, "schema": 99}))
    with pytest.raises(ComparisonError, match=r"schema 99 .*upgrade"):
        read_record(tmp_path)
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(ComparisonError, match="damaged"):
        read_record(tmp_path)


def test_open_arrivals_and_a_shift_run_through_every_policy(tmp_path: Path) -> None:
    azure = tmp_path / "a.csv"
    rows = "".join(f"2023-11-16 18:15:{46 + i // 4}.{i % 4}000000,{20 + i},{4 + i}\n" for i in range(12))
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    shifting = {
        "acceptance": 0.8, "sequences": 8, "output_tokens": 24, "shift": {"step": 20, "acceptance": 0.1},
    }  # fmt: skip
    asked = experiment(
        traces=[{"name": "shifting", "synthetic": shifting}],
        policies=["roofline-budget", "acceptance-bandit", "signal-ceiling", "banditspec-exp3", "best-by-load"],
        arrivals=[
            {"poisson": 20.0, "seconds": 1.0},
            {"bursts": {"on_requests_per_second": 50, "mean_on_seconds": 0.2, "mean_off_seconds": 0.2}, "seconds": 1.0},
            {"switching": {"levels": [1, 4], "seconds_each": 0.1}, "tokens": 200},
            {"azure": str(azure), "time_scale": 0.5},
        ],
        run={},
        seeds=1,
        service_level={"tpot_seconds": 0.05},
    )
    finished = Comparison(asked, tmp_path / "out").run()
    verdicts = Verdicts(finished, asked.bootstrap)
    assert len(verdicts.gains) == 4 * (3 + 5)
    assert all(row["goodput"] > 0 for row in verdicts.gains)
    assert all(row["faults"] == 0 for row in verdicts.runs)
    served = {row["policy"]: row["finished"] for row in verdicts.runs if row["arrivals"] == "a"}
    assert set(served.values()) == {12}
