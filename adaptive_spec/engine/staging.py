"""Staging: carries small integer arrays to a device in one copy that the host does not wait for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntegerArray = NDArray[np.int32] | NDArray[np.int64]
ALIGNMENT = 4  # words: kernels are compiled for pointers that are divisible by 16


class Staged(NamedTuple):
    """One array of a staging.

    Attributes
    ----------
    array : int32 or int64 array
        On the host, to be written.
    tensor : Tensor
        Its twin on the device.
    start : int
        Where it begins, in 32-bit words.
    """

    array: NDArray[Any]
    tensor: Tensor
    start: int


class Staging:
    """A pinned host buffer and its twin at a fixed address on the device.

    Arrays lie one after another, so that one copy of a prefix moves them all.

    Parameters
    ----------
    device : torch.device
        Where arrays go. On a CPU the two buffers are one, and nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._allocate(0)

    def _allocate(self, words: int) -> None:
        on_gpu = self.device.type != "cpu"
        self._host = torch.zeros(words, dtype=torch.int32, pin_memory=on_gpu)
        self._there = torch.zeros_like(self._host, device=self.device) if on_gpu else self._host

    def lay(self, *kinds: tuple[int, torch.dtype]) -> list[Staged]:
        """Lay arrays of these sizes and types one after another; they hold until the buffers have to grow."""
        starts, words = [], 0
        for size, dtype in kinds:
            starts.append(words)
            words += -(-size * dtype.itemsize // (4 * ALIGNMENT)) * ALIGNMENT
        if words > len(self._host):
            self._allocate(2 * words if len(self._host) else words)
        staged = []
        for start, (size, dtype) in zip(starts, kinds, strict=True):
            here = slice(start, start + size * dtype.itemsize // 4)
            staged.append(Staged(self._host[here].view(dtype).numpy(), self._there[here].view(dtype), start))
        return staged

    def ready(self) -> None:
        """Return when the host buffer may be written again: at once, unless its last copy is still to be made."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self, words: int) -> None:
        """Copy the first `words` 32-bit words to the device, in the order of its stream."""
        if self._there is not self._host:
            self._there[:words].copy_(self._host[:words], non_blocking=True)
            if self._sent is not None:
                self._sent.record()

    def put(self, *values: IntegerArray) -> list[Tensor]:
        """Copy one-dimensional arrays to the device."""
        staged = self.lay(*((len(v), torch.int64 if v.dtype == np.int64 else torch.int32) for v in values))
        self.ready()
        for (array, _, _), value in zip(staged, values, strict=True):
            array[:] = value
        if staged:
            self.send(staged[-1].start + staged[-1].array.nbytes // 4)
        return [one.tensor for one in staged]
