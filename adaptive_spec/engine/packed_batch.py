"""PackedBatch: the rows of one ragged pass, and where each stands."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class PackedBatch:
    """One ragged pass: sequence b owns the packed rows ``cu[b]`` to ``cu[b+1] - 1``.

    Attributes
    ----------
    tokens, positions : int64 Tensor, shape (N,)
        Token of each row, and its place in its sequence.
    cu : int32 Tensor, shape (B + 1,)
        Where each sequence's rows begin.
    kv_len : int32 Tensor, shape (B,)
        Tokens of each sequence in the cache after this pass's writes.
    block_table : int32 Tensor, shape (B, max_blocks)
        Blocks of each sequence; entries beyond ``ceil(kv_len / block_size)`` are not read.
    slots : int64 Tensor, shape (N,)
        Where each row's key and value are written: ``block * block_size + offset``.
    logit_rows : int64 Tensor, shape (R,)
        The packed rows whose logits are wanted.
    max_width : int, optional
        No decoding sequence has more rows: GPUs then use smaller tiles. None: not known.
    """

    tokens: Tensor
    positions: Tensor
    cu: Tensor
    kv_len: Tensor
    block_table: Tensor
    slots: Tensor
    logit_rows: Tensor
    max_width: int | None = None

    def to(self, device: torch.device) -> PackedBatch:
        """Return the batch on a device; itself if it is there."""
        if self.tokens.device == device:
            return self
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            moved[field.name] = value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        return PackedBatch(**moved)
