"""Prompt lookup: continue as the text itself went on where its longest matched suffix last occurred."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptive_spec.engine.drafters.base import Offer, Packed, TextDrafter, pack
from adaptive_spec.step import IntArray, SequenceId


class PromptLookup(TextDrafter):
    """Copies from the prompt and the output so far, by the longest suffix that has occurred before.

    Saxena 2023 ("Prompt lookup decoding"), vLLM's ``ngram`` method; unlike those, the index grows with the
    text instead of being searched anew, and always takes the longest match.

    Parameters
    ----------
    min_match : int
        The shortest match worth an offer (>= 1). What a match of some length is worth, the acceptance model
        learns; raise it only to save the controller the choice.
    """

    name = "prompt_lookup"
    evidence = ("matched_length", "agreement")

    def __init__(self, min_match: int = 1) -> None:
        if min_match < 1:
            raise ValueError(f"min_match is {min_match}; it must be at least 1")
        super().__init__()
        self.min_match = min_match

    @property
    def fingerprint(self) -> str:
        return f"prompt_lookup(min_match={self.min_match})"

    def offer(self, ids: Sequence[SequenceId], limit: IntArray) -> Offer:
        count = []
        evidence = []
        for id, most in zip(ids, limit.tolist(), strict=True):
            text = self._find(id)
            index = text.index
            text.offered = most if index.matched_length >= self.min_match else 0
            count.append(text.offered)
            evidence.append((index.matched_length, index.agreement))
        return Offer(np.array(count, dtype=np.int64), np.array(evidence, dtype=np.float64).reshape(len(count), 2))

    def draft(self, ids: Sequence[SequenceId], depth: IntArray) -> Packed:
        return pack([text.index.continuation(tokens) for text, tokens in self._wanted(ids, depth)])
