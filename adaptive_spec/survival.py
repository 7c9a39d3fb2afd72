"""Survival: the chance that each next draft of each sequence, and all before it, will be accepted."""

from __future__ import annotations

import numpy as np

from adaptive_spec import loops
from adaptive_spec.population import PopulationLevel
from adaptive_spec.step import FloatArray, IntArray

SURVIVAL_FLOOR = 1e-9
UPPER_SD = 1.64  # the 95th percentile of the level


class Survival:
    """What the acceptance model makes of the sequences of one step: mean, posterior draws, optimism.

    Work is done when it is asked for, from the model's tables: ask before the model observes the step. Arrays
    have shape (B, K), lie in (0, 1] and never rise along k; inside, they are position-major.

    Parameters
    ----------
    population : PopulationLevel
        The levels beta[k, e].
    cell : int array, shape (B,)
        Evidence cell of each sequence.
    offset, sd : float array, shape (B,), or None
        Posterior mean and standard deviation of each sequence's u; None where there is no sequence effect.
    """

    __slots__ = ("_cell", "_mean", "_offset", "_population", "_sd")

    def __init__(
        self, population: PopulationLevel, cell: IntArray, offset: FloatArray | None, sd: FloatArray | None
    ) -> None:
        self._population = population
        self._cell = cell
        self._offset = offset
        self._sd = sd
        self._mean: FloatArray | None = None

    def mean(self) -> FloatArray:
        """Mean of the product over u's posterior, by three Gauss-Hermite nodes; computed once."""
        if self._mean is None:
            self._mean = self._integrate(self._population.odds_against)
        return self._mean

    def upper(self) -> FloatArray:
        """The mean if every level lay 1.64 posterior standard deviations higher than it is believed to."""
        raised = self._population.odds_against * np.exp(-UPPER_SD * self._population.sd())
        return self._integrate(raised)

    def sample(self, rng: np.random.Generator) -> FloatArray:
        """One draw from the posterior: one beta for each (position, cell), one u for each sequence."""
        population = self._population
        noise = rng.standard_normal(population.beta.shape)
        noise *= population.sd()
        odds_against = (population.odds_against * np.exp(-noise)).take(self._cell, axis=1)
        if self._offset is not None and self._sd is not None:
            odds_against *= np.exp(-(self._offset + self._sd * rng.standard_normal(len(self._cell))))
        odds_against += 1.0
        np.reciprocal(odds_against, out=odds_against)
        survival: FloatArray = np.multiply.accumulate(odds_against, axis=0, out=odds_against)
        np.maximum(survival, SURVIVAL_FLOOR, out=survival)
        return survival.T

    def beta_sd(self) -> FloatArray:
        """Posterior standard deviation of the level behind each draft, in logits."""
        return self._population.sd().take(self._cell, axis=1).T

    def idle_steps(self) -> IntArray:
        """Steps since the level behind each draft was last observed."""
        return self._population.idle_steps().take(self._cell, axis=1).T

    def _integrate(self, odds_against: FloatArray) -> FloatArray:
        """Survival where the levels have these exp(-beta), shape (K, C)."""
        offset, sd = self._offset, self._sd
        if offset is None or sd is None:
            offset = sd = np.zeros(len(self._cell))
        return loops.mean_survival(odds_against, self._cell, offset, sd).T
