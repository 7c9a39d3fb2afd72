"""BlockPool: which block of the KV cache belongs to whom, and which prefixes can be reused."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from adaptive_spec.serving.sequence import Sequence

ROOT = 0  # the name of the empty prefix
UNCLAIMED = -1
NEVER = np.iinfo(np.int64).max

PrefixKey: TypeAlias = tuple[int, tuple[int, ...]]  # the name of what precedes a block, and the block's tokens


class BlockPool:
    """Paged KV accounting with prefix reuse.

    Blocks are reference-counted. A block that is full of *verified* tokens is entered in the prefix cache
    under the name of the text before it and its own tokens, so that a match compares the tokens themselves and
    a hash collision can't hand out another text's keys and values. Names are never used twice: what was
    cached behind an evicted block becomes unreachable, and no more. Blocks that nobody holds keep their
    content until they are needed, the least recently used first (the idea is vLLM's
    automatic prefix caching; Kwon et al. 2023).

    A sequence's blocks are consecutive where possible, because attention on CPU then reads them as one
    slice: on admission a window is claimed for the whole of its life. A claim is a preference only; when
    nothing else is free, others take from it.

    Parameters
    ----------
    num_blocks : int
        Blocks in the KV cache.
    block_size : int
        Tokens in a block.
    enable_prefix_caching : bool
        Whether blocks are reused.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV cache needs blocks: num_blocks={num_blocks}, block_size={block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_free = num_blocks
        self._references = np.zeros(num_blocks, dtype=np.int32)
        self._last_used = np.zeros(num_blocks, dtype=np.int64)  # of free cached blocks; 0: nothing to lose
        self._claim = np.full(num_blocks, UNCLAIMED, dtype=np.int64)
        self._cache: dict[PrefixKey, tuple[int, int]] = {}  # to the name of the text so far, and its last block
        self._entry: list[PrefixKey | None] = [None] * num_blocks
        self._names = ROOT
        self._now = 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def admit(self, sequence: Sequence, spare: int = 0) -> bool:
        """Give a sequence the blocks of all its tokens, reusing what is cached; False if too few are free.

        Parameters
        ----------
        sequence : Sequence
            Holds no blocks. Its `num_computed` is set to the tokens that were found in the cache, at most
            all but one: the last is computed to have its logits.
        spare : int
            Blocks that must stay free.
        """
        names, hits = self._match(sequence.tokens)
        needed = self.blocks_for(len(sequence.tokens))
        idle = sum(1 for block in hits if not self._references[block])
        if needed - len(hits) + idle + spare > self.num_free:
            return False
        for block in hits:
            if not self._references[block]:
                self.num_free -= 1
                self._last_used[block] = 0
            self._references[block] += 1
        sequence.blocks.extend(hits)
        sequence.num_committed = len(hits)
        sequence.prefix = names[-1] if names else ROOT
        sequence.num_computed = len(hits) * self.block_size
        lifetime = self.blocks_for(sequence.num_prompt_tokens + sequence.max_tokens - 1)
        self._claim_window(sequence, max(lifetime, needed) - len(hits), needed - len(hits))
        self.grow(sequence, len(sequence.tokens))
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """See that a sequence has the blocks for `num_tokens` tokens; False, and no change, if too few are free."""
        missing = self.blocks_for(num_tokens) - len(sequence.blocks)
        if missing > self.num_free:
            return False
        for _ in range(missing):
            block = self._next_block(sequence)
            entry = self._entry[block]
            if entry is not None:
                del self._cache[entry]
                self._entry[block] = None
            self._references[block] = 1
            self._last_used[block] = 0
            self.num_free -= 1
            sequence.blocks.append(block)
        return True

    def commit(self, sequence: Sequence) -> None:
        """Enter the sequence's full blocks of computed tokens into the prefix cache."""
        if not self.enable_prefix_caching:
            return
        size = self.block_size
        for i in range(sequence.num_committed, sequence.num_computed // size):
            key = (sequence.prefix, tuple(sequence.tokens[i * size : (i + 1) * size]))
            found = self._cache.get(key)
            if found is None:
                self._names += 1
                block = sequence.blocks[i]
                found = self._cache[key] = (self._names, block)
                self._entry[block] = key
            sequence.prefix = found[0]
            sequence.num_committed += 1

    def trim(self, sequence: Sequence) -> None:
        """Take back blocks beyond the sequence's tokens: those that only rejected drafts had used."""
        needed = self.blocks_for(len(sequence.tokens))
        while len(sequence.blocks) > needed:
            self._put_back(sequence.blocks.pop())

    def release(self, sequence: Sequence) -> None:
        """Take back all of a sequence's blocks; what they hold stays reusable until they are needed."""
        start, stop = sequence.claim
        claim = self._claim[start:stop]
        claim[claim == sequence.id] = UNCLAIMED
        sequence.claim = (0, 0)
        while sequence.blocks:  # the last first: a prefix outlives what follows it
            self._put_back(sequence.blocks.pop())
        sequence.num_committed = 0
        sequence.prefix = ROOT
        sequence.num_computed = 0

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; sequences keep their blocks."""
        self._cache.clear()
        self._entry = [None] * self.num_blocks
        self._last_used[:] = 0

    def _put_back(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0:
            self.num_free += 1
            if self._entry[block] is not None:
                self._now += 1
                self._last_used[block] = self._now

    def _match(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """Names and blocks of the longest cached prefix that leaves a token to compute."""
        names: list[int] = []
        blocks: list[int] = []
        if self.enable_prefix_caching:
            size = self.block_size
            name = ROOT
            for start in range(0, (len(tokens) - 1) // size * size, size):
                found = self._cache.get((name, tuple(tokens[start : start + size])))
                if found is None:
                    break
                name = found[0]
                names.append(name)
                blocks.append(found[1])
        return names, blocks

    def _claim_window(self, sequence: Sequence, wanted: int, needed: int) -> None:
        """Set aside consecutive blocks for a sequence's life, or at least for what it needs now, if there are any."""
        open_ = (self._references == 0) & (self._claim == UNCLAIMED)
        after = sequence.blocks[-1] + 1 if sequence.blocks else 0
        if sequence.blocks and needed and open_[after : after + wanted].all() and after + wanted <= self.num_blocks:
            start, length = after, wanted
        else:
            opened = np.concatenate(([0], np.cumsum(open_)))
            worth = np.concatenate(([0], np.cumsum(self._last_used)))
            for length in (wanted, needed):
                if not 0 < length <= self.num_blocks:
                    continue
                whole = opened[length:] - opened[:-length] == length
                if whole.any():  # the window whose cached content was used longest ago
                    start = int(np.where(whole, worth[length:] - worth[:-length], NEVER).argmin())
                    break
            else:
                return
        self._claim[start : start + length] = sequence.id
        sequence.claim = (start, start + length)

    def _next_block(self, sequence: Sequence) -> int:
        """The free block that suits best: the next of its run, its claim's first, the least recently used."""
        blocks = sequence.blocks
        start, stop = sequence.claim
        for block in ((blocks[-1] + 1,) if blocks else ()) + ((start,) if start < stop else ()):
            if block < self.num_blocks and not self._references[block]:
                owner = self._claim[block]
                if owner == UNCLAIMED or owner == sequence.id:
                    return block
        free = self._references == 0
        unclaimed = free & (self._claim == UNCLAIMED)
        return int(np.where(unclaimed if unclaimed.any() else free, self._last_used, NEVER).argmin())
