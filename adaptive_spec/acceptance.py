"""AcceptanceModel: what a sequence's next drafts are worth, learned online from censored evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from adaptive_spec import loops
from adaptive_spec.evidence import EVIDENCE, EvidenceFeature, EvidenceGrid
from adaptive_spec.population import PopulationLevel
from adaptive_spec.sequence_effect import SequenceEffect
from adaptive_spec.step import BoolArray, FloatArray, IntArray
from adaptive_spec.survival import Survival

__all__ = ["EVIDENCE", "AcceptanceModel", "EvidenceFeature", "Survival"]

MANY = 64
# The tables of a sequence effect where there is none.
NO_EFFECT: tuple[FloatArray, FloatArray, FloatArray, float, float] = (
    np.zeros(0),
    np.zeros(0),
    np.zeros((2, 0)),
    1.0,
    1.0,
)


class AcceptanceModel:
    """Population and sequence, learned online: ``logit acceptance[i, k] = beta[k, e] + u[i]``.

    A step with v drafts verified and a accepted shows a successes and, if a < v, one failure; of what lies
    beyond it says nothing. `beta` is the population's level for position k and evidence cell e
    (:class:`PopulationLevel`), u one number per sequence (:class:`SequenceEffect`) that shares evidence over
    positions. Levels are moved by the residuals that are left when u is accounted for, averaged over its
    posterior, which has seen the whole step: the gradient of the marginal likelihood (Fisher's identity).
    Plain counts would count twice that who survives to position k is a sequence of high u. The model is a
    logistic regression with a random intercept, fitted recursively.

    Parameters
    ----------
    max_depth : int
        Positions, K.
    evidence : sequence of EvidenceFeature or str
        One per evidence column, the most telling first; names of :data:`EVIDENCE` or features of one's own.
    prior : float
        Acceptance of a draft before any data, in (0, 1): optimistic, since who stops drafting stops learning.
    prior_weight : float
        Observations that the prior weighs.
    half_life_steps : float
        Steps in which old data loses half its weight, and an unobserved level half its distance from the prior.
    correlation : float
        Of the observations of one cell in one step: n of them weigh n / (1 + (n-1) correlation).
    forgetting : float
        Share of its precision that a sequence's u keeps from step to step.
    sequence_effect : bool
        Whether there is a u.
    capacity : int
        Rows to make room for at first; grows by doubling.

    Raises
    ------
    ValueError
        If a parameter lies outside its range, or a feature is unknown.
    """

    def __init__(
        self,
        max_depth: int,
        evidence: Sequence[EvidenceFeature | str] = (),
        *,
        prior: float = 0.85,
        prior_weight: float = 20.0,
        half_life_steps: float = 2000.0,
        correlation: float = 0.05,
        forgetting: float = 0.95,
        sequence_effect: bool = True,
        capacity: int = 64,
    ) -> None:
        for name, value, valid, wanted in (
            ("max_depth", max_depth, max_depth >= 1, "at least 1"),
            ("prior", prior, 0.0 < prior < 1.0, "between 0 and 1"),
            ("prior_weight", prior_weight, prior_weight > 0.0, "positive"),
            ("half_life_steps", half_life_steps, half_life_steps > 0.0, "positive"),
            ("correlation", correlation, 0.0 <= correlation <= 1.0, "between 0 and 1"),
            ("forgetting", forgetting, 0.0 < forgetting <= 1.0, "over 0 and at most 1"),
            ("capacity", capacity, capacity >= 1, "at least 1"),
        ):
            if not valid:
                raise ValueError(f"{name} must be {wanted}, not {value}")
        self.max_depth = max_depth
        self.grid = EvidenceGrid(evidence)
        features = self.grid.features
        self.population = PopulationLevel(
            max_depth,
            self.grid.size,
            features[0].bins if features else 1,
            prior=prior,
            prior_weight=prior_weight,
            half_life_steps=half_life_steps,
            correlation=correlation,
        )
        self.effect = SequenceEffect(capacity, forgetting, half_life_steps) if sequence_effect else None
        self._live: BoolArray = np.zeros(capacity, dtype=np.bool_)
        loops.load()

    @property
    def evidence(self) -> tuple[EvidenceFeature, ...]:
        """The features behind the columns of the evidence, in order."""
        return self.grid.features

    @property
    def sigma2(self) -> float:
        """Learned variance of u over sequences; 0 without sequence effect."""
        return 0.0 if self.effect is None else self.effect.sigma2

    def add(self, row: int) -> None:
        """A fresh sequence takes this row; ValueError if the row is taken."""
        if row < 0:
            raise ValueError(f"row must be at least 0, not {row}")
        capacity = len(self._live)
        if row >= capacity:
            while capacity <= row:
                capacity *= 2
            self._live = np.concatenate((self._live, np.zeros(capacity - len(self._live), dtype=np.bool_)))
            if self.effect is not None:
                self.effect.grow(capacity)
        if self._live[row]:
            raise ValueError(f"row {row} is taken: remove its sequence first")
        self._live[row] = True
        if self.effect is not None:
            self.effect.start(row)

    def remove(self, row: int) -> None:
        """The sequence of this row is gone; KeyError if there is none."""
        if not 0 <= row < len(self._live) or not self._live[row]:
            raise KeyError(f"row {row} has no sequence")
        self._live[row] = False

    def cells(self, evidence: FloatArray) -> IntArray:
        """Return the evidence cell of each sequence, shape (B,), from `evidence`, shape (B, F)."""
        return self.grid.cells(evidence)

    def estimate(self, row: IntArray, cell: IntArray) -> Survival:
        """Say what the next drafts of the sequences in these rows are worth, with evidence in these cells.

        Parameters
        ----------
        row, cell : int array, shape (B,)
            Live rows, and what :meth:`cells` made of their evidence.

        Returns
        -------
        Survival
            Good until the next :meth:`observe`.
        """
        if self.effect is None:
            return Survival(self.population, cell, None, None)
        return Survival(self.population, cell, *self.effect.posterior(row))

    def observe(self, row: IntArray, cell: IntArray, verified: IntArray, accepted: IntArray) -> None:
        """Learn from a step, and age everything by one step.

        Parameters
        ----------
        row, cell : int array, shape (B,)
            Live rows and their cells at the decision; B may be 0.
        verified, accepted : int array, shape (B,)
            Drafts judged and drafts kept, ``0 <= accepted <= verified <= max_depth``.
        """
        population, effect = self.population, self.effect
        variance = len(row) < MANY or population.step % 4 == 0  # many sequences show sigma^2 soon enough
        population.step += 1
        if len(row):
            offset, precision, past, sigma2, forgetting = NO_EFFECT if effect is None else effect.tables()
            judged, products, squares = loops.learn_step(
                population.odds_against,
                population.beta,
                population.curvature,
                population.seen,
                population.step,
                population.anchor_curvature,
                population.correlation,
                loops.whole(row),
                loops.whole(cell),
                loops.whole(verified),
                loops.whole(accepted),
                offset,
                precision,
                past,
                sigma2,
                forgetting,
                variance,
            )
            if effect is not None and variance and judged:
                effect.learn_variance_from(products, squares)
        population.sweep_if_due()

    def forget(self) -> None:
        """Put the population's levels back at the prior: what they were learned from is no more."""
        self.population.forget()

    def state(self) -> dict[str, object]:
        """All that was learned of the population, as numbers, lists and arrays; live sequences are no part of it."""
        return {
            "max_depth": self.max_depth,
            "evidence": self.grid.describe(),
            "population": self.population.state(),
            "effect": None if self.effect is None else self.effect.state(),
        }

    def restore(self, state: dict[str, object]) -> None:
        """Take over what :meth:`state` returned.

        Raises
        ------
        ValueError
            If it was learned for another depth or other evidence.
        """
        if state["max_depth"] != self.max_depth:
            raise ValueError(
                f"the saved acceptance is for max_depth {state['max_depth']}, this model's is {self.max_depth}"
            )
        if state["evidence"] != self.grid.describe():
            raise ValueError(
                f"the saved acceptance is for evidence {state['evidence']}, this model's is {self.grid.describe()}"
            )
        self.population.restore(cast("dict[str, object]", state["population"]))
        effect = cast("dict[str, object] | None", state["effect"])
        # A model without sequence effect leaves a saved sigma^2 alone, and one with it starts from its own.
        if self.effect is not None and effect is not None:
            self.effect.restore(effect)

    def succeed(self, other: AcceptanceModel) -> None:
        """Go on where another model of the same depth and evidence stopped, its live sequences included.

        Raises
        ------
        ValueError
            If depth or evidence differ; nothing is changed then.
        """
        self.restore(other.state())
        self._live = other._live.copy()
        if self.effect is not None:
            self.effect.succeed(other.effect, len(self._live))
