"""How many KV blocks there is memory for."""

from __future__ import annotations

import gc
import os

import torch

GIB = 2**30
CPU_SHARE, CPU_MOST = 0.3, 4 * GIB  # of what is available, for one engine
CPU_SHARE_OF_ALL = 0.6  # for all engines of a process
CUDA_SHARE = 0.8  # of what the weights leave


def kv_cache_blocks(
    block_bytes: int, wanted: int, device: torch.device, memory_bytes: int | None = None, engines: int = 1
) -> int:
    """Blocks that fit: at most `wanted`, within `memory_bytes` or a share of what is free.

    Where several `engines` are to stand beside each other, that share leaves as much for each of the others; a given
    `memory_bytes` is one engine's own.

    Raises
    ------
    ValueError
        If not even one fits, or `engines` is not positive.
    """
    if engines < 1:
        raise ValueError(f"engines is {engines}; it must be at least 1")
    if memory_bytes is None:
        memory_bytes = _share_of_free(device, engines)
    fitting = memory_bytes // block_bytes
    if fitting < 1:
        raise ValueError(
            f"a KV block takes {block_bytes:,} bytes, and the KV cache may take {memory_bytes:,}; "
            "raise kv_cache_memory_bytes or lower block_size"
        )
    return int(min(wanted, fitting))


def give_back(device: torch.device) -> None:
    """Give the memory of earlier engines back to a GPU: they are in cycles, and torch keeps what was freed."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _share_of_free(device: torch.device, engines: int) -> int:
    if device.type == "cuda":
        give_back(device)
        return int(torch.cuda.mem_get_info(device)[0] * CUDA_SHARE / engines)
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not told on this system
        available = int(CPU_MOST / CPU_SHARE)
    return int(min(CPU_MOST, available * min(CPU_SHARE, CPU_SHARE_OF_ALL / engines)))
