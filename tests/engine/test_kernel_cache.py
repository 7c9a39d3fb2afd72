"""Kernels that the CPU library has compiled for small passes outlive prompts of every length."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

LENGTHS = 1300  # more than oneDNN keeps by itself

PROGRAM = f"""
import torch
from adaptive_spec.engine.projection import Projection

layer = Projection(torch.zeros(8, 8, dtype=torch.bfloat16), None)
for rows in [*range(2, {LENGTHS} + 2), 7]:
    print("rows", rows, flush=True)
    layer(torch.zeros(rows, 8, dtype=torch.bfloat16))
"""


def misses(**environment: str) -> dict[str, int]:
    """How many kernels each number of rows had compiled when it was met last."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this CPU")
    inherited = {name: value for name, value in os.environ.items() if name != "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**inherited, "ONEDNN_VERBOSE": "profile_create", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    parts = run.stdout.split("rows ")[1:]
    return {part.split("\n", 1)[0]: part.count("create:cache_miss") for part in parts}


def test_small_passes_find_their_kernels_after_prompts_of_every_length() -> None:
    compiled = misses()
    assert compiled["900"] > 0
    assert compiled["7"] == 0


def test_without_room_they_do_not() -> None:
    assert misses(ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024")["7"] > 0
