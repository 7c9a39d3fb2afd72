"""The shipped machines, and the commands that judge what was replayed on them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import adaptive_spec.experiments as experiments
from adaptive_spec.cost import Profile
from adaptive_spec.experiments.headline import CEILING_SHARE, Figure, standing
from adaptive_spec.experiments.measure_machine import machine_file
from adaptive_spec.experiments.oracle_gap import one_depth, split_gap
from adaptive_spec.experiments.replayed import by_setting, replayed
from adaptive_spec.replay.experiment import Experiment
from adaptive_spec.replay.machine import Machine

FOLDER = Path(experiments.__file__).parent
MACHINES = sorted(path.name for path in (FOLDER / "machines").glob("*.json") if "hidden_size" not in path.read_text())


@pytest.mark.parametrize("name", MACHINES)
def test_a_shipped_machine_says_where_its_figures_come_from(name: str) -> None:
    machine = Machine.load(FOLDER / "machines" / name)
    assert len(machine.source) > 60
    seconds = machine.cost.verify(np.array([1, 64, 1000, 4000]), 1000.0, 1)
    assert (np.diff(seconds) > 0).all()


def test_the_published_curve_is_a_staircase_to_its_largest_graph_and_linear_above() -> None:
    cost = Machine.load(FOLDER / "machines/b300.json").cost
    at = cost.verify(np.array([1009, 1025, 1026, 1281, 1537]), 0.0, 1) * 1e3
    assert at[0] == at[1] == pytest.approx(20.634)
    assert at[3] == pytest.approx((at[1] + at[4]) / 2)
    assert at[4] > 5 * at[1]
    assert cost.verify(np.array([153]), 0.0, 1) > cost.verify(np.array([176]), 0.0, 1)  # its dips are kept


def test_a_measured_profile_survives_as_a_machine_file(tmp_path: Path) -> None:
    profile = Profile(
        [1, 2, 8], [0.01, 0.0105, 0.02], "linear", context_seconds_per_token=1e-6, attention_seconds_per_pair=2e-6
    )
    path = tmp_path / "m.json"
    path.write_text(json.dumps(machine_file(profile, "mine", "measured", 1e8, 32)))
    machine = Machine.load(path)
    asked = (np.arange(1, 20), 700.0, 3)
    assert machine.cost.verify(*asked) == pytest.approx(profile.verify(*asked))
    assert (machine.max_num_seqs, machine.parameters, machine.source) == (32, 1e8, "measured")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("e[23]*.yaml")), ids=lambda path: path.stem)
def test_an_experiment_file_is_good(path: Path) -> None:
    experiment = Experiment.load(path)
    assert all(Path(entry.file).is_file() for entry in experiment.machines if hasattr(entry, "file"))


def row(policy: str, goodput: float, best: float, kind: str = "ours", **more: Any) -> dict[str, Any]:
    names = {"trace": "t", "arrivals": "8", "machine": "m", "best_fixed": "fixed-2"}
    return {"policy": policy, "kind": kind, "goodput": goodput, "ratio_to_best_fixed": goodput / best, **names, **more}


def gains() -> dict[str, dict[str, Any]]:
    rows = [
        row("none", 90, 100, "fixed"), row("fixed-1", 95, 100, "fixed"), row("fixed-2", 100, 100, "fixed"),
        row("turbospec", 104, 100, "peer"), row("dynamic-sd", 99, 100, "peer"),
        row("without-evidence", 103, 100, "ablation"), row("roofline-budget", 108, 100),
        row("acceptance-bandit", 101, 100), row("signal-ceiling", 110, 100, "yardstick"),
        row("clairvoyant", 130, 100, "yardstick"),
    ]  # fmt: skip
    return {r["policy"]: r for r in rows}


def test_a_setting_is_judged_by_its_bars_its_peers_and_the_ceiling() -> None:
    found = standing("128", gains())
    assert (found.ours.value, found.ours.held) == (pytest.approx(1.08), False)
    assert not found.bandit.held
    assert found.peer == "turbospec"
    assert found.to_peer.value == pytest.approx(108 / 104)
    assert found.ceiling_share.value == pytest.approx(math.log(1.08) / math.log(1.10))
    assert found.ceiling_share.bar == 0.85
    assert "<" in str(found.ours)
    easy = standing("8", gains())
    assert easy.ours.held
    assert easy.bandit.held


def test_a_ceiling_that_brings_little_sets_no_bar() -> None:
    rows = gains()
    rows["signal-ceiling"]["ratio_to_best_fixed"] = 1.02
    assert standing("8", rows).ceiling_share.bar is None
    assert Figure(0.1, None).held
    assert CEILING_SHARE == 0.85


def test_the_parts_of_the_gap_add_up_to_it() -> None:
    rows = gains()
    other = {name: {**r, "goodput": r["goodput"] * (3 if name == "fixed-1" else 1)} for name, r in rows.items()}
    assert one_depth({("t", "8", "m"): rows}) == "fixed-2"
    assert one_depth({("t", "8", "m"): rows, ("t", "64", "m"): other}) == "fixed-1"
    parts = split_gap(rows, "fixed-1")
    assert parts.gap == pytest.approx(math.log(130 / 95))
    assert parts.had == pytest.approx(math.log(108 / 95))
    assert parts.load == pytest.approx(math.log(100 / 95))
    assert parts.evidence == pytest.approx(math.log(108 / 103))


def test_rows_are_laid_out_by_setting() -> None:
    rows = [row("a", 1, 1), row("b", 2, 1), row("a", 3, 1) | {"machine": "n"}]
    assert [(setting[2], list(found)) for setting, found in by_setting(rows)] == [("m", ["a", "b"]), ("n", ["a"])]
    assert [setting[2] for setting, _ in by_setting(rows, "n")] == ["n"]


def test_a_shipped_experiment_is_run_once_and_then_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "policies": ["dynamic-sd"], "fixed_depths": [1], "max_depth": 2,
        "traces": [{"name": "made", "synthetic": {"acceptance": 0.6, "sequences": 4, "output_tokens": 12}}],
        "arrivals": [{"closed": 2}], "run": {"steps": 10}, "bootstrap": {"draws": 100},
        "machines": [{"name": "m", "verify": {"kind": "curve", "ms_by_positions": {"1": 5.0, "8": 9.0}}}],
    }  # fmt: skip
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    monkeypatch.setattr("adaptive_spec.experiments.replayed.FOLDER", tmp_path)
    first = replayed("small", results=tmp_path / "results")
    cells = sorted((tmp_path / "results/small/cells").iterdir())
    assert len(cells) == 3
    stamps = [path.stat().st_mtime_ns for path in cells]
    again = replayed("small", results=tmp_path / "results")
    assert [r["goodput"] for r in again.gains] == [r["goodput"] for r in first.gains]
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "results/small/cells").iterdir())] == stamps


@pytest.mark.parametrize("module", ["headline", "oracle_gap"])
def test_a_command_says_in_a_line_what_is_missing(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = __import__(f"adaptive_spec.experiments.{module}", fromlist=["main"])
    monkeypatch.setattr("adaptive_spec.experiments.replayed.FOLDER", tmp_path)
    app = command.typer.Typer()
    app.command()(command.main)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 1
    assert result.output.startswith(f"{module}: ")
    assert "e2_" in result.output
