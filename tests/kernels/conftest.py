"""The Triton kernels run on a GPU where there is one, and in Triton's interpreter elsewhere.

Whether a kernel is interpreted is settled when Triton and the kernel's module are imported. Other tests of the same
process may have imported Triton before (transformers does), so it is loaded a second time here, with the variable
set for that long and no longer: processes that other tests start must not inherit it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec

import numpy as np
import pytest
import torch

KERNEL_MODULES = (
    "triton_noise",
    "float_order",
    "launch",
    "truncation",
    "verify",
    "ratio",
    "attention",
    "rotary",
    "allocate",
    "accept_stats",
)
INTERPRETED = find_spec("triton") is not None and not torch.cuda.is_available()


def _interpret() -> None:
    for name in list(sys.modules):
        if (name == "triton" or name.startswith("triton.")) and not name.startswith("triton._C"):
            del sys.modules[name]
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        for name in KERNEL_MODULES:
            importlib.import_module(f"adaptive_spec.kernels.{name}")
        importlib.import_module("triton_noise_probe")
        if find_spec("triton.experimental.gluon"):  # loaded at the first launch, and looks at the variable too
            importlib.import_module("triton.experimental.gluon")
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before
    import fast_interpreter

    fast_interpreter.install()


if INTERPRETED:
    _interpret()


@pytest.fixture
def device() -> Iterator[torch.device]:
    """Where kernels run. Skips without Triton. Infinities are meant: numpy, which interprets, is told so."""
    if find_spec("triton") is None:
        pytest.skip("needs triton")
    with np.errstate(all="ignore"):
        yield torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def kernels(device):
    """Within, everything runs on the GPU's kernels."""
    from adaptive_spec.kernels import backend

    with backend.use("triton") if device.type == "cpu" else nullcontext():
        yield device
