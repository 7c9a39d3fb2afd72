"""`adaptive-spec compare` and `report`: flags, output and exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from adaptive_spec.cli import main
from adaptive_spec.replay.synthetic import SyntheticAcceptance, constant_acceptance

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A trace and a machine, as flags."""
    SyntheticAcceptance(constant_acceptance(0.7, 4), "test").trace(6, 20).save(tmp_path / "t.parquet")
    machine = {"name": "m", "source": "made up", "verify": {"kind": "curve", "ms_by_positions": {"1": 5, "64": 20}}}
    (tmp_path / "m.json").write_text(json.dumps(machine))
    return ["--trace", str(tmp_path / "t.parquet"), "--machine", str(tmp_path / "m.json")]


def test_flags_are_an_experiment_too(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    more = ["--policies", "roofline-budget:horizon=run,turbospec", "--depth", "4", "--concurrency", "1,3"]
    assert main(["compare", *files, *more, "--steps", "20", "--seeds", "2", "-o", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cells"] == 2 * 2 * (5 + 2)
    assert {row["policy"] for row in told["gains"]} >= {"roofline-budget:horizon=run", "turbospec", "none", "fixed-4"}
    assert all(Path(file).exists() for file in told["files"])
    assert {"duels", "splits", "losses", "runs"} <= set(told)
    assert main(["report", out, "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["file"]).exists()


def test_the_table_tells_gains_losses_and_what_is_synthetic(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--policies", "roofline-budget,turbospec", "--depth", "4", "--concurrency", "3", "--steps", "20"]
    assert main(["compare", *files, *more, "-o", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "t (synthetic acceptance) on m, 3 in flight" in text
    assert "losses: behind in" in text
    assert "paired over the same texts and seeds" in text
    assert "0 of them from an earlier run" in text
    assert main(["compare", *files, *more, "-o", str(tmp_path / "out")]) == 0
    assert "7 of them from an earlier run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "give an experiment file, or --trace and --machine"),
        (["nowhere.yaml"], 2, "nowhere.yaml: can't be read"),
        (["{file}", "--steps", "3"], 2, "--steps belongs to a comparison without a file"),
        (["{file}", "--azure", "a.csv"], 2, "no arrivals in Azure's format that a.csv could stand for"),
        (["{file}", "--azure", "a.csv", "--azure", "b.csv"], 2, "a second --azure belongs to a comparison without"),
        (["{file}", "--backend", "threads"], 2, "--backend is 'threads'; there are loky, ray, dask"),
        (["{file}", "--jobs", "0"], 2, "--jobs is 0"),
        (["--trace", "t", "--machine", "m", "--concurrency", "many"], 2, "--concurrency is 'many'; give numbers"),
        (["--trace", "no.parquet", "--machine", "no.json"], 2, "no.parquet: can't be read"),
        (["{bad}"], 2, "bad.yaml:1: titel: unknown key; did you mean 'title'"),
        (["{failing}"], 1, "ArrivalFileError"),
    ],
)
def test_faults_have_a_line_and_an_exit_code(
    arguments: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "replay"))
    try:
        from quick_experiment import data
    finally:
        sys.path.pop(0)
    (tmp_path / "a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nnonsense,1,1\n")
    for name, content in (
        ("file", data()),
        ("bad", {"titel": "x", **data()}),
        ("failing", data(policies=["none"], arrivals=[{"azure": "a.csv"}])),
    ):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    paths = {name: str(tmp_path / f"{name}.yaml") for name in ("file", "bad", "failing")}
    given = [argument.format(**paths) for argument in arguments]
    assert main(["compare", *given, "-o", str(tmp_path / "out")]) == code
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_a_report_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 1
    assert "holds no finished comparison" in capsys.readouterr().err


@pytest.mark.skipif(not (ROOT / "experiments" / "quick.yaml").exists(), reason="needs the source tree")
def test_the_example_is_a_good_experiment() -> None:
    from adaptive_spec.replay.comparison_plan import ComparisonPlan
    from adaptive_spec.replay.experiment import Experiment

    plan = ComparisonPlan(Experiment.load(ROOT / "experiments" / "quick.yaml"))
    assert len(plan.cells(plan.independent)) == 120
