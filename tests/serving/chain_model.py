"""A model without weights: its next token is a function of all tokens before, and its KV cache shows every mix-up."""

from __future__ import annotations

import numpy as np

from adaptive_spec.serving.loop import StepResult
from adaptive_spec.serving.scheduler import ScheduledStep
from adaptive_spec.serving.sequence import Sequence
from adaptive_spec.step import Decision, FloatArray, IntArray, Outcome, StepTime, StepView

MASK = (1 << 61) - 1


def link(state: int, token: int) -> int:
    """The state after one more token."""
    return ((state ^ (token + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 + 1) & MASK


def next_token(state: int, vocabulary: int) -> int:
    """The token that follows a text."""
    return (state >> 17) % vocabulary


def continuation(prompt: list[int], length: int, vocabulary: int) -> list[int]:
    """The text that any correct engine produces."""
    state = 0
    for token in prompt:
        state = link(state, token)
    output = []
    for _ in range(length):
        output.append(next_token(state, vocabulary))
        state = link(state, output[-1])
    return output


class ChainRunner:
    """Keeps, for every slot of the KV cache, the state of the text up to it, and reads it back through the blocks.

    A block used twice, a wrong prefix, a stale draft: each breaks the chain at the next pass.
    """

    def __init__(self, num_blocks: int, block_size: int, vocabulary: int, seed: int = 0) -> None:
        self.kv = np.zeros((num_blocks, block_size), dtype=np.int64)
        self.block_size = block_size
        self.vocabulary = vocabulary
        self.rng = np.random.default_rng(seed)
        self.known: set[int] = set()
        self.passes = 0
        self.most_positions = 0
        self.reused = 0

    def add(self, sequence: Sequence) -> None:
        assert sequence.id not in self.known
        self.known.add(sequence.id)

    def remove(self, sequence: Sequence) -> None:
        self.known.remove(sequence.id)

    def offers(self, sequences: list[Sequence], limit: IntArray) -> tuple[IntArray, FloatArray, int]:
        return self.rng.integers(0, limit + 1), np.zeros((len(sequences), 0)), 0

    def _read(self, sequence: Sequence, position: int) -> int:
        block = sequence.blocks[position // self.block_size]
        return int(self.kv[block, position % self.block_size])

    def _write(self, sequence: Sequence, start: int, tokens: list[int]) -> list[int]:
        """Compute `tokens` from position `start` on; return the tokens that the model expects after each."""
        state = self._read(sequence, start - 1) if start else 0
        expected = []
        for i, token in enumerate(tokens, start):
            state = link(state, token)
            self.kv[sequence.blocks[i // self.block_size], i % self.block_size] = state
            expected.append(next_token(state, self.vocabulary))
        return expected

    def execute(self, step: ScheduledStep) -> StepResult:
        self.passes += 1
        self.most_positions = max(self.most_positions, len(step.decoding) + step.prefill_tokens + int(step.depth.sum()))
        everyone = [*step.decoding, *(chunk.sequence for chunk in step.prefills)]
        for sequence in everyone:
            state = 0
            for position, token in enumerate(sequence.tokens[: sequence.num_computed]):
                state = link(state, token)
                assert self._read(sequence, position) == state, "the KV cache holds another text's state"
        tokens, accepted = [], np.zeros(len(step.decoding), dtype=np.int64)
        for i, (sequence, depth) in enumerate(zip(step.decoding, step.depth.tolist(), strict=True)):
            assert not sequence.prefilling
            assert sequence.num_computed == len(sequence.tokens) - 1
            draft = [
                token if self.rng.random() < 0.7 else int(self.rng.integers(self.vocabulary))
                for token in continuation(sequence.tokens, depth, self.vocabulary)
            ]
            expected = self._write(sequence, sequence.num_computed, [sequence.tokens[-1], *draft])
            right = [d == e for d, e in zip(draft, expected, strict=False)]
            accepted[i] = right.index(False) if False in right else depth
            tokens.append(expected[: accepted[i] + 1])
        first = []
        for chunk in step.prefills:
            assert chunk.start == chunk.sequence.num_computed
            assert chunk.length > 0
            part = chunk.sequence.tokens[chunk.start : chunk.start + chunk.length]
            expected = self._write(chunk.sequence, chunk.start, part)
            if chunk.ends:
                first.append(expected[-1])
        return StepResult(tokens, first, step.depth.copy(), step.depth.copy(), accepted, 1.0, 0.0)


class RandomDepths:
    """Stands where the controller stands, and chooses any depth within the limits."""

    def __init__(self, max_depth: int, seed: int = 0) -> None:
        self.max_depth = max_depth
        self.evidence: tuple[str, ...] = ()
        self.rng = np.random.default_rng(seed)
        self.live: dict[object, int] = {}
        self.outcomes: list[Outcome] = []
        self.times: list[StepTime] = []
        self.step = 0

    def add(self, id: object, **_: object) -> int:
        assert id not in self.live
        self.live[id] = len(self.live)
        return self.live[id]

    def remove(self, id: object) -> None:
        del self.live[id]

    def rows(self, ids: list[object]) -> IntArray:
        return np.array([self.live[id] for id in ids], dtype=np.int64)

    def plan(self, view: StepView) -> Decision:
        assert (view.limit >= 0).all()
        self.step += 1
        depth = self.rng.integers(0, view.limit + 1)
        return Decision(self.step, view.row, depth, int(depth.max(initial=0)))

    def observe(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def observe_time(self, time: StepTime) -> None:
        self.times.append(time)
