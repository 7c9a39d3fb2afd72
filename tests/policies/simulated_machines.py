"""Machines of known cost and texts of known predictability, to try policies on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import DepthPolicy
from adaptive_spec.step import FloatArray, IntArray, StepTime, StepView

DEPTHS = 8


class Curve(StepCost):
    """Seconds by positions, straight between measured points and beyond them; drafting costs `draft` a token."""

    def __init__(self, milliseconds: dict[int, float], draft: float = 0.0) -> None:
        self.positions = np.array(list(milliseconds), dtype=float)
        self.seconds = np.array(list(milliseconds.values())) * 1e-3
        self.draft_seconds = draft

    def verify(self, positions: IntArray, context: float, sequences: int) -> FloatArray:
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.positions[-1] - self.positions[-2])
        beyond = np.maximum(positions - self.positions[-1], 0.0) * slope
        return np.interp(positions, self.positions, self.seconds) + beyond

    def draft(self, depth: IntArray, sequences: int, lag: int = 0) -> FloatArray:
        return np.asarray(depth) * self.draft_seconds


# A two-core AVX-512 CPU with a model of 135M parameters: some eight positions are free.
CPU = Curve({1: 36, 2: 34, 4: 38, 8: 41, 16: 50, 32: 67, 64: 114, 128: 199})
# A published measurement of a large model on four B300, thinned: stairs, dips, and a cliff above 1,025.
B300 = Curve(
    {
        1: 5.11, 4: 5.12, 8: 5.35, 16: 5.59, 32: 6.26, 48: 6.94, 64: 7.90, 96: 8.77, 128: 9.43, 144: 9.90, 152: 11.32,
        168: 11.39, 176: 10.41, 256: 11.30, 272: 12.52, 336: 14.58, 352: 13.54, 432: 14.67, 496: 16.22, 512: 15.03,
        1025: 21.0, 1537: 105.0,
    }
)  # fmt: skip


@dataclass
class Texts:
    """Sequences of 64 tokens whose drafts are more or less predictable, and an estimate that learns it.

    Each text has a style, each of its steps one of five kinds of evidence, mostly according to the style;
    acceptance depends on the evidence alone. The estimate counts by evidence and position, from an
    optimistic prior, as the acceptance model does.
    """

    sequences: int
    seed: int
    acceptance: FloatArray = field(default_factory=lambda: np.array([0.2, 0.5, 0.72, 0.88, 0.96]))

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, 0])
        self.styles = np.random.default_rng([self.seed, 1])
        self.style = self.styles.random(self.sequences)
        self.left = self.rng.integers(1, 64, self.sequences)
        self.kind = self.rng.integers(0, 5, self.sequences)
        self.accepted = np.zeros((DEPTHS, 5))
        self.seen = np.zeros((DEPTHS, 5))

    def next(self) -> StepView:
        """Begin a step."""
        ended = self.left <= 0
        self.style[ended] = self.styles.random(int(ended.sum()))
        self.left[ended] = 64
        drawn = (self.style * 5 + self.rng.normal(0, 1.2, self.sequences)).astype(int)
        self.kind = np.where(self.rng.random(self.sequences) < 0.6, np.clip(drawn, 0, 4), self.kind)
        n = self.sequences
        limit = np.minimum(DEPTHS, np.maximum(self.left - 1, 0))
        return StepView(np.arange(n), limit, np.full(n, 50), np.zeros((n, 0)), np.ones(n))

    def finish(self, depth: IntArray) -> int:
        """Verify the drafts, learn, and return the tokens of the step."""
        kept = self.rng.random((DEPTHS, self.sequences)) < self.acceptance[self.kind]
        accepted = np.minimum(np.cumprod(kept, axis=0).sum(axis=0), depth)
        for k in range(DEPTHS):
            self.accepted[k] += np.bincount(self.kind[accepted > k], minlength=5)
            self.seen[k] += np.bincount(self.kind[(accepted >= k) & (depth > k)], minlength=5)
        self.left -= accepted + 1
        return int((accepted + 1).sum())

    def mean(self) -> FloatArray:
        return np.cumprod(self._rate()[:, self.kind], axis=0).T

    def sample(self, rng: np.random.Generator) -> FloatArray:
        rate = self._rate()
        sd = np.sqrt(rate * (1 - rate) / (self.seen + 21))
        drawn = np.clip(rate + sd * rng.standard_normal(rate.shape), 0.01, 0.99)
        return np.cumprod(drawn[:, self.kind], axis=0).T

    def upper(self) -> FloatArray:
        return self.mean()

    def _rate(self) -> Any:
        return (self.accepted + 17) / (self.seen + 20)


def goodput(
    policy: DepthPolicy, machine: Curve, sequences: int, steps: int, seed: int, noise: float = 0.03, in_flight: int = 2
) -> float:
    """Tokens per second of a run; times are noisy, and arrive when the next step was planned already."""
    texts, rng = Texts(sequences, seed), np.random.default_rng([seed, 2])
    policy.reset(DEPTHS, seed)
    times: list[StepTime] = []
    total_tokens = total_seconds = 0.0
    for number in range(1, steps + 1):
        view = texts.next()
        decision = policy.decide(view, texts, machine)
        decision.step = number
        positions = sequences + int(decision.depth.sum())
        seconds = float(machine.verify(np.array([positions]), 0.0, sequences)[0])
        seconds += float(machine.draft(np.array([decision.draft_depth]), sequences)[0])
        seconds *= float(np.exp(noise * rng.standard_normal()))
        tokens = texts.finish(decision.depth)
        total_tokens += tokens
        total_seconds += seconds
        times.append(
            StepTime(number, positions, sequences, 50 * sequences, decision.draft_depth, tokens, step_seconds=seconds)
        )
        if len(times) == in_flight:
            policy.observe_time(times.pop(0))
    return total_tokens / total_seconds
