"""`adaptive-spec validate` and the command line's exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from adaptive_spec.cli import main
from adaptive_spec.config import TuningConfig


def test_a_valid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tuning.yaml"
    path.write_text("max_depth: 4\npolicy: {name: fixed, depth: 2}\n")
    assert main(["validate", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{path}: valid, fixed up to depth 4\n"
    assert err == ""


def test_show_prints_a_whole_tuning_that_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tuning.yaml"
    path.write_text("max_depth: 5")
    assert main(["validate", str(path), "--show"]) == 0
    assert TuningConfig.parse(capsys.readouterr().out) == TuningConfig.load(path)


def test_mistakes_are_told_line_by_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tuning.yaml"
    path.write_text("max_depht: 4\nguard:\n  margin: 2\n")
    assert main(["validate", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith(f"{path}:1: max_depht: unknown key; did you mean 'max_depth'?")
    assert second.startswith(f"{path}:3: guard.margin: must be less than 1")


@pytest.mark.parametrize("text", ["", "# mode: shadow\n"])
def test_an_empty_file_is_not_valid(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tuning.yaml"
    path.write_text(text)
    assert main(["validate", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{path}: is empty; write at least the settings that differ")


def test_json_tells_of_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("seed: 3")
    bad.write_bytes(b"\xff")
    assert main(["validate", str(good), str(bad), str(tmp_path / "none.yaml"), "--json"]) == 1
    first, second, third = json.loads(capsys.readouterr().out)
    assert first["valid"]
    assert first["tuning"]["seed"] == 3
    assert not second["valid"]
    assert "is not UTF-8" in second["errors"][0]
    assert "can't be read" in third["errors"][0]


COST = {
    "file": "{source: file, file: NAMED}",
    "geometry_file": "{source: roofline, hardware: A100-SXM-80GB, geometry_file: NAMED}",
}
GOOD = {
    "file": {"verify_ms_by_tokens": {"1": 10.0, "64": 20.0}},
    "geometry_file": {
        "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
}  # fmt: skip


def check(folder: Path, key: str, named: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What `validate` says of a tuning that names a file; nothing if it is valid."""
    path = folder / "tuning.yaml"
    path.write_text(f"max_depth: 4\nseed: 1\ncost: {COST[key].replace('NAMED', named)}\n")
    code = main(["validate", str(path)])
    out, err = capsys.readouterr()
    assert (code, bool(out), bool(err)) in ((0, True, False), (1, False, True))
    if err:
        assert err.startswith(f"{path}:3: cost.{key}: can't be used: ")
        assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("key", COST)
def test_files_that_a_tuning_names_are_read(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named.json"
    assert f"{named}: No such file" in check(tmp_path, key, str(named), capsys)
    named.write_text(json.dumps(GOOD[key]))
    assert not check(tmp_path, key, str(named), capsys)
    for content in (b"", b"{", b"\xff\xfe", b"[1]", b"{}", b"3", b'{"verify_ms_by_tokens": 3, "model_type": []}'):
        named.write_bytes(content)
        said = check(tmp_path, key, str(named), capsys)
        assert str(named) in said, content
        assert "working directory" not in said
    named.unlink()
    named.mkdir()
    assert check(tmp_path, key, str(named), capsys)

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "near.json").write_text(json.dumps(GOOD[key]))
    monkeypatch.chdir(tmp_path)
    assert not check(tmp_path, key, "near.json", capsys)
    monkeypatch.chdir(tmp_path / "elsewhere")
    said = check(tmp_path, key, "near.json", capsys)
    assert f"working directory of whoever reads it; here: {tmp_path / 'elsewhere'}" in said


def test_json_tells_of_files_that_a_tuning_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tuning.yaml"
    path.write_text(f"cost:\n  source: file\n  file: {tmp_path / 'gone.json'}\n")
    assert TuningConfig.load(path).cost.file == tmp_path / "gone.json"  # it touches no other file
    assert main(["validate", str(path), "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)
    assert not result["valid"]
    assert result["errors"][0].startswith(f"{path}:3: cost.file: can't be used: ")


def test_validating_loads_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "tuning.yaml"
    path.write_text("policy: {name: acceptance-bandit}")
    code = (
        "import sys; from adaptive_spec.cli import main\n"
        f"code = main(['validate', {str(path)!r}])\n"
        "sys.exit(code or int(bool({'torch', 'numba', 'transformers'} & set(sys.modules))))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["validate"], ["validate", "--nonsense"], ["bench"], ["generate", "--max-tokens", "many", "x"]],
)
def test_wrong_use_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["validate", "generate", "bench"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:" in out
    assert f"adaptive-spec {command}" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("adaptive-spec ")
