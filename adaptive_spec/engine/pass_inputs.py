"""PassInputs: the inputs of all captured passes over one KV cache, at fixed addresses."""

from __future__ import annotations

import torch

from adaptive_spec.engine.buckets import Bucket
from adaptive_spec.engine.packed_batch import PackedBatch
from adaptive_spec.engine.staging import Staged, Staging

INERT_SLOT = -1  # of rows whose key and value are written nowhere


class PassInputs:
    """Buffers that every bucket's pass reads a part of; passes run one after another, so that they may share them.

    Parameters
    ----------
    device : torch.device
    largest : Bucket
        What they hold at most.
    blocks : int
        Blocks that a sequence can have.
    """

    def __init__(self, device: torch.device, largest: Bucket, blocks: int) -> None:
        rows, sequences = largest
        self.largest, self.blocks = largest, blocks
        self._staging = Staging(device)
        long, short = torch.int64, torch.int32
        self._tokens, self._positions, self._slots, self._logit_rows, self._cu, self._kv_len, self._compact = (
            self._staging.lay(
                *[(rows, long)] * 4, (sequences + 1, short), (sequences, short), (sequences * blocks, short)
            )
        )
        # Of the block table only the columns in use are sent, and spread over the rows where they are.
        self._table = torch.zeros((sequences, blocks), dtype=torch.int32, device=device)

    def batch(self, bucket: Bucket, max_width: int | None) -> PackedBatch:
        """The part that the pass of a bucket reads; its logits' rows are taken apart from it."""
        rows, sequences = bucket
        return PackedBatch(
            self._tokens.tensor[:rows],
            self._positions.tensor[:rows],
            self._cu.tensor[: sequences + 1],
            self._kv_len.tensor[:sequences],
            self._table[:sequences],
            self._slots.tensor[:rows],
            self._logit_rows.tensor[:0],
            max_width,
        )

    def fill(self, bucket: Bucket, batch: PackedBatch) -> torch.Tensor:
        """Take over a batch that lies on the host and fits the bucket, filled up with inert rows; not waited for.

        Returns
        -------
        int64 Tensor, shape (R,)
            The rows whose logits are wanted, on the device.
        """
        rows, sequences, wanted = len(batch.tokens), len(batch.kv_len), len(batch.logit_rows)
        self._staging.ready()
        _write(self._tokens, batch.tokens, 0, bucket.positions)
        _write(self._positions, batch.positions, 0, bucket.positions)
        _write(self._slots, batch.slots, INERT_SLOT, bucket.positions)
        _write(self._logit_rows, batch.logit_rows, 0, wanted)
        _write(self._cu, batch.cu, rows, bucket.sequences + 1)
        _write(self._kv_len, batch.kv_len, 0, bucket.sequences)
        width = batch.block_table.shape[1]
        used = sequences * width
        _write(self._compact, batch.block_table.reshape(-1), 0, used)
        self._staging.send(self._compact.start + used)
        self._table[:sequences, :width].copy_(self._compact.tensor[:used].view(sequences, width))
        return self._logit_rows.tensor[:wanted]

    def clear(self, bucket: Bucket) -> None:
        """Fill a bucket with inert rows alone."""
        nothing = torch.zeros(0, dtype=torch.int64)
        none = torch.zeros(0, dtype=torch.int32)
        empty = PackedBatch(nothing, nothing, none.new_zeros(1), none, none.view(0, 1), nothing, nothing)
        self.fill(bucket, empty)


def _write(staged: Staged, values: torch.Tensor, inert: int, size: int) -> None:
    """Write values, and what is inert after them up to `size`."""
    staged.array[: len(values)] = values.numpy()
    staged.array[len(values) : size] = inert
