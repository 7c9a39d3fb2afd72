"""Which implementation of a kernel serves a device, and whether values on a device are checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

# cpu: numba, or torch where that is faster; triton: the GPU kernels; torch: the references, on any device.
Backend = Literal["cpu", "triton", "torch"]

_forced: ContextVar[Backend | None] = ContextVar("forced", default=None)
_trusted: ContextVar[bool] = ContextVar("trusted", default=False)
_inert: ContextVar[bool] = ContextVar("inert", default=False)


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def backend_of(tensor: Tensor) -> Backend:
    """Return what serves tensors like this one: Triton on GPUs, where it is installed, and `cpu` on CPU."""
    forced = _forced.get()
    if forced is not None:
        return forced
    if tensor.device.type == "cpu":
        return "cpu"
    return "triton" if tensor.device.type == "cuda" and has_triton() else "torch"


@contextmanager
def use(backend: Backend) -> Iterator[None]:
    """Use one implementation for everything within, whatever the device.

    With ``TRITON_INTERPRET=1`` set before Triton is imported, ``use("triton")`` runs the GPU kernels on CPU tensors.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"no backend {backend!r}; there are {', '.join(get_args(Backend))}")
    if backend == "triton" and not has_triton():
        raise RuntimeError("the backend 'triton' needs triton: pip install 'adaptive-spec[gpu]'")
    token = _forced.set(backend)
    try:
        yield
    finally:
        _forced.reset(token)


@contextmanager
def trusted() -> Iterator[None]:
    """Leave the *values* of arguments on a GPU unchecked within: reading them makes the host wait.

    Shapes, types and devices are checked all the same. For engines, which make the offsets themselves.
    """
    token = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(token)


@contextmanager
def inert_rows() -> Iterator[None]:
    """Allow the padding of a captured pass within, on any device: the Triton kernels are made for it.

    Sequences at the end of ``cu`` may have no rows, and rows beyond the last offset belong to none: what is worked
    out for them means nothing. Values are not looked at, as under :func:`trusted`.
    """
    token = _inert.set(True)
    try:
        yield
    finally:
        _inert.reset(token)


def reads_values(tensor: Tensor) -> bool:
    """Whether this tensor's values may be looked at: see :func:`trusted`, :func:`inert_rows`; never in a capture."""
    if _inert.get():
        return False
    if tensor.device.type == "cpu":
        return True
    return not (_trusted.get() or torch.cuda.is_current_stream_capturing())
