"""ModelRunner: one step on a model: draft, pack, run the target over ragged rows, verify."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_spec.engine.drafters.base import Drafter, ModelDrafter
from adaptive_spec.engine.kv_cache import KVCache
from adaptive_spec.engine.model import Model, PackedBatch
from adaptive_spec.engine.packing import pack
from adaptive_spec.engine.passes import Passes
from adaptive_spec.engine.sampling_mode import SamplingMode
from adaptive_spec.engine.text_sampling import TextSampling
from adaptive_spec.engine.verifier import Verifier
from adaptive_spec.engine.warm_up import warm_up
from adaptive_spec.serving.loop import StepResult
from adaptive_spec.serving.scheduler import ScheduledStep
from adaptive_spec.serving.sequence import Sequence as Text
from adaptive_spec.step import FloatArray, IntArray

logger = logging.getLogger(__name__)

NO_TOKENS = np.zeros(0, dtype=np.int32)


class ModelRunner:
    """Computes the steps of a :class:`~adaptive_spec.serving.loop.ServingLoop` on a model.

    Except in ratio mode, a draft is accepted when it equals the token that the target emits there, greedily or
    sampled with noise that depends on the request alone, so the text never depends on the drafts.

    A drafter that raises is dropped: the steps go on without drafts.

    Parameters
    ----------
    model : Model
        The target.
    cache : KVCache
        Its keys and values.
    drafter : Drafter or None
        None: no speculation, and no work for it.
    evidence : sequence of str
        Those of the drafter's evidence columns that the controller wants, in its order.
    clock : callable
        Seconds.
    max_depth, max_num_seqs : int, optional
        The most drafts of a text, and texts of a step. With both given, what decoding can need is captured now, where
        the model is on a GPU.
    sampling : {"match", "coupled", "ratio"}
        In ratio mode drafts are accepted by the ratio rule, and the drafter must know what it drew them from.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        drafter: Drafter | None,
        evidence: Sequence[str] = (),
        clock: Callable[[], float] = time.perf_counter,
        max_depth: int | None = None,
        max_num_seqs: int | None = None,
        sampling: SamplingMode = "match",
    ) -> None:
        self.model = model
        self.cache = cache
        self.drafter = drafter
        self.evidence = tuple(evidence)
        known = () if drafter is None else drafter.evidence
        if missing := [name for name in self.evidence if name not in known]:
            raise ValueError(f"the drafter reports no evidence {missing[0]!r}; it reports {', '.join(known) or 'none'}")
        self._columns = [known.index(name) for name in self.evidence]
        self.clock = clock
        self.sampling = sampling
        self.fault: str | None = None  # why the drafter was dropped
        self._grown: list[tuple[Text, int]] = []  # texts of the last pass, and how long they were before it
        self.passes = Passes(model, cache, max_depth)
        if max_num_seqs is not None and max_depth is not None and model.device.type == "cuda":
            most = 0 if drafter is None else max_depth
            self.passes.prepare(max_num_seqs, most)
            warm_up(self.passes, most, sampling)
        self.verifier = Verifier(model.device)

    def add(self, text: Text) -> None:
        """Begin a text."""
        if self.drafter is not None:
            try:
                self.drafter.add(text.id, text.tokens)
                if isinstance(self.drafter, ModelDrafter):
                    self.drafter.sample_as(text.id, TextSampling.of(text))
            except Exception as error:
                self._drop_drafter(error)

    def remove(self, text: Text) -> None:
        """End a text."""
        self._extend()
        if self.drafter is not None:
            try:
                self.drafter.remove(text.id)
            except Exception as error:
                self._drop_drafter(error)

    def offers(self, texts: list[Text], limit: IntArray) -> tuple[IntArray, FloatArray, int]:
        """Drafts on offer for each text, the evidence for them, and the drafter's lag."""
        self._extend()
        if self.drafter is not None and limit.any():
            ids = [text.id for text in texts]
            try:
                offer = self.drafter.offer(ids, limit)
                return offer.count, offer.evidence[:, self._columns], self.drafter.lag(ids)
            except Exception as error:
                self._drop_drafter(error)
        return np.zeros(len(texts), dtype=np.int64), np.zeros((len(texts), len(self.evidence))), 0

    @torch.inference_mode()
    def execute(self, step: ScheduledStep) -> StepResult:
        """Draft, run the target over all of the step's positions at once, and verify."""
        self._extend()
        began = self.clock()
        drafted, draft = self._draft(step)
        ready = self.clock()
        logits = self.passes.forward(self._pack(step, drafted, draft))
        drawn_from = self._drawn_from(logits, draft) if self.sampling == "ratio" else None
        tokens, accepted = self.verifier.verify(logits, [*step.decoding, *step.ending], drafted, draft, drawn_from)
        done = self.clock()
        lag = self.drafter.caught_up if isinstance(self.drafter, ModelDrafter) and len(draft) else 0
        decoded = len(step.decoding)
        if self.drafter is not None:
            self._grown = [(text, len(text.tokens)) for text in (*step.decoding, *step.ending)]
        return StepResult(
            tokens=tokens[:decoded],
            first_tokens=[first[0] for first in tokens[decoded:]],
            drafted=drafted,
            verified=drafted,
            accepted=accepted,
            verify_seconds=done - ready,
            draft_seconds=ready - began,
            lag=lag,
        )

    def _draft(self, step: ScheduledStep) -> tuple[IntArray, NDArray[np.int32]]:
        """Tokens drafted for each decoding text (B,), and the tokens end to end."""
        if self.drafter is not None and step.draft_depth > 0:
            ids = [text.id for text in step.decoding]
            try:
                cu, draft = self.drafter.draft(ids, step.depth)
                drafted = np.diff(cu).astype(np.int64)
                if (drafted < 0).any() or (drafted > step.depth).any() or drafted.sum() != len(draft):
                    raise ValueError(f"drafted {drafted.tolist()} tokens where {step.depth.tolist()} were asked for")
                return drafted, draft
            except Exception as error:
                self._drop_drafter(error)
        return np.zeros(len(step.decoding), dtype=np.int64), NO_TOKENS

    def _drawn_from(self, logits: torch.Tensor, draft: NDArray[np.int32]) -> torch.Tensor:
        """The logits that the drafts were drawn from; none where there are no drafts."""
        if not len(draft):
            return logits[:0]
        assert isinstance(self.drafter, ModelDrafter)  # no other drafter serves ratio mode
        return self.drafter.draft_logits

    def _pack(self, step: ScheduledStep, drafted: IntArray, draft: NDArray[np.int32]) -> PackedBatch:
        """Lay all positions of the pass end to end: each decoding text's last token and drafts, then the chunks."""
        decoding, chunks = step.decoding, step.prefills
        texts = [*decoding, *(chunk.sequence for chunk in chunks)]
        decoded = len(decoding)
        width = np.concatenate((drafted + 1, np.array([c.length for c in chunks], dtype=np.int64)))
        start = np.array([*(t.num_computed for t in decoding), *(c.start for c in chunks)], dtype=np.int64)
        cu = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum(width, out=cu[1:])

        tokens = np.empty(cu[-1], dtype=np.int64)
        tokens[cu[:decoded]] = [text.tokens[-1] for text in decoding]
        if len(draft):
            known = np.where(
                (draft >= 0) & (draft < self.model.config.vocab_size), draft, 0
            )  # others are never accepted
            tokens[np.arange(len(draft)) + np.repeat(np.arange(1, decoded + 1), drafted)] = known
        for chunk, begin in zip(chunks, cu[decoded:].tolist(), strict=False):
            tokens[begin : begin + chunk.length] = chunk.sequence.tokens[chunk.start : chunk.start + chunk.length]

        table = np.zeros((len(texts), max(len(text.blocks) for text in texts)), dtype=np.int32)
        for row, text in zip(table, texts, strict=True):
            row[: len(text.blocks)] = text.blocks
        ends = [begin - 1 for begin, chunk in zip(cu[decoded + 1 :].tolist(), chunks, strict=True) if chunk.ends]
        logit_rows = np.concatenate((np.arange(cu[decoded]), np.array(ends, dtype=np.int64)))
        return pack(tokens, start, width, table, logit_rows, self.cache.block_size)

    def _extend(self) -> None:
        """Tell the drafter what the last pass added to its texts, which may have ended amid what was verified."""
        grown, self._grown = self._grown, []
        drafter = self.drafter
        try:
            for text, before in grown:
                if drafter is not None and len(text.tokens) > before:
                    drafter.extend(text.id, text.tokens[before:])
        except Exception as error:
            self._drop_drafter(error)

    def _drop_drafter(self, error: Exception) -> None:
        self.fault = f"{type(error).__name__}: {error}"
        logger.error("the drafter failed and is dropped; steps go on without drafts: %s", self.fault, exc_info=error)
        self.drafter = None
