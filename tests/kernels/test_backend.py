"""What serves a device, and that the front door opens without Triton."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from adaptive_spec.kernels import backend


def test_without_triton_the_cpu_works_and_says_what_is_missing():
    code = """
import sys
class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
sys.meta_path.insert(0, NoTriton())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "triton" else real(name, package)
import torch
from adaptive_spec.kernels import backend, ops
ints = lambda *values: torch.tensor(values, dtype=torch.int32)
tokens, count = ops.verify_greedy(torch.eye(3), ints(0, 2, 3), ints(0), 1)
print(tokens.tolist(), count.tolist())
print(ops.allocate(torch.ones(1, 1), torch.ones(1), ints(1), 1.0, torch.ones(2), torch.zeros(2)).depth.tolist())
try:
    with backend.use("triton"):
        pass
except RuntimeError as error:
    print(error)
print("triton" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[[0, 1], [2, -1]] [2, 1]",
        "[1]",
        "the backend 'triton' needs triton: pip install 'adaptive-spec[gpu]'",
        "False",
    ]


def test_importing_the_front_door_loads_neither_triton_nor_numba():
    code = (
        "import sys; from adaptive_spec.kernels import ops; print([m for m in ('triton', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_used_ends_with_the_block():
    cpu = torch.zeros(1)
    assert backend.backend_of(cpu) == "cpu"
    with backend.use("torch"):
        assert backend.backend_of(cpu) == "torch"
        with backend.use("cpu"):
            assert backend.backend_of(cpu) == "cpu"
        assert backend.backend_of(cpu) == "torch"
    with pytest.raises(KeyError), backend.use("torch"):
        raise KeyError
    assert backend.backend_of(cpu) == "cpu"


def test_values_on_cpu_are_always_looked_at():
    with backend.trusted():
        assert backend.reads_values(torch.zeros(1))
