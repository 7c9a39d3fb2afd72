"""CpuAttention: one pass's rotation, cache writes and attention on the CPU, on torch's own threads."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_spec.engine.cpu_kernels import Word, kernels

BITS = {torch.bfloat16: torch.uint16, torch.float32: torch.uint32}
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

Array = np.ndarray[Any, Any]


class CpuAttention:
    """The kernels of :mod:`~adaptive_spec.engine.cpu_kernels`, bound to one pass's arrays.

    Parameters
    ----------
    dtype : torch.dtype
        Of projections, cache and results: bfloat16 or float32.
    heads, kv_heads, head_dim : int
    cu, kv_len, block_table : Tensor
        As in :class:`~adaptive_spec.engine.model.PackedBatch`.
    scale : float
        What scores are multiplied by.
    widest : int
        Sequences of more rows are left to the caller.
    q : float32 array, shape (N, heads * head_dim)
        Rotated queries: written by :meth:`project`, read by :meth:`attend`.
    out : Tensor, shape (>= N, heads * head_dim)
        Results.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        heads: int,
        kv_heads: int,
        head_dim: int,
        cu: Tensor,
        kv_len: Tensor,
        block_table: Tensor,
        scale: float,
        widest: int,
        q: Array,
        out: Tensor,
    ) -> None:
        rows, sequences = len(q), len(kv_len)
        self._threads = torch.get_num_threads()
        self._project, self._attend = (kernel.address for kernel in kernels(dtype.itemsize))
        # All heads of a token lie together and are best read together: split only to occupy the threads.
        parts = min(kv_heads, -(-self._threads // max(sequences, 1)))
        self._words = np.zeros(len(Word), np.int64)
        self._address = self._words.ctypes.data
        self._reals = np.array([0.0, scale], np.float32)
        self._row_items, self._head_items = -(-rows // 8), sequences * parts
        self._alive: dict[str, object] = {}  # what the addresses point at
        self._set(rows=rows, sequences=sequences, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        self._set(parts=parts, widest=widest, reals=self._reals, q=q, out=out)
        self._set(cu=cu.int(), kv_len=kv_len.int(), table=block_table.int().contiguous())
        self._set(table_width=block_table.shape[1])

    def rope(self, positions: Tensor, slots: Tensor, cos: Tensor, sin: Tensor, norm_dim: int, eps: float) -> None:
        """Say where rows stand and are written, with the rotary tables and the heads' norm (0: none)."""
        self._reals[0] = eps
        self._set(positions=positions, slots=slots, cos=cos, sin=sin, lengths=len(cos), norm_dim=norm_dim)

    def cache(self, k: Tensor, v: Tensor) -> None:
        """Say which cache is meant: one layer, shape (num_blocks, block_size, kv_heads, head_dim)."""
        self._set(k=k, v=v, blocks=k.shape[0], block_size=k.shape[1])

    def project(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor, k: int, v: int) -> None:
        """Rotate the rows of `qkv` into `q` and the layer's cache, whose addresses are `k` and `v`."""
        words = self._words
        words[Word.QKV], words[Word.K], words[Word.V] = qkv.data_ptr(), k, v
        words[Word.Q_NORM], words[Word.K_NORM] = q_norm.data_ptr(), k_norm.data_ptr()
        self._run(self._project, self._row_items)

    def attend(self) -> None:
        """Attend over the layer's cache, for every sequence of at most `widest` rows."""
        self._run(self._attend, self._head_items)

    def _set(self, **values: Tensor | Array | int) -> None:
        for name, value in values.items():
            self._alive[name] = value
            if isinstance(value, Tensor):
                self._words[Word[name.upper()]] = value.data_ptr()
            elif isinstance(value, np.ndarray):
                self._words[Word[name.upper()]] = value.ctypes.data
            else:
                self._words[Word[name.upper()]] = value

    def _run(self, kernel: int, items: int) -> None:
        self._words[Word.CLAIMED], self._words[Word.ITEMS] = 0, items
        threads = min(self._threads, items)
        parallel = _parallel() if threads > 1 else None
        if parallel is None:
            _KERNEL(kernel)(self._address)
        else:
            # Always torch's number of threads: another one would make the pool rebuild its team.
            parallel(kernel, self._address, self._threads, 0)


@cache
def _parallel() -> Any:
    """Return OpenMP's entry point ``GOMP_parallel(function, data, threads, flags)`` of torch's runtime.

    numba's own pool would be a second one, whose threads and torch's spin against each other on the same
    cores. The symbol is part of the ABI that GCC, LLVM and Intel runtimes share; None where there is none,
    and the kernels then run on the calling thread.
    """
    try:
        function = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function
