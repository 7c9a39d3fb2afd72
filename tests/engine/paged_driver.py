"""Drive a Model by hand: sequences with scattered KV blocks, fed in any chunks, packed in any order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from adaptive_spec.engine.model import Model, PackedBatch


class PagedDriver:
    """Sequences of one model whose blocks are handed out in random order."""

    def __init__(self, model: Model, *, num_blocks: int = 64, block_size: int = 4, seed: int = 0) -> None:
        self.model = model
        self.block_size = block_size
        self.cache = model.new_kv_cache(num_blocks, block_size)
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)
        self.blocks: dict[int, list[int]] = {}
        self.length: dict[int, int] = {}

    def feed(self, parts: Sequence[tuple[int, Sequence[int]]]) -> list[torch.Tensor]:
        """Append tokens to sequences in one pass; logits of all new rows, one [n, V] tensor a sequence."""
        tokens, positions, slots, cu, kv_len = [], [], [], [0], []
        for sequence, new in parts:
            blocks = self.blocks.setdefault(sequence, [])
            start = self.length.get(sequence, 0)
            self.length[sequence] = start + len(new)
            while len(blocks) * self.block_size < self.length[sequence]:
                blocks.append(self._free.pop())
            tokens += list(new)
            for position in range(start, start + len(new)):
                positions.append(position)
                slots.append(blocks[position // self.block_size] * self.block_size + position % self.block_size)
            cu.append(cu[-1] + len(new))
            kv_len.append(self.length[sequence])
        widest = max(len(self.blocks[s]) for s, _ in parts)
        table = [self.blocks[s] + [0] * (widest - len(self.blocks[s])) for s, _ in parts]
        batch = PackedBatch(
            tokens=torch.tensor(tokens),
            positions=torch.tensor(positions),
            cu=torch.tensor(cu, dtype=torch.int32),
            kv_len=torch.tensor(kv_len, dtype=torch.int32),
            block_table=torch.tensor(table, dtype=torch.int32),
            slots=torch.tensor(slots),
            logit_rows=torch.arange(cu[-1]),
        )
        logits = self.model.forward(batch, self.cache)
        return list(logits.split([len(new) for _, new in parts]))

    def rewind(self, sequence: int, length: int) -> None:
        """Forget the tokens of a sequence from `length` on, as after rejected drafts."""
        self.length[sequence] = length
