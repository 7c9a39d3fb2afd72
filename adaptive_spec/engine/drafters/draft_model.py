"""Draft model: a smaller model of the same vocabulary writes ahead, token by token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from adaptive_spec.cost import DraftCost
from adaptive_spec.engine.drafters.base import ModelDrafter, Offer, Packed
from adaptive_spec.engine.drafters.draft_checkpoint import DraftCheckpoint
from adaptive_spec.engine.drafters.draft_sampler import DraftRows, DraftSampler
from adaptive_spec.engine.drafters.draft_text import DraftMemory, DraftText
from adaptive_spec.engine.drafters.draft_timing import measure_draft_cost
from adaptive_spec.engine.kv_memory import give_back
from adaptive_spec.engine.packing import pack
from adaptive_spec.engine.passes import Passes
from adaptive_spec.engine.sampling_mode import SamplingMode
from adaptive_spec.engine.staging import Staging
from adaptive_spec.engine.text_sampling import TextSampling
from adaptive_spec.engine.warm_up import warm_up_drafting
from adaptive_spec.serving.sequence import Sequence as Text
from adaptive_spec.step import IntArray, SequenceId

_READY = 1  # tokens of lag that are no catching up: after a step in which every draft came true, one is missing


class DraftModel(ModelDrafter):
    """Drafts with a model (Leviathan, Kalman and Matias 2023; Chen et al. 2023), with a paged KV cache of its own.

    Drafting to depth d takes d passes of the draft model, each over the texts that are drafted that deep. At depth 0
    it makes none: a text that is not drafted for falls behind, and when it is drafted for again, all that it missed
    is computed in the first pass, packed with the others.

    Parameters
    ----------
    model : str, path or DraftCheckpoint
        As :class:`~adaptive_spec.engine.llm.LLM` takes it, or loaded; the vocabulary must be the target's.
    dtype, device : str
        Of weights and arithmetic; the target's where an LLM makes the drafter.
    max_catch_up : int
        Positions that one step may catch up on; a single text that lags farther behind does so alone.
    catch_up_steps : int
        Steps over which catching up is charged. A text is drafted for in many steps once it has caught up, so the step
        that pays for it sees the share of one; charged in full, texts that fell behind would stay there for ever.

    Attributes
    ----------
    passes : int
        Passes of the draft model so far.
    """

    name: ClassVar[str] = "draft_model"
    evidence: ClassVar[tuple[str, ...]] = ("last_accepted",)

    def __init__(
        self,
        model: str | Path | DraftCheckpoint,
        dtype: str = "auto",
        device: str = "cpu",
        max_catch_up: int = 1024,
        catch_up_steps: int = 32,
    ) -> None:
        if max_catch_up < 1 or catch_up_steps < 1:
            raise ValueError(
                f"max_catch_up is {max_catch_up} and catch_up_steps {catch_up_steps}; they must be at least 1"
            )
        self.max_catch_up = max_catch_up
        self.catch_up_steps = catch_up_steps
        self.passes = 0
        self._checkpoint = model if isinstance(model, DraftCheckpoint) else DraftCheckpoint.load(model, dtype, device)
        self.model = self._checkpoint.model
        self._sampling: SamplingMode = "coupled"
        self._vocab_size = self.model.config.vocab_size
        self._max_num_seqs = 1
        self._numbers = itertools.count()
        self._steps = 0
        self._texts: dict[SequenceId, DraftText] = {}
        self._memory: DraftMemory | None = None
        self._passes: Passes | None = None
        self._logits: Tensor | None = None
        self._staging = Staging(self.model.device)

    # ---------------------------------------------------------------- before the first sequence

    @property
    def fingerprint(self) -> str:
        return f"draft_model({self.model.fingerprint}, sampling={self._sampling})"

    @property
    def vocab_size(self) -> int:
        """Tokens that its model knows."""
        return self.model.config.vocab_size

    @property
    def kv_bytes_per_token(self) -> int:
        c = self.model.config
        return 2 * c.num_layers * c.num_kv_heads * c.head_dim * self.model.dtype.itemsize

    def check_vocabulary(self, vocab_size: int, vocab_fingerprint: str) -> None:
        tokenizer = self._checkpoint.tokenizer
        if tokenizer.fingerprint != vocab_fingerprint:
            raise ValueError(
                f"draft model {self._checkpoint.name} has another vocabulary than the target model: "
                f"{tokenizer.vocab_size} tokens, where the target's logits are {vocab_size} wide; take a smaller model "
                "with the target's tokenizer"
            )

    def start(
        self, *, num_blocks: int, block_size: int, max_num_seqs: int, vocab_size: int, sampling: SamplingMode
    ) -> None:
        passes = self._passes
        if passes is None or (passes.cache.num_blocks, passes.cache.block_size) != (num_blocks, block_size):
            self._passes = passes = None  # free the old cache before the new one is made
            give_back(self.model.device)
            passes = self._passes = Passes(self.model, self.model.new_kv_cache(num_blocks, block_size), _READY)
        if self.model.device.type == "cuda":
            passes.prepare(max_num_seqs, _READY)
            warm_up_drafting(passes, vocab_size, sampling)
        self._memory = DraftMemory(num_blocks, block_size)
        self._max_num_seqs = max_num_seqs
        self._vocab_size = vocab_size
        self._sampling = sampling
        self._texts = {}
        self._logits = None

    def measure(self, clock: Callable[[], float]) -> DraftCost:
        self.model.prepare(self._max_num_seqs)
        cache = self._started[1].cache
        longest = min(self.model.config.max_model_len, cache.num_blocks * cache.block_size)
        return measure_draft_cost(self, self._max_num_seqs, longest, clock)

    # ---------------------------------------------------------------- sequences

    def add(self, id: SequenceId, tokens: Sequence[int]) -> None:
        if id in self._texts:
            raise ValueError(f"sequence {id!r} was already added to drafter {self.name!r}; remove it first")
        self._texts[id] = DraftText(Text(next(self._numbers), list(tokens), max_tokens=1))

    def sample_as(self, id: SequenceId, sampling: TextSampling) -> None:
        text = self._find(id)
        text.sampling = sampling
        text.sequence.max_tokens = sampling.max_tokens

    def extend(self, id: SequenceId, tokens: Sequence[int]) -> None:
        text = self._find(id)
        if text.draft:
            text.last_accepted = len(tokens) - 1.0
        text.offered = 0
        self._started[0].settle(text, list(tokens))

    def remove(self, id: SequenceId) -> None:
        text = self._find(id)
        self._started[0].release(text)
        del self._texts[id]

    def skip(self, ids: Sequence[SequenceId]) -> None:
        """Take the texts for caught up on whatever lies in the cache: for timing only."""
        for id in ids:
            sequence = self._find(id).sequence
            sequence.num_computed = len(sequence.tokens) - 1

    # ---------------------------------------------------------------- the step

    def offer(self, ids: Sequence[SequenceId], limit: IntArray) -> Offer:
        """Offer as much as is asked for, as far as KV blocks, the model's length and `max_catch_up` allow."""
        memory, _ = self._started
        self._steps += 1
        texts = [self._find(id) for id in ids]
        for text in texts:
            text.offered = 0
            text.used = self._steps
        longest = self.model.config.max_model_len
        idle = sorted((text for text in self._texts.values() if text.used < self._steps), key=lambda text: text.used)
        caught_up = 0
        # Who is up to date comes first; those who lag behind have their chance in turn, since the depths that are
        # chosen may leave them where they are.
        for i in sorted(range(len(texts)), key=lambda i: texts[i].tried if texts[i].lag > _READY else -2):
            text = texts[i]
            most = min(int(limit[i]), longest - len(text.sequence.tokens) + 1)
            if most < 1:
                continue
            if (lag := text.lag) > _READY:
                if caught_up and caught_up + lag > self.max_catch_up:
                    continue
                caught_up += lag
                text.tried = self._steps
            text.offered = memory.hold(text, most, idle)
        count = np.array([text.offered for text in texts], dtype=np.int64)
        evidence = np.array([text.last_accepted for text in texts], dtype=np.float64)
        return Offer(count, evidence[:, None])

    def lag(self, ids: Sequence[SequenceId]) -> int:
        behind = sum(text.lag for text in map(self._find, ids) if text.offered)
        return math.ceil(behind / self.catch_up_steps)

    @torch.inference_mode()
    def draft(self, ids: Sequence[SequenceId], depth: IntArray) -> Packed:
        self._logits = None
        self.caught_up = 0
        wanted = self._wanted(ids, depth)
        cu = np.zeros(len(ids) + 1, dtype=np.int32)
        np.cumsum(depth, out=cu[1:])
        # The deepest first: each pass is over the first so many of them.
        order = np.argsort(-np.asarray(depth), kind="stable")[: np.count_nonzero(depth)]
        if not len(order):
            return cu, np.zeros(0, dtype=np.int32)
        texts = [wanted[i] for i in order]
        depths = np.asarray(depth)[order]
        counts = [int(np.count_nonzero(depths > j)) for j in range(int(depths[0]))]  # texts of each pass
        drawn, logits = self._run(texts, counts)
        # From pass by pass to text by text: text r of pass j has its draft j in row first[j] + r.
        first = np.concatenate(([0], np.cumsum(counts)))
        rank = np.empty(len(ids), dtype=np.int64)
        rank[order] = np.arange(len(order))
        rows = np.concatenate([first[:d] + r for d, r in zip(np.asarray(depth).tolist(), rank.tolist(), strict=True)])
        rows = rows.astype(np.int64)
        tokens = drawn.cpu().numpy()[rows].astype(np.int32)
        if logits is not None:
            self._logits = logits.index_select(0, torch.from_numpy(rows).to(logits.device))
        for i in order.tolist():
            wanted[i].draft = tokens[cu[i] : cu[i + 1]].tolist()
        return cu, tokens

    @property
    def draft_logits(self) -> Tensor:
        if self._logits is None:
            raise RuntimeError("nothing was drafted in ratio mode; the logits of drafts are kept there only")
        return self._logits

    def _run(self, texts: list[DraftText], counts: list[int]) -> tuple[Tensor, Tensor | None]:
        """Draft with one pass for each of `counts`; the tokens and, in ratio mode, the logits, pass by pass."""
        _, passes = self._started
        size = passes.cache.block_size
        sequences = [text.sequence for text in texts]
        length = np.array([len(sequence.tokens) for sequence in sequences])
        table = np.zeros((len(texts), max(len(sequence.blocks) for sequence in sequences)), dtype=np.int32)
        for row, sequence in zip(table, sequences, strict=True):
            row[: len(sequence.blocks)] = sequence.blocks
        rows = DraftRows.of([text.sampling for text in texts], length.tolist(), self._sampling, self._staging)
        sampler = DraftSampler(self._sampling, rows, self._vocab_size)

        start = np.minimum([sequence.num_computed for sequence in sequences], length - 1)
        width = length - start
        missed = np.concatenate([s.tokens[at:] for s, at in zip(sequences, start.tolist(), strict=True)])
        np.minimum(missed, self.vocab_size - 1, out=missed)  # the target's padding may have more tokens than ours
        batch = pack(missed, start, width, table, np.cumsum(width) - 1, size)
        self.caught_up = int(width.sum()) - len(width)
        drawn: list[Tensor] = []
        for j, n in enumerate(counts):
            if j:
                one = np.ones(n, dtype=np.int64)
                tokens = drawn[-1][:n].cpu().numpy().astype(np.int64)
                batch = pack(tokens, length[:n] + j - 1, one, table[:n], np.arange(n), size)
            self.passes += 1
            drawn.append(sampler.draw(passes.forward(batch), j))
        for sequence in sequences:
            sequence.num_computed = len(sequence.tokens)
        return torch.cat(drawn), torch.cat(sampler.logits) if sampler.logits else None

    # ---------------------------------------------------------------- what is known

    @property
    def _started(self) -> tuple[DraftMemory, Passes]:
        if self._memory is None or self._passes is None:
            raise RuntimeError("the draft model has no KV cache yet; an LLM calls start")
        return self._memory, self._passes

    def _find(self, id: SequenceId) -> DraftText:
        text = self._texts.get(id)
        if text is None:
            raise KeyError(f"drafter {self.name!r} knows no sequence {id!r}; add it first")
        return text

    def _wanted(self, ids: Sequence[SequenceId], depth: IntArray) -> list[DraftText]:
        """The texts, their depths checked against what was offered."""
        if len(ids) != len(depth):
            raise ValueError(f"{len(ids)} sequences but {len(depth)} depths")
        texts = [self._find(id) for id in ids]
        for id, text, tokens in zip(ids, texts, depth.tolist(), strict=True):
            if not 0 <= tokens <= text.offered:
                raise ValueError(
                    f"sequence {id!r} can't be drafted {tokens} deep: this step's offer is {text.offered} tokens"
                )
        return texts
