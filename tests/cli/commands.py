"""Runs a command in this process, and reads what it printed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptive_spec.cli import main

ENGINE = ["--dtype", "float32", "--num-kv-blocks", "256"]


def run_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if "warning" not in line.lower()]
    assert len(lines) == 1, err
    return code, lines[0]
