"""The compile check records what launchers launch, compiles it without a GPU, and finds what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from adaptive_spec.kernels import compile_check
from adaptive_spec.kernels.compile_check import Compiled, Specialisation


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "adaptive_spec.kernels.compile_check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**environment, **variables}, check=False)


def test_it_compiles_in_a_process_of_its_own(tmp_path):
    report = tmp_path / "report.json"
    done = run("--targets", "cuda:90,hip:gfx942", "--only", "greedy_kernel[bf16", "--json", str(report), "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert "0 faults" in done.stdout
    rows = json.loads(report.read_text())
    assert {row["target"] for row in rows} == {"cuda:90", "hip:gfx942"}
    assert all(row["registers"] > 0 and row["spills"] == 0 for row in rows)
    aligned = [row for row in rows if row["target"] == "cuda:90" and "unaligned" not in row["name"]]
    assert all(row["wide_loads"] > 0 for row in aligned)
    assert aligned


def test_it_refuses_to_interpret():
    done = run(TRITON_INTERPRET="1")
    assert done.returncode == 1
    assert "unset TRITON_INTERPRET" in done.stderr


# Compiles a kernel as it is launched, and with a constant that the compiler refuses.
BROKEN = """
from dataclasses import replace
from adaptive_spec.kernels import compile_check
right = next(one for one in compile_check.record() if one.kernel == "accept_kernel")
constants = tuple((name, 3 if name == "WIDTH" else value) for name, value in right.constants)
for one in (right, replace(right, constants=constants)):
    result = compile_check.compile_one((one, "cuda:90"))
    print(result.registers, result.fault.replace("\\n", " "))
"""


def test_an_error_of_the_compiler_is_a_fault(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DUMP_PTXAS_LOG": "1"}
    command = [sys.executable, "-c", BROKEN]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    right, wrong = done.stdout.splitlines()[-2:]
    assert int(right.split()[0]) > 0
    assert len(right.split()) == 1
    assert wrong.startswith("0 CompilationError: ")
    assert "range must be a power of 2" in wrong


@pytest.mark.parametrize(
    ("registers", "spills", "wide", "divisible", "fault"),
    [
        (128, 0, 1, ("row_stride",), ""),
        (129, 0, 1, ("row_stride",), "129 registers; at most 128 are allowed"),
        (100, 8, 1, ("row_stride",), "spills 8"),
        (100, 0, 0, ("row_stride",), "logits are not loaded 16 bytes at once"),
        (100, 0, 0, (), ""),
        (100, 8, 0, (), "spills 8"),
    ],
)
def test_what_counts_as_a_fault(registers, spills, wide, divisible, fault):
    one = Specialisation("verify", "greedy_kernel", (), (), divisible, ())
    result = Compiled("cuda:90", one.name, 0.0, registers, spills, 0, wide)
    assert compile_check._fault(result, one, "cuda", "90") == fault


def test_everything_that_the_engine_launches_is_compiled():
    script = Path(__file__).parent / "engine_launches.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 40
