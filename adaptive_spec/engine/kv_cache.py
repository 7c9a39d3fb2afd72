"""KVCache: the keys and values of all sequences, in blocks of a fixed number of tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from adaptive_spec.engine.captured_pass import CapturedPasses

CACHE_LINE = 64  # bytes


class KVCache:
    """Paged key-value memory of one model.

    Which block belongs to which sequence is the scheduler's business; a token's slot is
    ``block * block_size + offset``.

    Parameters
    ----------
    num_layers, num_blocks, block_size, num_kv_heads, head_dim : int
        Geometry; `block_size` in tokens.
    dtype : torch.dtype
        Type of the entries.
    device : torch.device
        Where they lie.

    Attributes
    ----------
    k, v : Tensor, shape (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        Keys (rotated) and values.
    captured : CapturedPasses or None
        Passes that were captured over this cache.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache of {num_blocks} blocks of {block_size} tokens; both must be at least 1")
        shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        try:
            self.k, self.v = _zeros(shape, dtype, device), _zeros(shape, dtype, device)
        except (RuntimeError, MemoryError) as error:  # torch's allocator has no MemoryError of its own
            gigabytes = 2 * math.prod(shape) * dtype.itemsize / 1e9
            raise MemoryError(
                f"a KV cache of {num_blocks} blocks takes {gigabytes:,.1f} GB, more than {device} can give; "
                "lower num_kv_blocks"
            ) from error
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.captured: CapturedPasses | None = None
        # What the CPU kernels are told of each layer's keys and values.
        self.addresses: list[tuple[int, int]] = []
        if device.type == "cpu" and dtype in (torch.float32, torch.bfloat16):
            self.addresses = [(k.data_ptr(), v.data_ptr()) for k, v in zip(self.k, self.v, strict=True)]

    @property
    def num_bytes(self) -> int:
        """Bytes that the keys and values occupy."""
        return 2 * self.k.numel() * self.k.element_size()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU those that the system hands out page by page when they are written, which torch's are not."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(num_bytes + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return torch.from_numpy(memory[start : start + num_bytes]).view(dtype).view(shape)
