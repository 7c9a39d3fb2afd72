"""DraftText: one text as a draft model knows it, and DraftMemory: the KV blocks of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from adaptive_spec.engine.text_sampling import TextSampling
from adaptive_spec.serving.blocks import BlockPool
from adaptive_spec.serving.sequence import Sequence

NEVER_VERIFIED = -1.0


@dataclass(slots=True, eq=False)
class DraftText:
    """One text of a draft model.

    Attributes
    ----------
    sequence : Sequence
        Its tokens and KV blocks; `num_computed` counts the verified tokens whose keys and values are right.
    sampling : TextSampling
        How its tokens are chosen.
    offered : int
        Drafts that this step's offer promised.
    draft : list of int
        What was drafted since its last token; all but the last of them were computed.
    last_accepted : float
        Drafts accepted when it was last drafted for; -1 before.
    used : int
        Step in which it last decoded.
    tried : int
        Step in which it was last offered although it lagged behind; -1 before.
    """

    sequence: Sequence
    sampling: TextSampling = field(default_factory=TextSampling)
    offered: int = 0
    draft: list[int] = field(default_factory=list)
    last_accepted: float = NEVER_VERIFIED
    used: int = -1
    tried: int = -1

    @property
    def lag(self) -> int:
        """Tokens that a pass must compute before the last one, from which the first draft follows."""
        return max(len(self.sequence.tokens) - 1 - self.sequence.num_computed, 0)


class DraftMemory:
    """KV blocks of a draft model's texts.

    The target's scheduler says nothing of them: a text that is preempted there keeps its blocks here until another
    one needs them. Then the texts that have not been drafted for the longest lose theirs, and catch up later.

    Parameters
    ----------
    num_blocks, block_size : int
        Blocks in the cache, and tokens in a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)

    def hold(self, text: DraftText, most: int, idle: Iterable[DraftText]) -> int:
        """Hold blocks for a text and drafts, if necessary those of idle texts.

        Parameters
        ----------
        most : int
            Drafts wanted, at least 1; all but the last take a place in the cache.
        idle : iterable of DraftText
            Texts that may lose their blocks, the first first.

        Returns
        -------
        int
            Drafts for which there are blocks, 0..most.
        """
        pool, sequence = self.pool, text.sequence
        wanted = len(sequence.tokens) + most - 1
        victims = iter(idle)
        while not self._fits(sequence, wanted):
            victim = next((other for other in victims if other.sequence.blocks), None)
            if victim is None:
                break
            pool.release(victim.sequence)
        if not sequence.blocks and not pool.admit(sequence):
            return 0
        room = (len(sequence.blocks) + pool.num_free) * pool.block_size
        fitting = min(wanted, room)
        if fitting < len(sequence.tokens) or not pool.grow(sequence, fitting):
            return 0
        return fitting - len(sequence.tokens) + 1

    def _fits(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether blocks for so many tokens are there or free, prefixes that could be shared not counted."""
        return self.pool.blocks_for(num_tokens) - len(sequence.blocks) <= self.pool.num_free

    def settle(self, text: DraftText, tokens: list[int]) -> None:
        """Append verified tokens, and keep what was computed of the drafts that came true."""
        sequence = text.sequence
        computed = 0
        if sequence.num_computed == len(sequence.tokens):
            for drafted, token in zip(text.draft[:-1], tokens, strict=False):
                if drafted != token:
                    break
                computed += 1
        sequence.tokens += tokens
        sequence.num_computed += computed
        text.draft = []
        if sequence.blocks:
            self.pool.commit(sequence)
            self.pool.trim(sequence)

    def release(self, text: DraftText) -> None:
        """Take back all of a text's blocks."""
        self.pool.release(text.sequence)
