"""Kernels that the CPU library has compiled for small passes outlive prompts of every length."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from adaptive_spec.engine.projection import Projection

BFLOAT16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 on this CPU: nothing is packed"
)
LENGTHS = 1300  # more than the kernels that oneDNN keeps by itself

PROGRAM = f"""
import torch
from adaptive_spec.engine.projection import Projection

layer = Projection(torch.zeros(8, 8, dtype=torch.bfloat16), None)
for rows in [*range(2, {LENGTHS}), 7]:
    print("rows", rows, flush=True)
    layer(torch.zeros(rows, 8, dtype=torch.bfloat16))
"""


def kernels_compiled(capacity: int | None = None) -> list[int]:
    """Kernels compiled for each pass: of 2, 3, 4, ... rows, and at last of 7 again."""
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    if capacity is not None:
        environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = str(capacity)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "ONEDNN_VERBOSE": "profile_create"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [part.count("create:cache_miss") for part in run.stdout.split("rows ")[1:]]


@BFLOAT16
def test_prompts_of_every_length_share_a_few_kernels() -> None:
    compiled = kernels_compiled()
    assert compiled[0] > 0
    assert compiled[-1] == 0
    assert sum(compiled) <= compiled[0] * (128 + LENGTHS / 16)


@BFLOAT16
def test_the_measure_sees_kernels_that_were_driven_out() -> None:
    assert kernels_compiled(capacity=32)[-1] > 0


@BFLOAT16
@pytest.mark.parametrize("rows", [1, 127, 128, 129, 143, 144, 145, 300])
def test_filled_rows_change_nothing(rows: int) -> None:
    torch.manual_seed(0)
    weight, x, other = torch.randn(24, 32), torch.randn(rows, 32), torch.randn(rows, 24)
    weight, x, other = weight.bfloat16(), x.bfloat16(), other.bfloat16()
    layer, plain = Projection(weight, None), F.linear(x.float(), weight.float())
    for got, wanted in (
        (layer(x), plain),
        (layer.silu(x), F.silu(plain)),
        (layer.add(x, other), plain + other),
        (layer.multiply(x, other), plain * other),
    ):
        assert got.shape == wanted.shape
        torch.testing.assert_close(got.float(), wanted, rtol=0.02, atol=0.1)
