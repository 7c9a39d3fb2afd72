"""Packs ragged rows of many sequences into one pass."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_spec.engine.model import PackedBatch
from adaptive_spec.step import IntArray


def pack(
    tokens: IntArray,
    start: IntArray,
    width: IntArray,
    block_table: NDArray[np.int32],
    logit_rows: IntArray,
    block_size: int,
    device: torch.device,
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
    """
    cu = np.zeros(len(width) + 1, dtype=np.int64)
    np.cumsum(width, out=cu[1:])
    owner = np.repeat(np.arange(len(width)), width)
    positions = np.arange(len(tokens)) + (start - cu[:-1])[owner]
    slots = block_table[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    return PackedBatch(
        tokens=torch.from_numpy(tokens).to(device),
        positions=torch.from_numpy(positions).to(device),
        cu=torch.from_numpy(cu.astype(np.int32)).to(device),
        kv_len=torch.from_numpy((start + width).astype(np.int32)).to(device),
        block_table=torch.from_numpy(block_table).to(device),
        slots=torch.from_numpy(slots).to(device),
        logit_rows=torch.from_numpy(logit_rows).to(device),
    )
