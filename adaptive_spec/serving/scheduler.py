"""Scheduler: which sequences a step carries, and how many positions and KV blocks each may use."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from adaptive_spec.serving.blocks import BlockPool
from adaptive_spec.serving.sequence import Sequence, Status
from adaptive_spec.step import IntArray

NO_DEPTH = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Chunk:
    """A part of a prompt that one step computes."""

    sequence: Sequence
    start: int
    length: int

    @property
    def ends(self) -> bool:
        """Whether the prompt ends with it, so that it yields a token."""
        return self.start + self.length == self.sequence.num_prefill


@dataclass(slots=True)
class ScheduledStep:
    """What one step carries.

    Attributes
    ----------
    decoding : list of Sequence, length B
        One position each, and their drafts.
    prefills : list of Chunk
        Parts of prompts.
    limit : int array, shape (B,)
        The most drafts that each sequence may have.
    depth : int array, shape (B,)
        Drafts to verify; filled in once they are decided.
    draft_depth : int
        The most drafts that any sequence is asked for.
    preempted, admitted : list of Sequence
        Those that lost their KV blocks, and those that got some.
    """

    decoding: list[Sequence]
    prefills: list[Chunk]
    limit: IntArray
    depth: IntArray = field(default_factory=lambda: NO_DEPTH)
    draft_depth: int = 0
    preempted: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)

    @property
    def prefill_tokens(self) -> int:
        """Positions that it carries for prompts."""
        return sum(chunk.length for chunk in self.prefills)

    @property
    def ending(self) -> list[Sequence]:
        """Sequences whose prefill ends in it."""
        return [chunk.sequence for chunk in self.prefills if chunk.ends]


class Scheduler:
    """Continuous batching: decoding sequences first, then prompts in chunks, then drafts with what is left.

    A token budget bounds the positions of a step. When KV blocks run out, the sequence that arrived last loses
    its own and is computed anew later ("recompute" preemption); drafts are given up long before, since their limits
    count free blocks only. Between steps no block is held for anything but a verified token.

    Parameters
    ----------
    pool : BlockPool
        The KV cache's blocks.
    max_num_seqs : int
        Sequences that are worked on at once.
    max_num_batched_tokens : int
        Positions that a step may carry, at least `max_num_seqs`.
    max_model_len : int
        Tokens that a sequence may have, prompt and output.
    max_prefill_chunk : int, optional
        Most positions of one prompt in one step; None: what the budget leaves.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        max_prefill_chunk: int | None = None,
    ) -> None:
        if max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {max_num_seqs}; it must be 1 or more")
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) is below max_num_seqs ({max_num_seqs}); "
                "a step must have a position for every sequence"
            )
        if max_prefill_chunk is not None and max_prefill_chunk < 1:
            raise ValueError(f"max_prefill_chunk is {max_prefill_chunk}; it must be 1 or more")
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.max_prefill_chunk = max_num_batched_tokens if max_prefill_chunk is None else max_prefill_chunk
        self.waiting: deque[Sequence] = deque()  # both queues are in the order of arrival, and
        self.running: list[Sequence] = []  # who runs arrived before all who wait

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def check(self, num_prompt_tokens: int, max_tokens: int) -> int:
        """Return the output tokens that a request can really have, at most `max_tokens`.

        Raises
        ------
        ValueError
            If the request can never be served.
        """
        if num_prompt_tokens < 1:
            raise ValueError("the prompt is empty; it must have at least one token")
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; it must be 1 or more")
        if num_prompt_tokens >= self.max_model_len:
            raise ValueError(
                f"the prompt has {num_prompt_tokens} tokens; the model's length is {self.max_model_len} "
                "(max_model_len), and the output needs at least one of them"
            )
        max_tokens = min(max_tokens, self.max_model_len - num_prompt_tokens)
        needed = self.pool.blocks_for(num_prompt_tokens + max_tokens - 1)  # the last token's is never computed
        if needed > self.pool.num_blocks:
            raise ValueError(
                f"{num_prompt_tokens} prompt and {max_tokens} output tokens need {needed} KV blocks of "
                f"{self.pool.block_size} tokens, and there are {self.pool.num_blocks}; lower max_tokens or raise "
                "num_kv_blocks"
            )
        return max_tokens

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; ValueError if it can never be served."""
        sequence.max_tokens = self.check(sequence.num_prompt_tokens, sequence.max_tokens)
        self.waiting.append(sequence)

    def schedule(self, max_depth: int) -> ScheduledStep:
        """Choose what the next step carries, with at most `max_depth` drafts a sequence; empty if nothing is left."""
        decoding, preempted = self._decode()
        budget = self.max_num_batched_tokens - len(decoding)
        prefills: list[Chunk] = []
        for sequence in self.running:
            if sequence.prefilling and budget > 0:
                budget -= self._prefill(sequence, budget, prefills)
        admitted: list[Sequence] = []
        # Who was just preempted must not take the blocks back at once.
        while self.waiting and not preempted and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            if not self.pool.admit(sequence, spare=len(self.running)):
                break
            sequence.num_prefill = len(sequence.tokens)
            sequence.status = Status.RUNNING
            self.running.append(self.waiting.popleft())
            admitted.append(sequence)
            budget -= self._prefill(sequence, budget, prefills)
        limit = self._limits(decoding, min(max_depth, budget // len(decoding) if decoding else 0))
        return ScheduledStep(decoding, prefills, limit, preempted=preempted, admitted=admitted)

    def _decode(self) -> tuple[list[Sequence], list[Sequence]]:
        """Give every decoding sequence the block of its next position; preempt the latest where there are none."""
        decoding: list[Sequence] = []
        preempted: list[Sequence] = []
        size = self.pool.block_size
        i = 0
        while i < len(self.running):
            sequence = self.running[i]
            i += 1
            if sequence.prefilling:
                continue
            while len(sequence.tokens) > len(sequence.blocks) * size and not self.pool.grow(
                sequence, len(sequence.tokens)
            ):
                latest = self.running.pop()
                self._preempt(latest)
                preempted.append(latest)
                if latest is sequence:
                    break
            else:
                decoding.append(sequence)
        return decoding, preempted

    def _prefill(self, sequence: Sequence, budget: int, prefills: list[Chunk]) -> int:
        length = min(budget, self.max_prefill_chunk, sequence.num_prefill - sequence.num_computed)
        prefills.append(Chunk(sequence, sequence.num_computed, length))
        return length

    def _preempt(self, sequence: Sequence) -> None:
        self.pool.release(sequence)
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _limits(self, decoding: list[Sequence], most: int) -> IntArray:
        if most <= 0:
            return np.zeros(len(decoding), dtype=np.int64)
        size = self.pool.block_size
        share = self.pool.num_free // len(decoding) * size  # tokens of free blocks that each may count on
        return np.array(
            [
                min(
                    most,
                    sequence.num_prompt_tokens + sequence.max_tokens - len(sequence.tokens) - 1,
                    len(sequence.blocks) * size - len(sequence.tokens) + share,
                )
                for sequence in decoding
            ],
            dtype=np.int64,
        )

    def reserve(self, step: ScheduledStep) -> None:
        """Reserve KV blocks for the step's drafts; RuntimeError if a depth is over its limit."""
        size = self.pool.block_size
        for sequence, depth in zip(step.decoding, step.depth.tolist(), strict=True):
            needed = len(sequence.tokens) + depth
            if needed > len(sequence.blocks) * size and not self.pool.grow(sequence, needed):
                raise RuntimeError(
                    f"sequence {sequence.id} has no KV blocks for its {depth} drafts; its limit is wrong"
                )

    def advance(self, sequence: Sequence, tokens: list[int]) -> int:
        """Take a sequence's verified tokens, free it if they end it; return how many were taken."""
        taken = sequence.append(tokens)
        sequence.num_computed = len(sequence.tokens) - 1  # the newest token's turn comes in the next pass
        self.pool.commit(sequence)
        if sequence.finished:
            self._forget(sequence)
        else:
            self.pool.trim(sequence)
        return taken

    def advance_prefill(self, chunk: Chunk) -> None:
        """Count a chunk of a prompt as computed."""
        chunk.sequence.num_computed = chunk.start + chunk.length
        self.pool.commit(chunk.sequence)

    def abort(self, sequence: Sequence, finish_reason: str = "abort", stop_reason: str | None = None) -> None:
        """End a sequence before its time and free what it holds."""
        sequence.finish(finish_reason, stop_reason)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self.pool.release(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
