"""SyntheticAcceptance: generated acceptance traces, for drafters that can't run here; called synthetic everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_spec.replay.trace import MAX_DEPTH, Trace, TraceInfo
from adaptive_spec.step import FloatArray

# Survival by position of a 16-deep DSpark draft on GLM-5.2. Source: vLLM pull request 52992.
DSPARK_GLM_5_2 = (
    0.7123, 0.5170, 0.3904, 0.3051, 0.2437, 0.2000, 0.1685, 0.1441,
    0.1246, 0.1094, 0.0964, 0.0856, 0.0758, 0.0667, 0.0582, 0.0498,
)  # fmt: skip

# Mean acceptance of a general drafter on general questions, and on biology questions to a biology model. Source:
# Hong et al. 2025, table 1.
DOMAIN_SHIFT = (0.607, 0.375)

_NODES = 41


def constant_acceptance(acceptance: float, max_depth: int) -> tuple[float, ...]:
    """Survival of drafts each of which is accepted with the same chance, shape (K,)."""
    if not 0.0 <= acceptance <= 1.0:
        raise ValueError(f"acceptance is {acceptance}; it must lie in 0..1")
    return tuple(acceptance**k for k in range(1, max_depth + 1))


@dataclass(frozen=True)
class SyntheticAcceptance:
    """Runs of accepted drafts with a given survival, that differ between sequences and drift along each.

    At output position p of sequence i, draft k is accepted, all before it accepted, with chance
    sigmoid(b[k] + u[i] + w[i, p]): u normal with deviation `heterogeneity`, w a stationary AR(1) process with
    deviation `wander` and correlation `persistence` from one position to the next. The levels b are such that the
    survival over all sequences and positions is the one that was given, whatever the two deviations are.

    Attributes
    ----------
    survival : sequence of float, shape (K,)
        Chance that draft k and all before it are accepted; falling, in 0..1.
    source : str
        Where it comes from; it is told wherever figures of the trace are.
    heterogeneity, wander : float
        In logits, 0 or more.
    persistence : float
        In 0..1, 1 excluded.
    """

    survival: Sequence[float]
    source: str
    heterogeneity: float = 0.7
    wander: float = 0.5
    persistence: float = 0.9

    def __post_init__(self) -> None:
        values = np.asarray(self.survival, dtype=float)
        if values.ndim != 1 or not 1 <= len(values) <= MAX_DEPTH:
            raise ValueError(f"survival has shape {values.shape}; it must be of 1..{MAX_DEPTH} positions")
        if not (values >= 0).all() or not (values <= 1).all() or (np.diff(values) > 0).any():
            raise ValueError(f"survival must lie in 0..1 and never rise, not {values.tolist()}")
        for name in ("heterogeneity", "wander"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be finite and 0 or more")
        if not 0.0 <= self.persistence < 1.0:
            raise ValueError(f"persistence is {self.persistence}; it must lie in 0..1, 1 excluded")

    def levels(self) -> FloatArray:
        """b, shape (K,); infinite where a draft is always, or never, accepted."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        weights = weights / weights.sum()
        shift = nodes * math.hypot(self.heterogeneity, self.wander)
        reached = np.ones(_NODES)  # chance, at each node, that all drafts so far were accepted
        level = np.zeros(len(self.survival))
        for k, wanted in enumerate(self.survival):
            level[k] = _solve(wanted, reached * weights, shift)
            reached = reached * _sigmoid(level[k] + shift)
        return level

    def trace(
        self,
        sequences: int,
        output_tokens: int | Sequence[int] = 256,
        *,
        prompt_tokens: int = 128,
        shift_at: int | None = None,
        after: SyntheticAcceptance | None = None,
        seed: int = 0,
    ) -> Trace:
        """Generate a trace.

        Parameters
        ----------
        sequences : int
        output_tokens : int or sequence of int
            Of all sequences, or of each.
        prompt_tokens : int
            Of each sequence.
        shift_at : int, optional
            Output position from which on every text is in another domain. For a shift of all sequences at one step,
            whatever their position, see :class:`~.simulator.Shift` and :meth:`shifted`.
        after : SyntheticAcceptance, optional
            The acceptance from there on, to the same depth.
        seed : int
        """
        if sequences < 1:
            raise ValueError(f"sequences is {sequences}; it must be 1 or more")
        if (shift_at is None) != (after is None):
            raise ValueError("shift_at and after belong together; give both or none")
        lengths = np.broadcast_to(np.asarray(output_tokens, dtype=np.int64), (sequences,))
        if (lengths < 2).any():
            raise ValueError(f"output_tokens must be 2 or more, not {int(lengths.min())}")
        rng = np.random.default_rng([seed, 11])
        longest = int(lengths.max()) - 1
        run = self._runs(sequences, longest, rng)
        told = self.source
        if after is not None and shift_at is not None:
            self._check_depth(after)
            rest = after._runs(sequences, longest, np.random.default_rng([seed, 12]))
            run[:, shift_at - 1 :] = rest[:, shift_at - 1 :]
            told += f"; from output position {shift_at}: {after.source}"
        return self._trace(run, lengths, prompt_tokens, told)

    def shifted(self, trace: Trace, seed: int = 0) -> Trace:
        """The sequences of a synthetic trace with runs of this acceptance, to switch to in the middle of a run."""
        if trace.max_depth != len(self.survival):
            raise ValueError(f"the trace has K = {trace.max_depth}, this survival {len(self.survival)} positions")
        lengths = trace.output_tokens
        run = self._runs(len(trace), int(lengths.max()) - 1, np.random.default_rng([seed, 13]))
        return self._trace(run, lengths, int(trace.prompt_tokens[0]), self.source)

    def _check_depth(self, after: SyntheticAcceptance) -> None:
        if len(after.survival) != len(self.survival):
            raise ValueError(f"both survivals must have the same K, not {len(self.survival)} and {len(after.survival)}")

    def _runs(self, sequences: int, positions: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Runs, shape (sequences, positions)."""
        level = self.levels()
        own = rng.normal(0.0, self.heterogeneity, sequences)
        drift = rng.normal(0.0, self.wander, sequences)
        fresh = math.sqrt(1.0 - self.persistence**2) * self.wander
        run = np.zeros((sequences, positions), dtype=np.uint8)
        for p in range(positions):
            chance = _sigmoid(level + (own + drift)[:, None])
            accepted = rng.random(chance.shape) < chance
            run[:, p] = np.cumprod(accepted, axis=1).sum(axis=1)
            drift = self.persistence * drift + fresh * rng.normal(size=sequences)
        return run

    def _trace(self, run: NDArray[np.uint8], lengths: NDArray[np.int64], prompt_tokens: int, told: str) -> Trace:
        sequences, positions = run.shape
        inside = np.arange(positions) < (lengths - 1)[:, None]
        flat = run[inside]
        return Trace(
            info=TraceInfo(max_depth=len(self.survival), drafter="synthetic", synthetic=told),
            start=np.concatenate(([0], np.cumsum(lengths - 1))),
            text=np.arange(sequences, dtype=np.int64),
            category=np.full(sequences, "synthetic"),
            task=np.full(sequences, ""),
            prompt_tokens=np.full(sequences, prompt_tokens, dtype=np.int64),
            max_tokens=lengths.copy(),
            stopped=np.zeros(sequences, dtype=bool),
            seed=np.zeros(sequences, dtype=np.int64),
            run=flat,
            offered=np.full(len(flat), len(self.survival), dtype=np.uint8),
        )


def _solve(wanted: float, weight: FloatArray, shift: FloatArray) -> float:
    """The level at which the weighted mean of sigmoid(level + shift) is `wanted`, by bisection."""
    if wanted <= 0.0:
        return -math.inf
    if wanted >= weight.sum() * (1 - 1e-12):
        return math.inf
    low, high = -60.0, 60.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        if float(weight @ _sigmoid(middle + shift)) < wanted:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _sigmoid(x: FloatArray) -> FloatArray:
    result: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * np.asarray(x)))
    return result
