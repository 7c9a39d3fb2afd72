"""Corpus n-grams: lookup in the text, and where that has little to go by, a table learned from other texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adaptive_spec.engine.drafters.base import Offer, Packed, Text, TextDrafter, pack
from adaptive_spec.engine.drafters.ngram_table import NgramTable
from adaptive_spec.engine.drafters.online_table import OnlineNgramTable
from adaptive_spec.step import IntArray, SequenceId

LOOKUP, TABLE = 0, 1


class CorpusNgram(TextDrafter):
    """Copies from the text itself or drafts along an n-gram table, whichever knows the longer context.

    Of equal contexts the text's own decides. On SmolLM2-135M over mixed prompts this simple rule accepted
    more than any threshold on the match's length, with or without one on the table's share.

    With a frozen table, drafts are a function of the text alone. An online table changes with everything
    the engine emits, so that a text's drafts depend on what was served before it: the output is as lossless
    as ever, but a recording made with it is no exact acceptance trace.

    Parameters
    ----------
    table : path or NgramTable, optional
        The frozen table; ``adaptive_spec.experiments.learn_table`` writes one.
    texts : sequence of token-id sequences, optional
        Learn a frozen table from these on the spot, instead of `table`.
    order : int
        Longest context of a table learned here, from `texts` or online, in tokens.
    online : bool
        Whether to learn a second table from the engine's own output. Where both know a context, the longer
        one decides; of equal ones, the online one.
    max_entries : int
        The most contexts that the online table holds, some 250 bytes each.

    Raises
    ------
    FileNotFoundError, ValueError
        If the table can't be read, or the parameters don't fit together.
    """

    name = "corpus_ngram"
    evidence = ("matched_length", "source", "agreement")

    def __init__(
        self,
        table: str | Path | NgramTable | None = None,
        texts: Sequence[Sequence[int]] | None = None,
        order: int = 4,
        online: bool = False,
        max_entries: int = 100_000,
    ) -> None:
        super().__init__()
        if table is not None and texts is not None:
            raise ValueError("drafter 'corpus_ngram' takes either a table or texts to learn one from, not both")
        if table is None and texts is None and not online:
            raise ValueError("drafter 'corpus_ngram' needs a table, or texts to learn one from, or online=True")
        if order < 1:
            raise ValueError(f"order is {order}; it must be at least 1")
        self.frozen: NgramTable | None = None
        self._same_size = texts is None  # a table of bare texts knows only a lower bound of the vocabulary
        if isinstance(table, NgramTable):
            self.frozen = table
        elif table is not None:
            self.frozen = NgramTable.load(table)
        elif texts is not None:
            highest = max((max(text) for text in texts if len(text)), default=0)
            self.frozen = NgramTable.learn(texts, vocab_size=highest + 1, order=order)
        self.online = OnlineNgramTable(order, max_entries) if online else None
        self._order = max(table.order for table in (self.frozen, self.online) if table is not None)

    @property
    def fingerprint(self) -> str:
        parts = []
        if self.frozen is not None:
            parts.append(f"table={self.frozen.fingerprint}")
        if self.online is not None:
            parts.append(f"online={self.online.order}/{self.online.max_entries}")
        return f"corpus_ngram({', '.join(parts)})"

    def check_vocabulary(self, vocab_size: int, vocab_fingerprint: str) -> None:
        table = self.frozen
        if table is None:
            return
        known = bool(table.vocab_fingerprint and vocab_fingerprint)
        if known and table.vocab_fingerprint != vocab_fingerprint:
            raise ValueError(
                f"the n-gram table was learned with another tokeniser (fingerprint {table.vocab_fingerprint}) than "
                f"the model's ({vocab_fingerprint}); learn one with this model's"
            )
        # Models pad their vocabularies, so of one tokeniser the sizes may differ.
        must_equal = self._same_size and not known
        if table.vocab_size > vocab_size or (must_equal and table.vocab_size != vocab_size):
            raise ValueError(
                f"the n-gram table is of a vocabulary of {table.vocab_size} tokens, the model's has {vocab_size}; "
                "learn one with this model's tokeniser"
            )

    def extend(self, id: SequenceId, tokens: Sequence[int]) -> None:
        super().extend(id, tokens)
        if self.online is not None:
            self.online.learn(self._texts[id].index.tokens, len(tokens))

    def unlearn(self) -> None:
        if self.online is not None:
            self.online = OnlineNgramTable(self.online.order, self.online.max_entries)

    def offer(self, ids: Sequence[SequenceId], limit: IntArray) -> Offer:
        limits = limit.tolist()
        evidence: list[tuple[float, int, float]] = []
        asking: list[int] = []  # those for whom a table is asked
        texts = [self._find(id) for id in ids]
        for i, (text, most) in enumerate(zip(texts, limits, strict=True)):
            index = text.index
            text.node, text.chain = -1, None
            text.offered = most if index.matched_length else 0
            evidence.append((index.matched_length, LOOKUP, index.agreement))
            if most and index.matched_length < self._order and len(index):
                asking.append(i)
        if asking:
            nodes, contexts, shares = self._ask_frozen([texts[i] for i in asking])
            for i, node, context, share in zip(asking, nodes, contexts, shares, strict=True):
                text = texts[i]
                matched = text.index.matched_length
                if self.online is not None:
                    token, longer, online_share = self.online.best(text.index.tokens)
                    if longer > matched and longer >= context:
                        text.chain = self._chain(text, token, limits[i])
                        text.offered = len(text.chain)
                        evidence[i] = (longer, TABLE, online_share)
                        continue
                if context > matched:
                    text.node, text.offered = node, limits[i]
                    evidence[i] = (context, TABLE, share)
        count = np.array([text.offered for text in texts], dtype=np.int64)
        return Offer(count, np.array(evidence, dtype=np.float64).reshape(len(count), 3))

    def draft(self, ids: Sequence[SequenceId], depth: IntArray) -> Packed:
        wanted = self._wanted(ids, depth)
        drafts: list[list[int]] = []
        following: list[int] = []
        deepest = 0
        for i, (text, tokens) in enumerate(wanted):
            if not tokens:
                drafts.append([])
            elif text.chain is not None:
                drafts.append(text.chain[:tokens])
            elif text.node < 0:
                drafts.append(text.index.continuation(tokens))
            else:
                drafts.append([])
                following.append(i)
                deepest = max(deepest, tokens)
        if following:
            assert self.frozen is not None
            nodes = np.array([wanted[i][0].node for i in following])
            for i, row in zip(following, self.frozen.follow(nodes, deepest).T.tolist(), strict=True):
                drafts[i] = row[: wanted[i][1]]
        return pack(drafts)

    def _ask_frozen(self, texts: list[Text]) -> tuple[list[int], list[int], list[float]]:
        """For each text: the frozen table's node, the tokens in its context, its continuation's agreement."""
        table = self.frozen
        if table is None:
            return [-1] * len(texts), [0] * len(texts), [0.0] * len(texts)
        order = table.order
        recent = [text.index.tokens[: -order - 1 : -1] for text in texts]
        for tokens in recent:
            tokens += [-1] * (order - len(tokens))
        node = table.locate(np.array(recent, dtype=np.int64).T)
        return node.tolist(), table.level(node).tolist(), table.agreement(node).tolist()

    def _chain(self, text: Text, token: int, most: int) -> list[int]:
        """Settle the online table's draft of at most `most` tokens, the first of which is `token`."""
        assert self.online is not None
        chain = [token]
        window = text.index.tokens[-self.online.order :]
        while len(chain) < most:
            window.append(chain[-1])
            token, matched, _ = self.online.best(window)
            if not matched:
                break
            chain.append(token)
        return chain
