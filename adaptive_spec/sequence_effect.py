"""SequenceEffect: how far the acceptance of each live sequence lies above or below the population's, in logits."""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec import loops
from adaptive_spec.step import FloatArray, IntArray

NODE = math.sqrt(3.0)  # three Gauss-Hermite nodes: NODE, 0, -NODE standard deviations, weighing 1, 4 and 1 sixths
OFFSET_LIMIT = 4.0
# Of a draft's information, what is left for the population. Where u has learned a sequence's level, it takes up an
# error of the population's too: of an error that all levels share the residuals still show 1 / (precision sigma^2).
# Differences between levels show in full, hence not less than this.
SHARE_LEAST = 0.25
VARIANCE_LEAST = 1e-4
ESTIMATE_MOST = 1.5  # a sigma^2 of 3.65
VARIANCE_START = 0.5
VARIANCE_PRIOR_WEIGHT = 10.0  # in products of the Fisher information of two steps
VARIANCE_MEMORY = 0.5  # half-life of the variance's data, in half-lives of the population's


class SequenceEffect:
    """The offset u of every sequence: a normal posterior, its prior N(0, sigma^2) with sigma^2 learned.

    A step updates a posterior by one Laplace step, after it was relaxed towards the prior by `forgetting`, and
    corrects it once.
    sigma^2 is the moment estimate from residuals that leave the offsets out: those of one sequence in two
    different steps share nothing but u, so the mean of their products over the products of their
    information is sigma^2, and goes to zero where the evidence explains what the sequences differ in.
    (Generalised estimating equations estimate within-cluster correlation so: Liang and Zeger, Biometrika
    73, 1986.)

    Parameters
    ----------
    capacity : int
        Rows to make room for at first; the arrays grow by doubling.
    forgetting : float
        Share of its precision that a posterior keeps from step to step, in (0, 1].
    half_life_steps : float
        The population's; sigma^2 forgets twice as fast.

    Attributes
    ----------
    offset, precision : float array, shape (rows,)
        Posterior mean of u, and one over its variance.
    sigma2 : float
        Variance of u over sequences.
    """

    def __init__(self, capacity: int, forgetting: float, half_life_steps: float) -> None:
        self.forgetting = forgetting
        self.sigma2 = VARIANCE_START
        self.offset = np.zeros(capacity)
        self.precision = np.ones(capacity)
        # Of each sequence's past, discounted: its residuals (first row), and their information.
        self._past = np.zeros((2, capacity))
        self._products = 0.0
        self._squares = 0.0
        self._discount = 0.5 ** (1.0 / (VARIANCE_MEMORY * half_life_steps))

    def grow(self, capacity: int) -> None:
        """Make room for rows up to `capacity`."""
        extra = capacity - len(self.offset)
        self.offset = np.concatenate((self.offset, np.zeros(extra)))
        self.precision = np.concatenate((self.precision, np.ones(extra)))
        self._past = np.concatenate((self._past, np.zeros((2, extra))), axis=1)

    def tables(self) -> tuple[FloatArray, FloatArray, FloatArray, float, float]:
        """Offsets, precisions, pasts, sigma^2 and forgetting: what a step's learning works on, in place."""
        return self.offset, self.precision, self._past, self.sigma2, self.forgetting

    def start(self, row: int) -> None:
        """A fresh sequence takes this row."""
        self.offset[row] = 0.0
        self.precision[row] = 1.0 / self.sigma2
        self._past[:, row] = 0.0

    def posterior(self, row: IntArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the rows' u, each of shape (B,)."""
        # sigma^2 may have fallen since the row's last step; no posterior is wider than the prior.
        offset, sd = loops.posterior(loops.whole(row), self.offset, self.precision, self.sigma2)
        return offset, sd

    def relax(self, row: IntArray) -> tuple[FloatArray, FloatArray]:
        """Posterior mean and precision of the rows' u after a step's forgetting, each of shape (B,)."""
        kept = np.maximum(self.precision.take(row), 1.0 / self.sigma2)
        kept *= self.forgetting
        precision = kept + (1.0 - self.forgetting) / self.sigma2
        kept /= precision
        kept *= self.offset.take(row)
        return kept, precision

    def idle(self, row: IntArray) -> None:
        """A step in which nothing was judged: the rows' posteriors only relax."""
        self.offset[row], self.precision[row] = self.relax(row)

    def settle(
        self,
        row: IntArray,
        relaxed: tuple[FloatArray, FloatArray],
        offset: FloatArray,
        gradient: FloatArray,
        information: FloatArray,
    ) -> None:
        """Correct a Laplace step with the residuals averaged over the posterior that it led to, and keep it.

        One more Newton step, of the variational bound: a normal that is matched where its mass lies is three
        times closer to the exact posterior than one that is matched at the mode.

        Parameters
        ----------
        row : int array, shape (B,)
        relaxed : pair of float arrays, shape (B,)
            Mean and precision before the step, from :meth:`relax`.
        offset : float array, shape (B,)
            Where the Laplace step led.
        gradient, information : float array, shape (B,)
            Sums over the step's judged drafts of residual and curvature, both averaged over the posterior.
        """
        mean, precision = relaxed
        posterior = precision + information
        moved = offset - mean
        moved *= precision
        corrected = gradient - moved
        corrected /= posterior
        corrected += offset
        np.minimum(corrected, OFFSET_LIMIT, out=corrected)
        np.maximum(corrected, -OFFSET_LIMIT, out=corrected)
        self.offset[row] = corrected
        self.precision[row] = posterior

    def learn_variance(self, row: IntArray, residual: FloatArray, information: FloatArray) -> None:
        """Learn sigma^2 from a step's residuals if u is left out (shape (B,)), and their information."""
        n = len(row)
        if n > 1:
            # What all sequences have in common is the population's error, not theirs.
            total = float(np.add.reduce(information))
            if total > 0.0:
                common = float(np.add.reduce(residual)) / total * (1.0 - 1.0 / n)
                residual = residual - common * information
        past = self._past.take(row, axis=1)
        products, squares = float(residual.dot(past[0])), float(information.dot(past[1]))
        past[0] += residual
        past[1] += information
        past *= self.forgetting
        self._past[0, row] = past[0]
        self._past[1, row] = past[1]
        self.learn_variance_from(products, squares)

    def learn_variance_from(self, products: float, squares: float) -> None:
        """Learn sigma^2 from one step's sums of products of residuals, and of information, with the past's."""
        self._products = self._discount * self._products + products
        self._squares = self._discount * self._squares + squares
        estimate = (self._products + VARIANCE_PRIOR_WEIGHT * VARIANCE_START) / (self._squares + VARIANCE_PRIOR_WEIGHT)
        # The logistic curve flattens: an offset of variance s moves acceptance as one of s / (1 + pi s / 8)
        # would along its tangent (MacKay's approximation), so the estimate is stretched back.
        estimate = min(max(estimate, VARIANCE_LEAST), ESTIMATE_MOST)
        self.sigma2 = estimate / (1.0 - math.pi / 8.0 * estimate)

    def state(self) -> dict[str, object]:
        """What was learned about sequences in general; the live ones are not part of it."""
        return {"sigma2": self.sigma2, "products": self._products, "squares": self._squares}

    def restore(self, state: dict[str, object]) -> None:
        """Take over what :meth:`state` returned."""
        self.sigma2 = float(state["sigma2"])  # type: ignore[arg-type]
        self._products = float(state["products"])  # type: ignore[arg-type]
        self._squares = float(state["squares"])  # type: ignore[arg-type]

    def succeed(self, other: SequenceEffect | None, rows: int) -> None:
        """Take over the offsets of another model's live sequences; without one, all `rows` start at the prior."""
        if other is not None:
            self.offset, self.precision, self._past = other.offset.copy(), other.precision.copy(), other._past.copy()
        else:
            self.offset, self.precision = np.zeros(rows), np.full(rows, 1.0 / self.sigma2)
            self._past = np.zeros((2, rows))
