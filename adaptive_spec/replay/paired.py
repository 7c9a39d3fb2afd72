"""Paired comparison of runs over the same texts and seeds, with bootstrap intervals by text.

What is paired. All policies of a setting (a trace, arrivals, a machine) are run with the same seeds: a seed fixes the
order in which texts arrive, where the first ones start, and the luck of every step. In a closed queue texts recur, and
a text that is served twice in a run says little more of *other* texts than one that is served once. So visits are no
unit; the text is, and all visits to it, under all seeds, stay together.

Each run gives, for every text, its tokens n and its share t of the steps' seconds (:class:`.cell_record.TextShares`);
goodput is sum n / sum t, exactly. One bootstrap draw takes as many texts as there are, with replacement, and as many
seeds, and weighs each (text, seed) by the product of both counts: the pigeonhole bootstrap for two crossed factors
(Owen, "The pigeonhole bootstrap", Annals of Applied Statistics, 2007), which errs towards wide intervals. Seeds must
be drawn too: a policy that locks itself in under one seed of five does so on all texts at once, and no resampling of
texts would show it. The same draws serve every policy of a setting, so that what an easy text brings to both sides
cancels in their ratio. Intervals are percentiles of the ratio over the draws.

Two limits. Texts in one batch share their steps, and so influence each other: what a text with deep drafts costs its
neighbours is resampled with the neighbours. And "the best fixed depth in hindsight" was chosen on the very runs that
it is compared on, which favours it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from adaptive_spec.step import FloatArray


@dataclass(frozen=True)
class Interval:
    """An estimate, and where its value lies with the chosen level of confidence."""

    value: float
    low: float
    high: float

    @property
    def over(self) -> bool:
        """Whether all of it lies over 1."""
        return self.low > 1.0

    @property
    def under(self) -> bool:
        """Whether all of it lies below 1."""
        return self.high < 1.0


@dataclass(frozen=True, eq=False)
class Sums:
    """What runs of one policy came to by text and seed; each of shape (texts, seeds)."""

    amount: FloatArray
    seconds: FloatArray

    @property
    def rate(self) -> float:
        """All amounts over all seconds."""
        seconds = float(self.seconds.sum())
        return float(self.amount.sum()) / seconds if seconds else float("nan")


class PairedBootstrap:
    """The draws that all policies of one setting share.

    Parameters
    ----------
    texts, seeds : int
        How many there are.
    draws : int
    level : float
        Of confidence.
    seed : int
        Of the draws.
    """

    def __init__(self, texts: int, seeds: int, draws: int = 2000, level: float = 0.95, seed: int = 0) -> None:
        if texts < 1 or seeds < 1:
            raise ValueError(f"there are {texts} texts and {seeds} seeds; a bootstrap needs one of each at least")
        rng = np.random.default_rng([seed, 21])
        self._texts = rng.multinomial(texts, np.full(texts, 1 / texts), size=draws).astype(np.float64)
        self._seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws).astype(np.float64)
        self._quantiles = (0.5 - level / 2, 0.5 + level / 2)

    def rates(self, sums: Sums) -> FloatArray:
        """The rate in every draw, shape (draws,); NaN where a draw holds nothing of these runs."""
        amount = ((self._texts @ sums.amount) * self._seeds).sum(axis=1)
        seconds = ((self._texts @ sums.seconds) * self._seeds).sum(axis=1)
        rates: FloatArray = np.full(len(seconds), np.nan)
        np.divide(amount, seconds, out=rates, where=seconds > 0)
        return rates

    def rate(self, sums: Sums) -> Interval:
        """A rate alone: its interval holds the differences between texts, which a ratio doesn't."""
        return self._interval(sums.rate, self.rates(sums))

    def ratio(self, sums: Sums, to: Sums) -> Interval:
        """The ratio of two policies' rates, paired by text and seed."""
        base = to.rate
        return self._interval(sums.rate / base if base else float("nan"), self.rates(sums) / self.rates(to))

    def _interval(self, value: float, draws: FloatArray) -> Interval:
        known = draws[np.isfinite(draws)]
        if not len(known):
            return Interval(value, float("nan"), float("nan"))
        low, high = np.quantile(known, self._quantiles)
        return Interval(value, float(low), float(high))


def text_sums(runs: Mapping[int, Mapping[str, list[float]]], amount: str, seconds: str) -> Sums:
    """Sums of the runs of one policy, by seed, as :class:`.cell_record.TextShares` recorded them."""
    ordered = [runs[seed] for seed in sorted(runs)]
    return Sums(
        np.array([run[amount] for run in ordered], dtype=np.float64).T,
        np.array([run[seconds] for run in ordered], dtype=np.float64).T,
    )
