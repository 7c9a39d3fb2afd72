"""Comparison: the runs of several policies over interleaved rounds, their medians, and their ratios with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any, Literal

import numpy as np

from adaptive_spec.cli.policy_run import PolicyRun

# Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
MIN_AUTO_ROUNDS, MAX_AUTO_ROUNDS = 3, 8
CLOSE_ENOUGH = 0.03


@dataclass(slots=True, frozen=True)
class Ratio:
    """A ratio of goodputs, paired by round, with its 95 % interval (NaN from one round alone)."""

    value: float
    low: float
    high: float

    @classmethod
    def paired(cls, over: Sequence[float], under: Sequence[float]) -> Ratio:
        """The geometric mean of the rounds' ratios; the interval is Student's on their logarithms."""
        logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
        middle = fmean(logs)
        if len(logs) < 2:
            return cls(math.exp(middle), math.nan, math.nan)
        half = student_t(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        return cls(math.exp(middle), math.exp(middle - half), math.exp(middle + half))

    @property
    def half_width(self) -> float:
        """Half of the interval, relative to the ratio (infinite from one round alone)."""
        return math.inf if math.isnan(self.low) else (self.high - self.low) / (2 * self.value)


def student_t(freedom: int) -> float:
    """Two-sided 95 % point of Student's t; beyond the table, Fisher's expansion about the normal one."""
    if freedom <= len(STUDENT_T):
        return STUDENT_T[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(slots=True)
class Comparison:
    """Policies compared at one concurrency on one set of prompts.

    Attributes
    ----------
    concurrency : int
    category : str
        ``all``, or the category of the prompts.
    depths : dict
        Each policy's fixed depth: 0 for none, None for policies that choose.
    runs : dict
        Each policy's runs, one a round.
    goodput : str
        The property of a run that decides.
    """

    concurrency: int
    category: str
    depths: dict[str, int | None]
    runs: dict[str, list[PolicyRun]] = field(default_factory=dict)
    goodput: Literal["decode_tokens_per_second", "full_tokens_per_second"] = "decode_tokens_per_second"

    @property
    def rounds(self) -> int:
        """Rounds in which every policy has run."""
        return min((len(self.runs.get(policy, ())) for policy in self.depths), default=0)

    @property
    def order(self) -> list[str]:
        """The policies in the order of the next round, which moves on by one from round to round."""
        policies = list(self.depths)
        start = self.rounds % len(policies)
        return policies[start:] + policies[:start]

    def add_round(self, results: Mapping[str, PolicyRun]) -> None:
        """Take in one run of every policy."""
        for policy in self.depths:
            self.runs.setdefault(policy, []).append(results[policy])

    @property
    def settled(self) -> bool:
        """Whether the interval of every ratio to the reference is within 3 %."""
        reference = self.reference
        return self.rounds >= MIN_AUTO_ROUNDS and all(
            self.ratio(policy, reference).half_width <= CLOSE_ENOUGH for policy in self.depths if policy != reference
        )

    @property
    def reference(self) -> str:
        """No speculation, or else the first policy."""
        return next((policy for policy, depth in self.depths.items() if depth == 0), next(iter(self.depths)))

    @property
    def best_fixed(self) -> str | None:
        """The baseline with one depth for all (none included) whose median decode goodput is highest."""
        fixed = [policy for policy, depth in self.depths.items() if depth is not None]
        return max(fixed, key=lambda policy: median(self.goodputs(policy)), default=None)

    def goodputs(self, policy: str) -> list[float]:
        """Tokens per second that decide, one a round."""
        return [getattr(run, self.goodput) for run in self.runs[policy]]

    def ratio(self, policy: str, other: str) -> Ratio:
        """Decode goodput of one policy over another's."""
        return Ratio.paired(self.goodputs(policy), self.goodputs(other))

    def summary(self, policy: str) -> dict[str, Any]:
        """Everything that is reported of one policy, as plain data; NaN is None."""
        runs = self.runs[policy]
        goodputs = self.goodputs(policy)
        tpot = np.array([seconds for run in runs for seconds in run.tpot_seconds])
        best = self.best_fixed
        verified = sum(run.verified for run in runs)
        accepted = sum(run.accepted for run in runs)
        steps = sum(run.sequence_steps for run in runs)
        to_reference = self.ratio(policy, self.reference)
        to_best = None if best is None else self.ratio(policy, best)
        return {
            "policy": policy,
            "concurrency": self.concurrency,
            "category": self.category,
            "rounds": len(runs),
            "decode_tokens_per_second": median(goodputs),
            "decode_tokens_per_second_min": min(goodputs),
            "decode_tokens_per_second_max": max(goodputs),
            "full_batch_tokens_per_second": median(run.full_tokens_per_second for run in runs),
            "end_to_end_tokens_per_second": median(run.tokens_per_second for run in runs),
            "tpot_p50_ms": 1e3 * float(np.percentile(tpot, 50)) if len(tpot) else None,
            "tpot_p95_ms": 1e3 * float(np.percentile(tpot, 95)) if len(tpot) else None,
            "acceptance": accepted / verified if verified else None,
            "acceptance_length": 1 + accepted / steps if steps else None,
            "drafted": sum(run.drafted for run in runs) / len(runs),
            "verified": verified / len(runs),
            "accepted": accepted / len(runs),
            "reference": self.reference,
            "ratio_to_reference": _plain(to_reference),
            "best_fixed": best,
            "ratio_to_best_fixed": None if to_best is None else _plain(to_best),
            "decode_tokens_per_second_by_round": goodputs,
            "drafted_by_round": [run.drafted for run in runs],
            "decided_by_by_round": [dict(run.decided_by) for run in runs],
        }


def _plain(ratio: Ratio) -> dict[str, float | None]:
    def known(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {"value": ratio.value, "low": known(ratio.low), "high": known(ratio.high)}


def geometric_means(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Each policy's median decode goodput, averaged geometrically over concurrencies."""
    return {
        policy: math.exp(fmean(math.log(median(comparison.goodputs(policy))) for comparison in comparisons))
        for policy in comparisons[0].depths
    }
