"""Drafter, the base of all drafters; TextDrafter, of those that look things up; ModelDrafter, of those that compute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaptive_spec.cost import DraftCost
from adaptive_spec.step import FloatArray, IntArray, SequenceId
from adaptive_spec.suffix import SuffixIndex

if TYPE_CHECKING:
    from torch import Tensor

    from adaptive_spec.engine.sampling_mode import SamplingMode
    from adaptive_spec.engine.text_sampling import TextSampling

Packed: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int32]]


@dataclass(slots=True)
class Offer:
    """What a drafter can give each of B sequences in the coming step, known before anything is drawn.

    Attributes
    ----------
    count : int64 array, shape (B,)
        Draft tokens on offer, at most the limit that was asked for.
    evidence : float64 array, shape (B, F)
        One column per name in :attr:`Drafter.evidence`. Rows with nothing on offer mean nothing.
    """

    count: IntArray
    evidence: FloatArray


class Drafter(ABC):
    """Proposes the tokens that the target model verifies.

    The engine's order of calls: :meth:`add` once per sequence, then in every step :meth:`offer` for the
    decoding sequences, the controller's decision, :meth:`draft` (only if a depth is above 0), and
    :meth:`extend` with what was emitted; :meth:`remove` in the end. A preempted sequence may be removed
    and added again with its prompt and its output so far.

    Attributes
    ----------
    name : str
        In the registry.
    evidence : tuple of str
        Features that :meth:`offer` reports, names out of ``adaptive_spec.evidence.EVIDENCE``:
        ``matched_length`` (tokens of context that the first draft rests on), ``source`` (0: lookup in the
        text, 1: table), ``agreement`` (the share of that context's earlier occurrences which the first
        draft followed; for a table, see :meth:`NgramTable.agreement`).
    """

    name: ClassVar[str]
    evidence: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What the drafter is and has learned beforehand, so that what was learned *about* it is not mixed up.

        Equal for drafters that give equal drafts for equal texts; what it learns online isn't part of it.
        """

    def check_vocabulary(self, vocab_size: int, vocab_fingerprint: str) -> None:  # noqa: B027 - none to check
        """Raise ValueError if the drafter was made for another vocabulary than the target model's."""

    @abstractmethod
    def add(self, id: SequenceId, tokens: Sequence[int]) -> None:
        """Begin a sequence with its prompt (and its output so far); ValueError if it has been added."""

    @abstractmethod
    def extend(self, id: SequenceId, tokens: Sequence[int]) -> None:
        """Append emitted tokens; KeyError if the sequence is unknown."""

    @abstractmethod
    def remove(self, id: SequenceId) -> None:
        """Forget a sequence; KeyError if it is unknown."""

    def unlearn(self) -> None:  # noqa: B027 - most learn nothing
        """Forget what was learned of the texts served so far; what was learned beforehand stays."""

    @abstractmethod
    def offer(self, ids: Sequence[SequenceId], limit: IntArray) -> Offer:
        """Say what can be drafted for each sequence, before the depths are chosen; draws nothing.

        Parameters
        ----------
        ids : sequence of ids, length B
        limit : int64 array, shape (B,)
            The most tokens of use to each sequence.
        """

    @abstractmethod
    def draft(self, ids: Sequence[SequenceId], depth: IntArray) -> Packed:
        """Draft for the sequences of the last :meth:`offer`, or some of them.

        Parameters
        ----------
        ids : sequence of ids, length B
        depth : int64 array, shape (B,)
            Tokens wanted; at most what this step's offer counted, ValueError if more.

        Returns
        -------
        cu : int32 array, shape (B + 1,)
            Sequence i has the tokens ``cu[i] .. cu[i + 1] - 1``, exactly ``depth[i]`` of them.
        tokens : int32 array, shape (sum of depth,)
        """

    def lag(self, ids: Sequence[SequenceId]) -> int:
        """Positions of catching up that the step is charged for, after its :meth:`offer`; 0 for lookups and tables."""
        return 0


class ModelDrafter(Drafter):
    """Drafts by passes of a model of its own, which take time and memory, and may draw.

    The engine calls, besides: :meth:`start` before the first sequence, :meth:`sample_as` after every :meth:`add`.

    Attributes
    ----------
    caught_up : int
        Positions that the last :meth:`draft` caught up on, beyond one for each sequence.
    """

    caught_up: int = 0

    @property
    @abstractmethod
    def kv_bytes_per_token(self) -> int:
        """Bytes of its KV cache that a token takes."""

    @abstractmethod
    def start(
        self, *, num_blocks: int, block_size: int, max_num_seqs: int, vocab_size: int, sampling: SamplingMode
    ) -> None:
        """Make ready to serve an engine; sequences of an earlier one are forgotten.

        Parameters
        ----------
        num_blocks, block_size : int
            Size of the KV cache, which is the target's.
        max_num_seqs : int
            Sequences that are drafted for at once.
        vocab_size : int
            Columns of the target's logits.
        sampling : {"match", "coupled", "ratio"}
            How it draws; see :func:`adaptive_spec.engine.sampling_mode.choose_sampling`.
        """

    @abstractmethod
    def sample_as(self, id: SequenceId, sampling: TextSampling) -> None:
        """Say how a sequence's tokens are chosen; KeyError if it is unknown."""

    @property
    @abstractmethod
    def draft_logits(self) -> Tensor:
        """What the last :meth:`draft` drew its tokens from, shape (sum of depth, vocab_size); in ratio mode only."""

    @abstractmethod
    def measure(self, clock: Callable[[], float]) -> DraftCost:
        """Time its passes, once it was started and while it has no sequences."""


@dataclass(slots=True)
class Text:
    """One sequence of a TextDrafter: its text's index, and what this step's offer promised."""

    index: SuffixIndex
    offered: int = 0
    node: int = -1  # of the frozen table; -1: the offer is a lookup
    chain: list[int] | None = None  # tokens that were settled with the offer already


class TextDrafter(Drafter):
    """Drafts by looking things up: free of randomness, of a model, of lag.

    Memory is O(tokens of the live sequences).
    """

    def __init__(self) -> None:
        self._texts: dict[SequenceId, Text] = {}

    def add(self, id: SequenceId, tokens: Sequence[int]) -> None:
        if id in self._texts:
            raise ValueError(f"sequence {id!r} was already added to drafter {self.name!r}; remove it first")
        self._texts[id] = Text(SuffixIndex(tokens))

    def extend(self, id: SequenceId, tokens: Sequence[int]) -> None:
        text = self._find(id)
        text.index.extend(tokens)
        text.offered = 0

    def remove(self, id: SequenceId) -> None:
        self._find(id)
        del self._texts[id]

    def _find(self, id: SequenceId) -> Text:
        text = self._texts.get(id)
        if text is None:
            raise KeyError(f"drafter {self.name!r} knows no sequence {id!r}; add it first")
        return text

    def _wanted(self, ids: Sequence[SequenceId], depth: IntArray) -> list[tuple[Text, int]]:
        """Each sequence's text and depth, checked against what was offered."""
        if len(ids) != len(depth):
            raise ValueError(f"{len(ids)} sequences but {len(depth)} depths")
        wanted = []
        for id, tokens in zip(ids, depth.tolist(), strict=True):
            text = self._find(id)
            if not 0 <= tokens <= text.offered:
                raise ValueError(
                    f"sequence {id!r} can't be drafted {tokens} deep: this step's offer is {text.offered} tokens"
                )
            wanted.append((text, tokens))
        return wanted


def pack(drafts: Sequence[Sequence[int]]) -> Packed:
    """Lay the drafts of several sequences end to end; see :meth:`Drafter.draft`."""
    cu = [0]
    tokens: list[int] = []
    for draft in drafts:
        tokens += draft
        cu.append(len(tokens))
    return np.array(cu, dtype=np.int32), np.array(tokens, dtype=np.int32)
