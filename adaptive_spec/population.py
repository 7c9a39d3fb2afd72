"""PopulationLevel: how readily drafts of each position and evidence cell are accepted, over all sequences."""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec.step import FloatArray, IntArray

LOGIT_LIMIT = 6.0  # acceptance outside 0.25 .. 99.75 % changes no decision, and could never be learned back
SWEEP_STEPS = 16
# Share of the prior's weight by which a cell leans on its anchor. Less predicts a trifle better on recorded steps,
# but lets one bad first step of many sequences drown the optimism of every cell that it touched.
ANCHOR_SHARE = 0.5


class PopulationLevel:
    """The logit level beta[k, e] of every position k and cell e, learned by discounted Newton steps.

    Each level carries the curvature (Fisher information) of the data behind it. A level with none rests on
    an anchor, and leans on it with half the weight of the prior: the pooled level of its position over the other
    cells of the first feature's bin, which leans on the pooled level of its position, which leans on the
    optimistic prior. So a fresh cell starts from what coarser ones know.

    Old data is discounted by half in `half_life_steps`. What rests on a level that has gone unobserved for n
    steps is discounted by another ``2 ** -(n / half_life_steps)**2``, its anchor's distance from the prior
    too: next to nothing for a level that is merely rare, but after some half-lives without a draft every
    level is back at the prior, however much was known.

    Discounts and anchors touch every cell, so they run in sweeps, each step at first, and every
    sixteenth once the model has settled; between sweeps a step touches only the cells that it saw.

    Parameters
    ----------
    max_depth : int
        Positions, K.
    cells : int
        Evidence cells, C.
    coarse : int
        Bins of the first feature; divides `cells`.
    prior : float
        Acceptance before any data, in (0, 1).
    prior_weight : float
        Observations that the prior weighs.
    half_life_steps : float
        See above.
    correlation : float
        Correlation of the observations of a cell in one step: n of them weigh n / (1 + (n-1) correlation).

    Attributes
    ----------
    beta : float array, shape (K, C)
        The levels.
    odds_against : float array, shape (K, C)
        exp(-beta), kept beside it so that an estimate needs no exponentials of (sequence, position).
    curvature : float array, shape (K, C)
        Fisher information of the data behind each level.
    seen : int array, shape (K, C)
        Step in which each level was last observed.
    """

    def __init__(
        self,
        max_depth: int,
        cells: int,
        coarse: int,
        *,
        prior: float,
        prior_weight: float,
        half_life_steps: float,
        correlation: float,
    ) -> None:
        self.shape = (max_depth, cells)
        self.coarse = coarse
        self.correlation = correlation
        self.half_life_steps = half_life_steps
        self.prior_beta = math.log(prior / (1.0 - prior))
        self.prior_curvature = prior_weight * prior * (1.0 - prior)
        # Coarser levels can say more of a cell than the prior could of anything, but cells do differ.
        self.anchor_curvature = self.prior_curvature * (ANCHOR_SHARE if cells > 1 else 1.0)
        self.step = 0
        self.swept = 0
        self.beta = np.full(self.shape, self.prior_beta)
        self.odds_against = np.exp(-self.beta)
        self.curvature = np.zeros(self.shape)
        self.seen = np.zeros(self.shape, dtype=np.int64)
        self._anchor = np.full(self.shape, self.prior_beta)

    def sd(self) -> FloatArray:
        """Posterior standard deviation of each level, shape (K, C), the anchor's weight counted."""
        sd: FloatArray = 1.0 / np.sqrt(self.curvature + self.anchor_curvature)
        return sd

    def idle_steps(self) -> IntArray:
        """Steps since each level was last observed, shape (K, C)."""
        return self.step - self.seen

    def observe_sums(self, steps: int, count: IntArray, gradient: FloatArray, information: FloatArray) -> None:
        """Take one Newton step for several steps that were summed at the same levels, and age all levels by them.

        Parameters
        ----------
        steps : int
            Steps that have passed, those without drafts among them.
        count : int array, shape (S, K, C)
            Drafts judged in each of S steps, at each position and cell.
        gradient, information : float array, shape (S, K, C)
            Sums of their residuals and curvatures.
        """
        self.step += steps
        weight = 1.0 / (1.0 + (np.maximum(count, 1) - 1) * self.correlation)
        seen = count.sum(axis=0).ravel().nonzero()[0]
        if len(seen):
            self._newton(
                seen, *((part * weight).sum(axis=0).ravel().take(seen) for part in (count, gradient, information))
            )
        self.sweep_if_due()

    def sweep_if_due(self) -> None:
        """Sweep at every step at first, and at every sixteenth once the model has settled."""
        if self.step - self.swept >= min(SWEEP_STEPS, 1 + self.step // 8):
            self.sweep()

    def _newton(self, seen: IntArray, n: FloatArray, gradient: FloatArray, information: FloatArray) -> None:
        """Move the levels `seen` by their gradients: sums over n observations, as n weighs."""
        # Views, since all tables are C-contiguous.
        beta_table, odds_table = self.beta.ravel(), self.odds_against.ravel()
        curvature_table = self.curvature.ravel()
        curvature = curvature_table.take(seen)
        # Far from its goal a Newton step with the curvature of the start overshoots, most of all down from an
        # optimistic prior. The curvature half-way between what was expected and what was seen brakes it.
        halfway = 1.0 / (1.0 + odds_table.take(seen))
        halfway += gradient / n * 0.5
        braking = np.maximum(information, n * (halfway - halfway * halfway))
        braking += curvature
        braking += self.anchor_curvature
        beta = beta_table.take(seen) + gradient / braking
        np.minimum(beta, LOGIT_LIMIT, out=beta)
        np.maximum(beta, -LOGIT_LIMIT, out=beta)
        beta_table[seen] = beta
        odds_table[seen] = np.exp(-beta)
        curvature_table[seen] = curvature + information
        self.seen.ravel()[seen] = self.step

    def sweep(self) -> None:
        """Discount old data, that of long unobserved levels faster, and re-anchor every level on coarser ones."""
        depth, cells = self.shape
        prior, lean = self.prior_curvature, self.anchor_curvature
        # In natural parameters (curvature times level) data adds up, and the anchor's share comes off.
        data = (self.curvature + lean) * self.beta - lean * self._anchor
        passed = self.step - self.swept
        idle = (self.step - self.seen) / self.half_life_steps
        before = np.maximum(idle - passed / self.half_life_steps, 0.0)
        keep = np.exp2(before * before - idle * idle - passed / self.half_life_steps)
        data *= keep
        self.curvature *= keep
        fade = np.exp2(-idle * idle)
        if cells > 1:
            fine = (depth, self.coarse, cells // self.coarse)
            coarse_data = data.reshape(fine).sum(axis=2)
            coarse_curvature = self.curvature.reshape(fine).sum(axis=2)
            anchor = coarse_data.sum(axis=1, keepdims=True) + prior * self.prior_beta
            anchor /= coarse_curvature.sum(axis=1, keepdims=True) + prior
            if 1 < self.coarse < cells:
                anchor = (coarse_data + prior * anchor) / (coarse_curvature + prior)
                anchor = anchor.repeat(cells // self.coarse, axis=1)
            self._anchor = self.prior_beta + fade * (anchor - self.prior_beta)
        data += lean * self._anchor
        data /= self.curvature + lean
        self.beta = np.clip(data, -LOGIT_LIMIT, LOGIT_LIMIT, out=data)
        self.odds_against = np.exp(-self.beta)
        self.swept = self.step

    def forget(self) -> None:
        """Put every level back at the prior."""
        self.beta = np.full(self.shape, self.prior_beta)
        self.odds_against = np.exp(-self.beta)
        self.curvature = np.zeros(self.shape)
        self._anchor = np.full(self.shape, self.prior_beta)
        self.seen = np.full(self.shape, self.step, dtype=np.int64)
        self.swept = self.step

    def state(self) -> dict[str, object]:
        """All that was learned."""
        return {
            "step": self.step,
            "swept": self.swept,
            "beta": self.beta.copy(),
            "curvature": self.curvature.copy(),
            "seen": self.seen.copy(),
            "anchor": self._anchor.copy(),
        }

    def restore(self, state: dict[str, object]) -> None:
        """Take over what :meth:`state` returned; ValueError when its shape is another's."""
        tables = {name: np.array(state[name]) for name in ("beta", "curvature", "seen", "anchor")}
        for name, table in tables.items():
            if table.shape != self.shape:
                raise ValueError(f"saved {name} has shape {table.shape}; this model needs {self.shape}")
        self.step, self.swept = int(state["step"]), int(state["swept"])  # type: ignore[call-overload]
        self.beta = tables["beta"].astype(np.float64)
        self.odds_against = np.exp(-self.beta)
        self.curvature = tables["curvature"].astype(np.float64)
        self.seen = tables["seen"].astype(np.int64)
        self._anchor = tables["anchor"].astype(np.float64)
