"""Sequence: one text in the making, and where it stands between its prompt and its end."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


class Status(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class TextSink(Protocol):
    """Turns a sequence's output tokens into text, and watches it for stop strings."""

    def push(self, token: int, /) -> str | None:
        """Take the next output token; return the stop string that it completes, if any."""
        ...

    def finish(self) -> None:
        """End the text where it is, if it hasn't ended yet."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """One text in the making.

    Attributes
    ----------
    id : int
        Unique, and rising in the order of arrival: earlier sequences are served first and preempted last.
    tokens : list of int
        Prompt and output so far. Only verified tokens are ever in it.
    num_prompt_tokens : int
        Length of the prompt.
    max_tokens : int
        Output tokens at which it ends.
    min_tokens : int
        Output tokens that must come before a stop token or a stop string can end it.
    eos_token_ids, stop_token_ids : set of int
        Tokens that end it; the request named the latter, and is told which one it was.
    keep_stop_token : bool
        Whether the token that ends it belongs to its text.
    weight : float
        Worth of one of its tokens.
    sample_index : int
        Which of its request's texts it is.
    num_computed : int
        Tokens whose keys and values are in the KV cache.
    num_prefill : int
        Tokens to compute before it decodes: its length when it was last admitted.
    blocks : array of int
        Its KV blocks, in order of position.
    drafted, accepted : int
        Draft tokens made for it; those that became text beside the one token of every step.
    depths : array of int
        Drafts that were verified for it, step by step.
    """

    id: int
    tokens: list[int]
    max_tokens: int
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    keep_stop_token: bool = False
    weight: float = 1.0
    sample_index: int = 0
    sink: TextSink | None = None
    request: Any = None  # the engine's own record, untouched here
    num_prompt_tokens: int = field(init=False)
    status: Status = Status.WAITING
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_computed: int = 0
    num_prefill: int = 0
    num_preemptions: int = 0
    blocks: array[int] = field(default_factory=lambda: array("i"))
    num_committed: int = 0  # leading blocks that are known to the prefix cache
    prefix: int = 0  # the prefix cache's name for the text of those blocks
    claim: tuple[int, int] = (0, 0)  # range of block ids set aside for its growth
    drafted: int = 0
    accepted: int = 0
    depths: array[int] = field(default_factory=lambda: array("h"))

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        """Tokens produced so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def output(self) -> list[int]:
        """The tokens produced so far."""
        return self.tokens[self.num_prompt_tokens :]

    @property
    def prefilling(self) -> bool:
        """Whether its next pass still works on its prompt (or, once preempted, on its text so far)."""
        return self.num_computed < self.num_prefill

    @property
    def finished(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.status is Status.FINISHED

    def append(self, tokens: list[int]) -> int:
        """Take verified tokens until one ends the sequence; return how many were taken."""
        if self.sink is None and self.eos_token_ids.isdisjoint(tokens) and self.stop_token_ids.isdisjoint(tokens):
            return self._append_plain(tokens)
        taken = 0
        output = self.num_output_tokens
        for token in tokens:
            self.tokens.append(token)
            taken += 1
            output += 1
            ripe = output > self.min_tokens
            named = token in self.stop_token_ids
            ends = ripe and (named or token in self.eos_token_ids)
            stop = None
            if self.sink is not None and (not ends or self.keep_stop_token):
                stop = self.sink.push(token)
            if ends:
                self.finish("stop", token if named else None)
            elif ripe and stop is not None:
                self.finish("stop", stop)
            elif output >= self.max_tokens:
                self.finish("length")
            else:
                continue
            break
        return taken

    def _append_plain(self, tokens: list[int]) -> int:
        """Take tokens none of which ends the text by itself."""
        room = self.num_prompt_tokens + self.max_tokens - len(self.tokens)
        if len(tokens) < room:
            self.tokens += tokens
            return len(tokens)
        self.tokens += tokens[:room]
        self.finish("length")
        return room

    def finish(self, finish_reason: str, stop_reason: int | str | None = None) -> None:
        """End the sequence."""
        if self.sink is not None:
            self.sink.finish()
        self.status = Status.FINISHED
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason
