"""RunMetrics: what a simulated run came to, collected step by step in memory that doesn't grow with the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptive_spec.cost import DraftCost
from adaptive_spec.replay.log_histogram import LogHistogram
from adaptive_spec.replay.runner import ReplayedText
from adaptive_spec.serving.loop import StepReport
from adaptive_spec.serving.sequence import Sequence
from adaptive_spec.step import LITTLE_PREFILL

QUANTILES = (0.5, 0.95, 0.99)
BUCKETS_PER_DOUBLING = 2  # of load


@dataclass(frozen=True)
class ServiceLevel:
    """What a request is promised.

    Attributes
    ----------
    ttft_seconds, tpot_seconds : float
        Most seconds to the first token, and most seconds a token after it.
    """

    ttft_seconds: float = math.inf
    tpot_seconds: float = math.inf


@dataclass(slots=True)
class LoadBucket:
    """What happened while a certain number of sequences decoded.

    Attributes
    ----------
    first, last : int
        Numbers of sequences that fall into it.
    steps, tokens, seconds : int, int, float
        Steps at this load, what they yielded and took.
    pure_steps, pure_tokens, pure_seconds : int, int, float
        The same of the steps that carried next to no prompt: at most 0.1 positions for each decoding sequence.
    """

    first: int
    last: int
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    pure_steps: int = 0
    pure_tokens: int = 0
    pure_seconds: float = 0.0
    verified: int = 0
    sequence_steps: int = 0


def load_bucket(sequences: int) -> tuple[int, int, int]:
    """Number of the bucket of a load, and the first and last load in it (two buckets to a doubling)."""
    bucket = math.floor(BUCKETS_PER_DOUBLING * math.log2(sequences) + 1e-9)
    first = math.ceil(2 ** (bucket / BUCKETS_PER_DOUBLING) - 1e-9)
    last = math.ceil(2 ** ((bucket + 1) / BUCKETS_PER_DOUBLING) - 1e-9) - 1
    return bucket, first, max(first, last)


@dataclass(slots=True)
class RunMetrics:
    """What a run came to; its warm-up is not in it.

    Attributes
    ----------
    draft_cost : DraftCost
        What drafting costs on the machine, for what off-steps save.
    parameters : float, optional
        That each position is multiplied with.
    service_level : ServiceLevel
    steps, decode_steps, off_steps : int
        Steps; those that decoded; those of the latter that asked for no drafts.
    tokens, decode_tokens : int
        Output tokens; those that decoding yielded (the others ended prefills).
    seconds, busy_seconds : float
        All that passed, and what steps took: in an open system the difference was idle.
    sequence_steps : int
        Decoding sequences, summed over steps.
    user_seconds : float
        Seconds of each step times its decoding sequences, summed.
    drafted, verified, accepted : int
        Drafts made, judged, and kept within the text: those beyond its end are wasted.
    positions, prefill_tokens : int
        That passes carried, and those of them that were prompts.
    preemptions, finished : int
        Times that a sequence lost its KV blocks; requests that ended.
    kept_promises, promises : int
        Requests within the service level, and those that could be judged: finished ones, and at the end of the run
        those that are past their deadline already.
    off_saving_seconds : float
        What the off-steps saved by not drafting, at the least: Dr(1) - Dr(0) each. See :mod:`.gain_split`.
    ttft, tpot : LogHistogram
        Seconds from arrival to the first token, of requests that began at their beginning (of those that wait for it
        past their deadline at the end of the run, what they have waited); seconds for each token after the first that
        a request gained here.
    by_load : dict
        :class:`LoadBucket` by its number.
    """

    draft_cost: DraftCost = field(default_factory=DraftCost.free)
    parameters: float | None = None
    service_level: ServiceLevel = field(default_factory=ServiceLevel)
    steps: int = 0
    decode_steps: int = 0
    off_steps: int = 0
    tokens: int = 0
    decode_tokens: int = 0
    seconds: float = 0.0
    busy_seconds: float = 0.0
    sequence_steps: int = 0
    user_seconds: float = 0.0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    positions: int = 0
    prefill_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    kept_promises: int = 0
    promises: int = 0
    off_saving_seconds: float = 0.0
    ttft: LogHistogram = field(default_factory=LogHistogram)
    tpot: LogHistogram = field(default_factory=LogHistogram)
    by_load: dict[int, LoadBucket] = field(default_factory=dict)

    def observe(self, report: StepReport, now: float) -> None:
        """Count one step that ended at `now`."""
        time = report.time
        self.steps += 1
        self.busy_seconds += time.step_seconds
        self.positions += time.positions
        self.prefill_tokens += report.prefill_tokens
        self.preemptions += len(report.preempted)
        sequences = len(report.sequences)
        tokens = report.num_tokens
        self.tokens += tokens
        if sequences:
            self._observe_decoding(report, sequences, tokens)
        for sequence in report.started:
            self._observe_first_token(sequence, now)
        for sequence in report.finished:
            self._observe_end(sequence, now)

    def _observe_decoding(self, report: StepReport, sequences: int, tokens: int) -> None:
        seconds = report.time.step_seconds
        self.decode_steps += 1
        self.decode_tokens += tokens - len(report.started)
        self.sequence_steps += sequences
        self.user_seconds += sequences * seconds
        verified = int(report.verified.sum())
        self.drafted += int(report.drafted.sum())
        self.verified += verified
        self.accepted += int(report.kept.sum())
        if report.time.draft_depth == 0:
            self.off_steps += 1
            idle, one = self.draft_cost.seconds(np.array([0, 1]), sequences).tolist()
            self.off_saving_seconds += max(0.0, one - idle)
        number, first, last = load_bucket(sequences)
        bucket = self.by_load.get(number)
        if bucket is None:
            bucket = self.by_load[number] = LoadBucket(first, last)
        bucket.steps += 1
        bucket.tokens += tokens
        bucket.seconds += seconds
        if report.prefill_tokens <= LITTLE_PREFILL * sequences:
            bucket.pure_steps += 1
            bucket.pure_tokens += tokens
            bucket.pure_seconds += seconds
        bucket.verified += verified
        bucket.sequence_steps += sequences

    def _observe_first_token(self, sequence: Sequence, now: float) -> None:
        text: ReplayedText = sequence.request
        if text.first_tokens == 0:  # and not a return after a preemption
            note_first_token(sequence, now)
            if text.offset == 0:
                self.ttft.add(now - text.arrival_seconds)

    def _observe_end(self, sequence: Sequence, now: float) -> None:
        text: ReplayedText = sequence.request
        self.finished += 1
        gained = sequence.num_output_tokens - text.first_tokens
        if gained > 0:
            self.tpot.add((now - text.first_seconds) / gained)
        if text.offset == 0:
            wanted = self.service_level
            late = text.first_seconds - text.arrival_seconds > wanted.ttft_seconds
            slow = gained > 0 and now - text.first_seconds > gained * wanted.tpot_seconds
            self.promises += 1
            self.kept_promises += not (late or slow)

    def observe_unfinished(self, sequences: Iterable[Sequence], now: float) -> None:
        """Count, at the end of a run, the requests whose promise is broken before they have finished.

        Parameters
        ----------
        sequences : iterable of Sequence
            All that run or wait.
        now : float
            Requests that could still be served as promised are not judged.
        """
        wanted = self.service_level
        for sequence in sequences:
            text: ReplayedText = sequence.request
            if text.offset:
                continue
            waits = text.first_tokens == 0
            late = (now if waits else text.first_seconds) - text.arrival_seconds > wanted.ttft_seconds
            allowed = (sequence.max_tokens - text.first_tokens) * wanted.tpot_seconds if not waits else math.inf
            slow = not waits and now - text.first_seconds > allowed
            self.promises += late or slow
            if waits and late:
                self.ttft.add(now - text.arrival_seconds)

    # ---------------------------------------------------------------- what they come to

    @property
    def goodput(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds if self.seconds else math.nan

    @property
    def paid_goodput(self) -> float:
        """Goodput if off-steps had paid for drafting one token deep."""
        return self.tokens / (self.seconds + self.off_saving_seconds) if self.seconds else math.nan

    @property
    def tokens_per_second_per_user(self) -> float:
        """Tokens per second that a decoding sequence gains: interactivity."""
        return self.decode_tokens / self.user_seconds if self.user_seconds else math.nan

    @property
    def acceptance_length(self) -> float:
        """Accepted drafts and the bonus token, per sequence and step."""
        return 1 + self.accepted / self.sequence_steps if self.sequence_steps else math.nan

    @property
    def wasted(self) -> int:
        """Drafts that were verified and brought no token."""
        return self.verified - self.accepted

    @property
    def extra_flops(self) -> float:
        """FLOPs of the positions that brought no token, 2 for each parameter; NaN where these aren't known."""
        return self.wasted * 2.0 * self.parameters if self.parameters else math.nan

    @property
    def off_share(self) -> float:
        """Share of the decoding steps in which the drafter was off."""
        return self.off_steps / self.decode_steps if self.decode_steps else math.nan

    @property
    def attainment(self) -> float:
        """Share of the requests that could be judged that were served as promised; NaN if there are none."""
        return self.kept_promises / self.promises if self.promises else math.nan

    def summary(self) -> dict[str, Any]:
        """All of it as plain numbers, by name; seconds in seconds."""
        row: dict[str, Any] = {
            "goodput": self.goodput,
            "tokens_per_second_per_user": self.tokens_per_second_per_user,
            "acceptance_length": self.acceptance_length,
            "mean_depth": self.verified / self.sequence_steps if self.sequence_steps else math.nan,
            "mean_sequences": self.sequence_steps / self.decode_steps if self.decode_steps else math.nan,
        }
        for name, histogram in (("ttft", self.ttft), ("tpot", self.tpot)):
            for share, value in zip(QUANTILES, histogram.quantiles(QUANTILES), strict=True):
                row[f"{name}_p{round(100 * share)}"] = float(value)
        for name in (
            "steps", "decode_steps", "off_share", "tokens", "seconds", "busy_seconds", "drafted", "verified",
            "accepted", "wasted", "extra_flops", "positions", "prefill_tokens", "preemptions", "finished", "attainment",
            "paid_goodput",
        ):  # fmt: skip
            row[name] = getattr(self, name)
        return row


def note_first_token(sequence: Sequence, now: float) -> None:
    """Keep in a sequence's text when its first token here came; a step before the count begins needs it too."""
    text: ReplayedText = sequence.request
    if text.first_tokens == 0:
        text.first_seconds, text.first_tokens = now, sequence.num_output_tokens
