"""Machine: what a replay runs on: a step-cost curve, the draft's cost, and the engine's limits."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_spec.cost import CurveCost, DraftCost
from adaptive_spec.replay.block_counter import BlockCounter, ComputedElsewhere
from adaptive_spec.serving.scheduler import Scheduler

_SPARE_BLOCKS = 2  # for each sequence beside those of its text: a draft's limit is its share of what is free


@dataclass(frozen=True)
class Machine:
    """What a replay runs on.

    Attributes
    ----------
    name : str
    cost : CurveCost
        Seconds of a pass by its positions, and of drafting.
    source : str
        Where the figures come from; printed with every result.
    num_kv_blocks : int, optional
        Size of the KV cache. None: enough that it never preempts a sequence or limits a draft of up to 32 tokens.
    block_size : int
        Tokens in a KV block.
    max_num_seqs, max_num_batched_tokens : int
        Sequences worked on at once, and positions of one pass, prompts and drafts included.
    max_prefill_chunk : int, optional
        Most positions of one prompt in one pass; None: what the token budget leaves.
    prefill_elsewhere : bool
        Prompts were computed by other machines (disaggregated prefill): only a prompt's last token is computed
        here, which yields the first output token.
    parameters : float, optional
        Parameters that each position is multiplied with, for the FLOPs of wasted drafts.
    noise : float
        Standard deviation of the logarithm of a pass's seconds.
    """

    name: str
    cost: CurveCost
    source: str = ""
    num_kv_blocks: int | None = None
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_prefill_chunk: int | None = None
    prefill_elsewhere: bool = False
    parameters: float | None = None
    noise: float = 0.0

    @property
    def draft_cost(self) -> DraftCost:
        """What drafting costs."""
        return self.cost.draft_cost

    def with_draft_cost(self, draft_cost: DraftCost) -> Machine:
        """The same machine with another drafter."""
        cost = copy.copy(self.cost)
        cost.draft_cost = draft_cost
        return replace(self, cost=cost)

    def with_sequential_draft(self, share: float, idle_share: float = 0.0) -> Machine:
        """The same machine with a drafter that takes `share` of a pass over one position a sequence for each depth.

        As a small model of the same kind does, which drafts for as many sequences as the target decodes.
        `idle_share` is Dr(0), what a step pays although it drafts nothing.
        """
        doubled = [2**i for i in range(self.max_num_seqs.bit_length())]
        known = sorted({*doubled, *(3 * n // 2 for n in doubled[1:]), self.max_num_seqs})
        seconds = self.cost.verify(np.array(known), 0.0, 1)
        return self.with_draft_cost(
            DraftCost(
                tuple(known),
                idle=tuple((idle_share * seconds).tolist()),
                start=(0.0,) * len(known),
                each=tuple((share * seconds).tolist()),
            )
        )

    def scheduler(self, most_tokens: int) -> Scheduler:
        """A scheduler with this machine's limits, for sequences of at most `most_tokens` tokens."""
        blocks = self.num_kv_blocks
        if blocks is None:
            blocks = self.max_num_seqs * (-(-most_tokens // self.block_size) + _SPARE_BLOCKS)
        kind = ComputedElsewhere if self.prefill_elsewhere else BlockCounter
        return Scheduler(
            kind(blocks, self.block_size),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=most_tokens + 1,
            max_prefill_chunk=self.max_prefill_chunk,
        )

    @classmethod
    def load(cls, path: str | Path, *, staircase_until: int | None = None, **changes: Any) -> Machine:
        """Read a machine file, or a bare step-cost curve as :meth:`Profile.from_file` reads it.

        The schema is :class:`~adaptive_spec.replay.machine_file.MachineFile`.

        Parameters
        ----------
        path : str or Path
        staircase_until : int, optional
            The largest captured graph of a bare curve: linear above it. A machine file says it itself.
        **changes
            Fields of the machine to set otherwise.

        Raises
        ------
        MachineError
            Names the file, and each key with what is wrong.
        """
        from adaptive_spec.replay.machine_file import read_machine

        return replace(read_machine(Path(path), staircase_until), **changes)
