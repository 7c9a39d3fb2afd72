"""A small replay for the tests of the baselines: recorded texts that recur, a machine of known cost."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.cost.base import StepCost
from adaptive_spec.cost.draft import DraftCost
from adaptive_spec.cost.profile import Profile
from adaptive_spec.experiments.baselines import Factory, Offline
from adaptive_spec.policy import DepthPolicy
from adaptive_spec.replay.clock import VirtualClock
from adaptive_spec.replay.controllers import ReplaySetting
from adaptive_spec.replay.machine import Machine
from adaptive_spec.replay.trace import Trace, TraceInfo
from adaptive_spec.step import Decision, FloatArray, IntArray, Outcome, StepTime, StepView

EVIDENCE = ("matched_length",)


def machine(each: float = 0.0) -> Profile:
    """A curve with a stair, a dip and a rise; drafting costs `each` seconds a token."""
    draft = DraftCost.sequential(each) if each else None
    return Profile([1, 8, 16, 32, 64, 600], [5e-3, 5.2e-3, 6.5e-3, 6.2e-3, 8e-3, 60e-3], draft_cost=draft)


def curve(milliseconds: list[float], draft: DraftCost | None = None) -> Profile:
    """Milliseconds at 1, 2, 3, ... positions."""
    return Profile(list(range(1, len(milliseconds) + 1)), [1e-3 * m for m in milliseconds], draft_cost=draft)


def traced(
    runs: list[list[int]],
    offered: list[list[int]] | None = None,
    matched: list[list[float]] | None = None,
    max_depth: int = 8,
    prompt_tokens: int = 10,
) -> Trace:
    """A trace of these runs, by text and position; offers are the runs and matches 1 if not given."""
    count = len(runs)
    flat = np.array([r for run in runs for r in run], dtype=np.uint8)
    offers = flat if offered is None else np.array([o for offer in offered for o in offer], dtype=np.uint8)
    lengths = np.array([len(run) for run in runs])
    return Trace(
        info=TraceInfo(max_depth),
        start=np.concatenate(([0], np.cumsum(lengths))),
        text=np.arange(count),
        category=np.array(["prose"] * count),
        task=np.array([str(i) for i in range(count)]),
        prompt_tokens=np.full(count, prompt_tokens),
        max_tokens=lengths + 1,
        stopped=np.zeros(count, dtype=bool),
        seed=np.zeros(count, dtype=np.int64),
        run=flat,
        offered=offers,
        evidence={"matched_length": np.ones(len(flat)) if matched is None else np.concatenate(matched)},
    )


def random_trace(seed: int, texts: int = 12, tokens: int = 40, max_depth: int = 8) -> Trace:
    """Texts in which longer matches are accepted more often, and some positions have no draft."""
    rng = np.random.default_rng(seed)
    matched = rng.choice([0, 1, 2, 4, 8, 20], size=(texts, tokens), p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.1])
    offered = np.where(matched > 0, rng.integers(1, max_depth + 1, matched.shape), 0)
    chance = np.interp(matched, [0, 1, 2, 4, 8, 20], [0.0, 0.25, 0.5, 0.7, 0.85, 0.95])
    kept = rng.random((*matched.shape, max_depth)) < chance[..., None]
    run = np.minimum(np.cumprod(kept, axis=2).sum(axis=2), offered)
    return traced(run.tolist(), offered.tolist(), list(matched.astype(float)), max_depth)


class NoEstimate:
    """An estimate that no peer may read: all of them bring their own."""

    def mean(self) -> FloatArray:
        raise AssertionError("a baseline must not use this package's estimate")

    def sample(self, rng: np.random.Generator) -> FloatArray:
        raise AssertionError("a baseline must not use this package's estimate")

    upper = mean


def view(limit: list[int], matched: list[float] | None = None, prefills: int = 0) -> StepView:
    """A step of sequences 0, 1, 2, ... with these limits."""
    n = len(limit)
    evidence = np.ones((n, 1)) if matched is None else np.array(matched, dtype=float)[:, None]
    return StepView(
        np.arange(n), np.array(limit), np.zeros(n, dtype=np.int64), evidence, np.ones(n), prefills, prefills
    )


def depths(policy: DepthPolicy, step: StepView, cost: StepCost | None = None) -> list[int]:
    """What the policy chooses without a controller, so that a fault of its is one of the test."""
    return list(policy.decide(step, NoEstimate(), cost).depth.tolist())


def outcome(verified: list[int], accepted: list[int], step: int = 0) -> Outcome:
    """What came of a step of sequences 0, 1, 2, ..."""
    rows = np.arange(len(verified))
    return Outcome(step, rows.tolist(), np.array(verified), np.array(verified), np.array(accepted), rows)


@dataclass
class Replay:
    """Sequences that go through the texts of a trace from random places, under a controller."""

    offline: Offline
    factory: Factory
    machine: Machine
    sequences: int
    seed: int
    tokens: int = 0
    seconds: float = 0.0
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, 7])
        self.trace, self.cost, self.max_depth = self.offline.served, self.machine.cost, self.offline.max_depth
        setting = ReplaySetting(
            self.machine, EVIDENCE, self.trace.max_depth, VirtualClock(), self.seed, lambda: self.runs, lambda: self.at
        )
        self.policy = self.factory(self.offline, setting)
        model = AcceptanceModel(self.max_depth, EVIDENCE)
        self.controller = Controller(self.policy, model, cost=self.cost, seed=self.seed, clock=lambda: self.seconds)
        self.text = np.zeros(self.sequences, dtype=np.int64)
        self.position = np.zeros(self.sequences, dtype=np.int64)
        self.ids = [0] * self.sequences
        self._next = 0
        for i in range(self.sequences):
            self._begin(i)
            self.position[i] = self.rng.integers(1, self.trace.output_tokens[self.text[i]])

    def _begin(self, i: int) -> None:
        self._next += 1
        self.ids[i] = self._next
        self.controller.add(self._next)
        self.text[i], self.position[i] = self.rng.integers(len(self.trace)), 1

    @property
    def at(self) -> IntArray:
        """Flat places of the sequences in the trace."""
        return np.asarray(self.trace.start[self.text] + self.position - 1)

    @property
    def runs(self) -> IntArray:
        """Drafts that will be accepted."""
        return self.trace.run[self.at].astype(np.int64)

    def run(self, steps: int) -> Replay:
        """Run on, and check every decision."""
        trace = self.trace
        for _ in range(steps):
            at = self.at
            left = trace.max_tokens[self.text] - self.position - 1
            limit = np.minimum(np.minimum(trace.offered[at], self.max_depth), left).astype(np.int64)
            context = trace.prompt_tokens[self.text] + self.position - 1
            prefill = int(self.rng.integers(0, 200)) if self.rng.random() < 0.1 else 0
            evidence = trace.evidence["matched_length"][at][:, None].astype(float)
            row = self.controller.rows(self.ids)
            step = StepView(row, limit, context, evidence, None, prefill, int(prefill > 0))
            decision = self.controller.plan(step)
            self.decisions.append(decision)
            depth = decision.depth
            assert depth.dtype.kind == "i"
            assert (depth >= 0).all()
            assert (depth <= limit).all()
            assert depth.max() <= decision.draft_depth <= self.max_depth
            accepted = np.minimum(depth, self.runs)
            emitted = int((accepted + 1).sum())
            positions = step.base_positions + int(depth.sum())
            seconds = float(self.cost.verify(np.array([positions]), float(context.sum()), self.sequences)[0])
            seconds += float(self.cost.draft(np.array([decision.draft_depth]), self.sequences)[0])
            self.controller.observe(Outcome(decision.step, self.ids.copy(), depth, depth, accepted))
            self.controller.observe_time(
                StepTime(
                    decision.step, positions, self.sequences, int(context.sum()), decision.draft_depth,
                    tokens=emitted + step.sampling_prefills, step_seconds=seconds,
                )
            )  # fmt: skip
            self.tokens += emitted
            self.seconds += seconds
            self.position += accepted + 1
            for i in np.flatnonzero(self.position >= trace.output_tokens[self.text]).tolist():
                self.controller.remove(self.ids[i])
                self._begin(i)
        return self
