"""BlockCounter: the KV accounting of a replay, where blocks are counted and hold nothing."""

from __future__ import annotations

from adaptive_spec.serving.blocks import ROOT, BlockPool
from adaptive_spec.serving.sequence import Sequence


class BlockCounter(BlockPool):
    """A block pool that gives and takes as many blocks as its base, without caring which.

    Nothing is read from a replay's blocks, so they needn't be consecutive; and its tokens are all alike, so that a
    prefix cache would take every prompt for every other's. It equals an engine without prefix caching.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, enable_prefix_caching=False)
        self._free = list(range(num_blocks))

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """As in the base."""
        missing = self.blocks_for(num_tokens) - len(sequence.blocks)
        if missing > 0:
            if missing > self.num_free:
                return False
            sequence.blocks.extend(self._free[-missing:])
            del self._free[-missing:]
            self.num_free -= missing
        return True

    def trim(self, sequence: Sequence) -> None:
        """As in the base."""
        self._take_back(sequence, self.blocks_for(len(sequence.tokens)))

    def release(self, sequence: Sequence) -> None:
        """As in the base."""
        self._take_back(sequence, 0)
        sequence.num_committed = 0
        sequence.prefix = ROOT
        sequence.num_computed = 0

    def _take_back(self, sequence: Sequence, kept: int) -> None:
        if len(sequence.blocks) > kept:
            given = sequence.blocks[kept:]
            del sequence.blocks[kept:]
            self._free += given
            self.num_free += len(given)

    def _claim_window(self, sequence: Sequence, wanted: int, needed: int) -> None:
        """Nothing is set aside."""


class ComputedElsewhere(BlockCounter):
    """A block counter whose admitted sequences come with the keys and values of all their tokens but the last."""

    def admit(self, sequence: Sequence, spare: int = 0) -> bool:
        """As in the base; what was admitted has one token left to compute."""
        if not super().admit(sequence, spare):
            return False
        sequence.num_computed = len(sequence.tokens) - 1
        return True
