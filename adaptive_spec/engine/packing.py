"""Packs ragged rows of many sequences into one pass."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_spec.engine.packed_batch import PackedBatch
from adaptive_spec.step import IntArray


def pack(
    tokens: IntArray,
    start: IntArray,
    width: IntArray,
    block_table: NDArray[np.int32],
    logit_rows: IntArray,
    block_size: int,
    device: torch.device | None = None,
) -> PackedBatch:
    """Work out where each row stands and where its keys and values go.

    Parameters
    ----------
    tokens : int array, shape (sum of width,)
        The sequences' rows end to end.
    start, width : int array, shape (S,)
        Position of each sequence's first row, and how many rows it has.
    block_table : int32 array, shape (S, any)
        Blocks of each sequence.
    logit_rows : int array, shape (R,)
        Rows whose logits are wanted.
    device : torch.device, optional
        Where the batch is wanted; the host if None.
    """
    cu = np.zeros(len(width) + 1, dtype=np.int64)
    np.cumsum(width, out=cu[1:])
    owner = np.repeat(np.arange(len(width)), width)
    positions = np.arange(len(tokens)) + (start - cu[:-1])[owner]
    slots = block_table[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    batch = PackedBatch(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        cu=torch.from_numpy(cu.astype(np.int32)),
        kv_len=torch.from_numpy((start + width).astype(np.int32)),
        block_table=torch.from_numpy(block_table),
        slots=torch.from_numpy(slots),
        logit_rows=torch.from_numpy(logit_rows),
    )
    return batch if device is None else batch.to(device)
