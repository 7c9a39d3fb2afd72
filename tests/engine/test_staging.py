"""Staging: arrays arrive as they were sent, aligned, and again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaptive_spec.engine.staging import Staging

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_arrive_and_are_aligned(device):
    rng = np.random.default_rng(0)
    staging = Staging(torch.device(device))
    for size in (0, 1, 3, 5, 40, 2):
        values = [
            rng.integers(-(2**40), 2**40, size),
            rng.integers(-9, 9, 2 * size + 1).astype(np.int32),
            rng.random(size).astype(np.float32).view(np.int32),
            rng.integers(-(2**62), 2**62, 3),
        ]
        got = staging.put(*values)
        for value, tensor in zip(values, got, strict=True):
            assert tensor.dtype == (torch.int64 if value.dtype == np.int64 else torch.int32)
            assert tensor.tolist() == value.tolist()
            assert not len(value) or tensor.data_ptr() % 16 == 0


def test_only_what_is_sent_arrives():
    staging = Staging(torch.device("cpu"))
    first, second = staging.lay((2, torch.int64), (3, torch.int32))
    assert (first.start, second.start) == (0, 4)
    first.array[:] = [5, 6]
    second.array[:] = [7, 8, 9]
    staging.send(second.start + 3)
    assert first.tensor.tolist() == [5, 6]
    assert second.tensor.tolist() == [7, 8, 9]
