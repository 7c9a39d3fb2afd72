"""How well survival is predicted: the acceptance model against what peers use, on recorded steps.

    python -m adaptive_spec.experiments.acceptance_quality STEPS.npz [--budget 2] [--json]

The recording is a ``.npz`` archive with one row per sequence and step, in time order:

=================== ======== ==============================================================================
array               shape
=================== ======== ==============================================================================
``step``            (N,)     number of the step, never falling
``sequence``        (N,)     number of the sequence; at most one row per step
``verified``        (N,)     drafts that the target judged
``accepted``        (N,)     drafts that were kept, at most ``verified``
``evidence``        (N, F)   evidence as it was known before the step; F may be 0, or the array missing
``evidence_names``  (F,)     names of the columns, each of ``adaptive_spec.acceptance.EVIDENCE``
=================== ======== ==============================================================================

Steps are replayed in order; every estimator predicts a step before it learns from it (prequential evaluation:
Dawid, JRSS A 147, 1984). Scored is every slot (sequence, position) that was verified: did the draft and all
before it survive? Depth was chosen before the outcome, so this is known and uncensored. Columns:

- log-loss in nats per slot, and calibration error: mean absolute gap between predicted and seen survival over
  ten equal bins of the prediction, weighted by their slots;
- the same two over the slots that this estimator would have bought: in every step the ``--budget`` slots per
  sequence that it values most, where the argmax picks over-estimates. `over` is predicted minus seen survival
  there, `kept` the share of the bought slots that survived, which is comparable since all spend the same.

The peers: one exponential moving average over all sequences (0.85 old, 0.15 new), accepted over judged per
position, one moving average per sequence. A prediction that hardly varies, as counts are, is calibrated for free
and sorts nothing; read its calibration error beside its log-loss.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.acceptance import EVIDENCE, AcceptanceModel
from adaptive_spec.step import BoolArray, FloatArray, IntArray

OLD, NEW = 0.85, 0.15
PROBABILITY_FLOOR = 1e-6
BINS = 10


@dataclass(frozen=True)
class Recording:
    """Steps in time order; see the module's docstring."""

    step: IntArray
    sequence: IntArray
    verified: IntArray
    accepted: IntArray
    evidence: FloatArray
    evidence_names: tuple[str, ...]

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a recording; ValueError says which array is missing or wrong."""
        with np.load(path, allow_pickle=False) as archive:
            missing = [n for n in ("step", "sequence", "verified", "accepted") if n not in archive]
            if missing:
                raise ValueError(f"{path}: no array {missing[0]!r}; a recording has step, sequence, verified, accepted")
            step, sequence, verified, accepted = (
                archive[n].astype(np.int64) for n in ("step", "sequence", "verified", "accepted")
            )
            evidence = archive["evidence"].astype(np.float64) if "evidence" in archive else np.zeros((len(step), 0))
            names = tuple(str(x) for x in archive["evidence_names"]) if "evidence_names" in archive else ()
        recording = cls(step, sequence, verified, accepted, evidence, names)
        recording.check(str(path))
        return recording

    def check(self, where: str) -> None:
        """Raise ValueError if the arrays don't fit together."""
        n = len(self.step)
        if n == 0 or any(x.shape != (n,) for x in (self.sequence, self.verified, self.accepted)):
            raise ValueError(f"{where}: step, sequence, verified and accepted must have one length, over 0")
        if self.evidence.shape != (n, len(self.evidence_names)):
            raise ValueError(
                f"{where}: evidence has shape {self.evidence.shape}; {n} rows and "
                f"{len(self.evidence_names)} evidence_names need ({n}, {len(self.evidence_names)})"
            )
        if np.any(np.diff(self.step) < 0):
            raise ValueError(f"{where}: rows must be in the order of their step")
        if np.any(self.accepted < 0) or np.any(self.accepted > self.verified):
            raise ValueError(f"{where}: accepted must lie between 0 and verified")
        if not self.verified.any():
            raise ValueError(f"{where}: no draft was verified, so there is nothing to score")


class Estimator(Protocol):
    """Predicts survival (B, K) of a step's sequences, then learns what came of it."""

    def predict(self, sequence: IntArray, evidence: FloatArray) -> FloatArray: ...

    def observe(self, sequence: IntArray, verified: IntArray, accepted: IntArray) -> None: ...


class GlobalEma:
    """One moving average of the acceptance of all drafts; survival is its power."""

    def __init__(self, max_depth: int) -> None:
        self.power = np.arange(1, max_depth + 1)
        self.rate = 0.85

    def predict(self, sequence: IntArray, evidence: FloatArray) -> FloatArray:
        return np.broadcast_to(self.rate**self.power, (len(sequence), len(self.power)))

    def observe(self, sequence: IntArray, verified: IntArray, accepted: IntArray) -> None:
        judged = int(np.minimum(accepted + 1, verified).sum())
        if judged:
            self.rate = OLD * self.rate + NEW * int(accepted.sum()) / judged


class PositionCounts:
    """Accepted over judged at each position, from the first step on; survival is their product."""

    def __init__(self, max_depth: int) -> None:
        self.accepted = np.full(max_depth, 0.85)
        self.judged = np.ones(max_depth)

    def predict(self, sequence: IntArray, evidence: FloatArray) -> FloatArray:
        survival = np.cumprod(self.accepted / self.judged)
        return np.broadcast_to(survival, (len(sequence), len(survival)))

    def observe(self, sequence: IntArray, verified: IntArray, accepted: IntArray) -> None:
        position = np.arange(len(self.judged))[:, None]
        self.judged += (position < np.minimum(accepted + 1, verified)).sum(axis=1)
        self.accepted += (position < accepted).sum(axis=1)


class SequenceEma:
    """A moving average of each sequence's acceptance, which begins at that of all; survival is its power."""

    def __init__(self, max_depth: int) -> None:
        self.all = GlobalEma(max_depth)
        self.rate: dict[int, float] = {}

    def predict(self, sequence: IntArray, evidence: FloatArray) -> FloatArray:
        rate = np.array([self.rate.get(int(i), self.all.rate) for i in sequence])
        survival: FloatArray = rate[:, None] ** self.all.power
        return survival

    def observe(self, sequence: IntArray, verified: IntArray, accepted: IntArray) -> None:
        for i, judged, kept in zip(sequence, np.minimum(accepted + 1, verified), accepted, strict=True):
            if judged:
                self.rate[int(i)] = OLD * self.rate.get(int(i), self.all.rate) + NEW * kept / judged
        self.all.observe(sequence, verified, accepted)


class Modelled:
    """The acceptance model, with rows for the sequences that it has met."""

    def __init__(self, max_depth: int, names: tuple[str, ...], sequence_effect: bool) -> None:
        self.model = AcceptanceModel(max_depth, names, sequence_effect=sequence_effect)
        self.row: dict[int, int] = {}
        self.columns = len(names)

    def predict(self, sequence: IntArray, evidence: FloatArray) -> FloatArray:
        for i in sequence:
            if int(i) not in self.row:
                self.row[int(i)] = len(self.row)
                self.model.add(self.row[int(i)])
        self.rows = np.array([self.row[int(i)] for i in sequence])
        self.cell = self.model.cells(evidence[:, : self.columns])
        return self.model.estimate(self.rows, self.cell).mean()

    def observe(self, sequence: IntArray, verified: IntArray, accepted: IntArray) -> None:
        self.model.observe(self.rows, self.cell, verified, accepted)


@dataclass(frozen=True)
class Score:
    """How good an estimator's predictions were; see the module's docstring."""

    estimator: str
    log_loss: float
    calibration_error: float
    bought_log_loss: float
    bought_calibration_error: float
    bought_over: float
    bought_kept: float


def log_loss(predicted: FloatArray, seen: BoolArray) -> float:
    """Mean negative log-likelihood, in nats."""
    p = np.clip(predicted, PROBABILITY_FLOOR, 1.0 - PROBABILITY_FLOOR)
    return float(-np.log(np.where(seen, p, 1.0 - p)).mean())


def calibration_error(predicted: FloatArray, seen: BoolArray) -> float:
    """Expected calibration error over ten equal bins."""
    bin_ = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
    gap = np.bincount(bin_, predicted - seen, BINS)
    return float(np.abs(gap).sum() / len(predicted))


def best_slots(survival: FloatArray, verified: IntArray, n: int) -> BoolArray:
    """The n verified slots valued most, shape (B, K); ties go to the shallower."""
    offered = np.arange(survival.shape[1]) < verified[:, None]
    value = np.where(offered, survival, -1.0).T.ravel()  # position-major: a stable sort prefers the shallower
    order = np.argsort(-value, kind="stable")[: min(n, int(offered.sum()))]
    bought = np.zeros(value.shape, dtype=np.bool_)
    bought[order] = True
    return bought.reshape(survival.shape[::-1]).T


def evaluate(recording: Recording, name: str, estimator: Estimator, budget: float) -> Score:
    """Replay the recording through one estimator and score what it predicted."""
    starts = np.flatnonzero(np.diff(recording.step, prepend=recording.step[0] - 1))
    depth = int(recording.verified.max())
    position = np.arange(depth)
    predicted, seen, bought = [], [], []
    for begin, end in zip(starts, [*starts[1:], len(recording.step)], strict=True):
        sequence, verified, accepted = (
            x[begin:end] for x in (recording.sequence, recording.verified, recording.accepted)
        )
        survival = estimator.predict(sequence, recording.evidence[begin:end])
        scored = position < verified[:, None]
        predicted.append(survival[scored])
        seen.append((position < accepted[:, None])[scored])
        bought.append(best_slots(survival, verified, round(budget * len(sequence)))[scored])
        estimator.observe(sequence, verified, accepted)
    p, y, b = np.concatenate(predicted), np.concatenate(seen), np.concatenate(bought)
    return Score(
        estimator=name,
        log_loss=log_loss(p, y),
        calibration_error=calibration_error(p, y),
        bought_log_loss=log_loss(p[b], y[b]),
        bought_calibration_error=calibration_error(p[b], y[b]),
        bought_over=float(p[b].mean() - y[b].mean()),
        bought_kept=float(y[b].mean()),
    )


def compare(recording: Recording, budget: float = 2.0) -> list[Score]:
    """Score the acceptance model, what its parts contribute, and the peers."""
    depth, names = int(recording.verified.max()), recording.evidence_names
    estimators: dict[str, Estimator] = {"adaptive_spec": Modelled(depth, names, True)}
    if names:
        estimators["  without sequence effect"] = Modelled(depth, names, False)
        estimators["  without evidence"] = Modelled(depth, (), True)
    estimators["global EMA"] = GlobalEma(depth)
    estimators["per-position counts"] = PositionCounts(depth)
    estimators["per-sequence EMA"] = SequenceEma(depth)
    return [evaluate(recording, name, estimator, budget) for name, estimator in estimators.items()]


def main(
    steps: Annotated[Path, typer.Argument(help="Recorded steps (.npz); python -m pydoc shows the format.")],
    budget: Annotated[float, typer.Option(min=0.0, help="Slots bought per sequence and step.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare how well the acceptance model and its peers predict survival on recorded steps."""
    try:
        recording = Recording.load(steps)
        unknown = sorted(set(recording.evidence_names) - set(EVIDENCE))
        if unknown:
            raise ValueError(f"{steps}: no evidence is called {unknown[0]!r}; there are {', '.join(EVIDENCE)}")
    except (OSError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    scores = compare(recording, budget)
    if as_json:
        typer.echo(json.dumps([asdict(score) | {"estimator": score.estimator.strip()} for score in scores], indent=2))
        return
    table = Table(
        title=f"{len(np.unique(recording.step)):,} steps, {len(np.unique(recording.sequence)):,} sequences, "
        f"{int(recording.verified.sum()):,} verified slots; evidence: {', '.join(recording.evidence_names) or 'none'}"
    )
    table.add_column("estimator")
    for heading in ("log-loss", "calibration", "bought: log-loss", "calibration", "over", "kept"):
        table.add_column(heading, justify="right")
    for score in scores:
        name, *figures = asdict(score).values()
        table.add_row(name, *(f"{figure:.4f}" for figure in figures))
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
