"""CellRecord: what a comparison keeps of one run, in memory that doesn't grow with its steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from adaptive_spec.replay.runner import ReplayedText
from adaptive_spec.replay.trace import Trace
from adaptive_spec.serving.loop import StepReport
from adaptive_spec.step import FloatArray, IntArray

POINTS = 256  # of a run's course that are kept at most
BINS = 20  # of predicted survival
STRIPS = 8  # sequences whose depths are kept
STRIP_STEPS = 160
MANY = 32  # sequences, from which on every fourth step's slots are enough


class TextShares:
    """Tokens and seconds of every text: what a bootstrap by text resamples.

    Each step's seconds are shared evenly by the sequences that gained a token in it; steps in which none did are shared
    by those of the next. So over all texts the seconds add up to what the steps took, and goodput is a ratio of two
    sums over texts, exactly.

    Parameters
    ----------
    trace : Trace

    Attributes
    ----------
    text : int array, shape (N,)
        The trace's texts, rising.
    tokens, seconds : float array, shape (N,)
    decode_tokens, user_seconds : float array, shape (N,)
        Of decoding alone, where every sequence is charged the whole of each of its steps.
    """

    def __init__(self, trace: Trace) -> None:
        self.text, own = np.unique(trace.text, return_inverse=True)
        self._of_number = own
        self._of_place = np.repeat(own, np.diff(trace.start))
        count = len(self.text)
        self.tokens, self.seconds = np.zeros(count), np.zeros(count)
        self.decode_tokens, self.user_seconds = np.zeros(count), np.zeros(count)
        self._owed = 0.0

    def add(self, report: StepReport, places: IntArray, seconds: float) -> None:
        """Count one step.

        Parameters
        ----------
        places : int array, shape (B,)
            Of the decoding sequences in the trace's flat arrays.
        seconds : float
            That passed.
        """
        count = len(self.text)
        sequences, started = len(report.sequences), report.started
        self._owed += seconds
        if not (sequences or started):
            return
        share = self._owed / (sequences + len(started))
        self._owed = 0.0
        if sequences:
            text = self._of_place[places]
            present = np.bincount(text, minlength=count)
            emitted = np.bincount(text, report.emitted, count)
            self.tokens += emitted
            self.seconds += present * share
            self.decode_tokens += emitted
            self.user_seconds += present * seconds
        for sequence in started:
            request: ReplayedText = sequence.request
            text = self._of_number[request.number]
            self.tokens[text] += 1
            self.seconds[text] += share

    def record(self) -> dict[str, list[float]]:
        """As plain lists."""
        names = ("text", "tokens", "seconds", "decode_tokens", "user_seconds")
        return {name: getattr(self, name).tolist() for name in names}


class Course:
    """Tokens and seconds along a run, warm-up included, thinned as it grows."""

    def __init__(self) -> None:
        self._stride = 1
        self._steps: list[int] = [0]
        self._tokens: list[float] = [0]
        self._seconds: list[float] = [0.0]

    def add(self, step: int, tokens: float, seconds: float) -> None:
        """Note where a run stands after so many steps."""
        if step % self._stride:
            return
        self._steps.append(step)
        self._tokens.append(tokens)
        self._seconds.append(seconds)
        if len(self._steps) > POINTS:
            self._stride *= 2
            keep = [i for i, s in enumerate(self._steps) if s % self._stride == 0]
            self._steps = [self._steps[i] for i in keep]
            self._tokens = [self._tokens[i] for i in keep]
            self._seconds = [self._seconds[i] for i in keep]

    def record(self) -> dict[str, list[float]]:
        """As plain lists."""
        return {"steps": list(self._steps), "tokens": self._tokens, "seconds": self._seconds}


class Calibration:
    """Predicted against true survival: of every slot on offer, which a replay knows, and of those that were bought.

    Where the slots are that a decision buys, the argmax has picked over-estimates among them.
    """

    def __init__(self, max_depth: int) -> None:
        self._position = np.arange(max_depth)
        self._sums = {name: np.zeros((3, BINS)) for name in ("all", "bought")}
        self._log_loss = dict.fromkeys(self._sums, 0.0)

    def add(self, report: StepReport, runs: IntArray, offered: IntArray) -> None:
        """Count one step's slots.

        Parameters
        ----------
        runs, offered : int array, shape (B,)
            L[p] of its sequences, and the drafts that each could have had.
        """
        decision = report.decision
        if decision is None or decision.survival is None or (len(runs) >= MANY and decision.step % 4):
            return
        survival = decision.survival  # [B, K]
        self._count("all", survival, self._position < offered[:, None], runs)
        if decision.depth.any():
            self._count("bought", survival, self._position < decision.depth[:, None], runs)

    def _count(self, name: str, survival: FloatArray, chosen: Any, runs: IntArray) -> None:
        predicted = survival[chosen]
        kept = np.broadcast_to(self._position < runs[:, None], chosen.shape)[chosen]
        bin_of = np.minimum((predicted * BINS).astype(np.int64), BINS - 1)
        sums = self._sums[name]
        sums[0] += np.bincount(bin_of, minlength=BINS)
        sums[1] += np.bincount(bin_of, predicted, BINS)
        sums[2] += np.bincount(bin_of, kept, BINS)
        chance = np.clip(np.where(kept, predicted, 1.0 - predicted), 1e-9, 1.0)
        self._log_loss[name] -= float(np.log(chance).sum())

    def record(self) -> dict[str, Any]:
        """By kind of slot: counts, sums of predictions and of drafts that held, by bin; and the summed log-loss."""
        return {
            name: {"count": s[0].tolist(), "predicted": s[1].tolist(), "kept": s[2].tolist(),
                   "log_loss": self._log_loss[name]}
            for name, s in self._sums.items()
        }  # fmt: skip


class Strips:
    """The depths, step by step, of some whole sequences: the first to end of each category in turn."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        categories = sorted(set(trace.category.tolist()))
        self._each = max(1, -(-STRIPS // len(categories)))
        self._found: list[dict[str, Any]] = []
        self._by_category = dict.fromkeys(categories, 0)

    def add(self, report: StepReport) -> None:
        """Look at those that ended."""
        if len(self._found) >= STRIPS:
            return
        for sequence in report.finished:
            text: ReplayedText = sequence.request
            category = str(self._trace.category[text.number])
            if text.offset or not sequence.depths or self._by_category[category] >= self._each:
                continue
            if len(self._found) < STRIPS:
                self._by_category[category] += 1
                depths = [int(depth) for depth in sequence.depths[:STRIP_STEPS]]
                self._found.append({"text": int(self._trace.text[text.number]), "category": category, "depths": depths})

    def record(self) -> list[dict[str, Any]]:
        """One mapping for each."""
        return self._found
