"""ScalarFactor and CurveFactor: what a believed cost must be multiplied with, learned from observed logs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping

import numpy as np

from adaptive_spec import loops
from adaptive_spec.cost.surprise import Surprises
from adaptive_spec.step import FloatArray, IntArray

_DENSE_UNTIL = 8  # every count of positions up to here is a node of its own
_NODES_PER_OCTAVE = 5  # above, nodes 15 % apart: a kink half-way between two costs 2 % per unit of slope

# Prior of the log factor: one level for the whole curve (the machine is slower or faster than thought) and
# a deviation along the curve (knee and slope are elsewhere than thought), whose correlation falls by e
# over _REACH e-folds of positions. Of the values tried on curves with knee and slope wrong by 3 x, these
# had the smallest error after 200 steps; smoother ones smear a kink, rougher ones follow the noise.
_LEVEL_DEVIATION = 1.0
LOCAL_DEVIATION = 0.8
_REACH = 2.0

_FORGET_EVERY = 16  # forgetting is applied in batches of observations, to save time


class ScalarFactor:
    """One factor, by a Kalman filter on its log; see :class:`CurveFactor`, of which it is a single node."""

    def __init__(self, noise: float, memory_steps: float) -> None:
        self.memory_steps = memory_steps
        self.surprises = Surprises(noise)
        self.value = 1.0
        self._log = 0.0
        self._variance = _LEVEL_DEVIATION**2

    def learn(self, error: float) -> None:
        """Take in one observation, `error` being the log of observed over expected with this factor."""
        if not self.surprises.accept(0, (), error, self._variance):
            return
        variance = self._variance + self.surprises.doubt(error, self._variance)
        square = self.surprises.noise**2
        gain = variance / (variance + square)
        self._log += gain * error
        self.value = math.exp(self._log)
        self._variance = (1.0 - gain) * variance
        fading = min(square / self.memory_steps**2 / _LEVEL_DEVIATION**2, 1.0)
        self._variance += fading * (_LEVEL_DEVIATION**2 - self._variance)

    def state(self) -> list[float]:
        """Log factor, its variance, noise."""
        return [self._log, self._variance, self.surprises.noise]

    def restore(self, state: FloatArray) -> None:
        """Take over what :meth:`state` returned."""
        self._log, self._variance, self.surprises.noise = (float(x) for x in state)
        self.value = math.exp(self._log)
        self.surprises.forget_held()


class CurveFactor:
    """A factor along the positions: a Gaussian process over their log, learned one observation at a time.

    The log of the factor is held at nodes and learned by a Kalman filter; the factor is linear between
    them. A node that was visited follows its own observations, one that was not follows its neighbours,
    the more the nearer, and far from all of them the level of the whole curve. Belief fades towards the
    prior's ignorance, so that new observations outweigh old ones, while values that nobody visits stay.

    Parameters
    ----------
    largest : int
        Positions above which the factor is level.
    noise : float
        Standard deviation of an observation's log to begin with.
    memory_steps : float
        Observations over which the factor may change by its noise.
    local_deviation : float
        Standard deviation, before any observation, of the log factor along the curve, beside that of its
        level: how far knee and slope may be from where they are believed to be.

    Attributes
    ----------
    observed : int
        Observations that it has learned from.
    nodes : float array, shape (n,)
    """

    def __init__(
        self, largest: int, noise: float, memory_steps: float, local_deviation: float = LOCAL_DEVIATION
    ) -> None:
        self.memory_steps = memory_steps
        self.surprises = Surprises(noise)
        self.observed = 0
        self.nodes = _nodes(largest)
        self._node_list: list[float] = self.nodes.tolist()
        self._prior = _prior(self.nodes, local_deviation)
        self._log = np.zeros(len(self.nodes))
        self._covariance = self._prior.copy()
        self._room = np.empty_like(self._prior)  # for products as large as the covariance
        self._values = np.ones(len(self.nodes))  # the factor at each node
        self._slopes = np.zeros(len(self.nodes))  # and its slope up to the next; above the last it is level
        # Of positions 0, 1, ..., as far as they were ever asked for: the node below, and how far beyond it.
        self._below: IntArray = np.zeros(0, dtype=np.int64)
        self._beyond: FloatArray = np.zeros(0)

    def at(self, positions: FloatArray | IntArray) -> FloatArray:
        """The factor at each of `positions`."""
        return np.asarray(np.interp(positions, self.nodes, self._values))

    def scale(self, seconds: FloatArray, first: int) -> FloatArray:
        """Seconds at consecutive positions from `first` on, times the factor: as by :meth:`at`, but much quicker."""
        end = first + len(seconds)
        if end > len(self._below):
            self._locate(max(2 * len(self._below), end, 1024))
        return loops.scaled_along(loops.real(seconds), self._values, self._slopes, self._below, self._beyond, first)

    def _locate(self, end: int) -> None:
        """Work out where the positions below `end` lie among the nodes."""
        positions = np.maximum(np.arange(end), self._node_list[0])  # level below the first node, too
        self._below = np.searchsorted(self.nodes, positions, side="right") - 1
        self._beyond = positions - self.nodes[self._below]

    def deviation(self, positions: FloatArray | IntArray) -> FloatArray:
        """Standard deviation of the log factor at each of `positions`: how little is known there."""
        place = np.interp(positions, self.nodes, np.arange(len(self.nodes)))
        below = np.minimum(place.astype(np.int64), len(self.nodes) - 2)
        above, share = below + 1, place - below
        variance = (1.0 - share) ** 2 * self._covariance[below, below]
        variance += 2.0 * share * (1.0 - share) * self._covariance[below, above]
        variance += share**2 * self._covariance[above, above]
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    def learn(self, positions: int, log_ratio: float) -> None:
        """Take in one observation: the log of observed over believed seconds at `positions`."""
        node = bisect_right(self._node_list, positions) - 1
        factor = float(self._values[node])
        share = 0.0  # of the node above, in the derivative of the log of the interpolated factor
        if positions > self._node_list[node] and node + 1 < len(self._node_list):
            low, high = self._node_list[node], self._node_list[node + 1]
            above = (positions - low) / (high - low) * float(self._values[node + 1])
            factor = factor * (high - positions) / (high - low) + above
            share = above / factor
        error = log_ratio - math.log(factor)
        variance = self._variance(node, share)
        if not self.surprises.accept(node, (node - 1, node + 1), error, variance):
            return
        if (doubt := self.surprises.doubt(error, variance)) > 0.0:
            self._covariance += min(doubt / float(self._prior[0, 0]), 1.0) * self._prior
            variance = self._variance(node, share)
        total = variance + self.surprises.noise**2
        belief = self._log, self._covariance, self.nodes, self._values, self._slopes
        loops.learn_curve(*belief, node, share, error, total)
        self.observed += 1
        if self.observed % _FORGET_EVERY == 0:
            self._fade()

    def _variance(self, node: int, share: float) -> float:
        """Variance of the log of the factor at a node, with this share of the next one's."""
        covariance = self._covariance
        if share == 0.0:
            return max(float(covariance[node, node]), 0.0)
        here = (1.0 - share) * float(covariance[node, node]) + share * float(covariance[node, node + 1])
        above = (1.0 - share) * float(covariance[node, node + 1]) + share * float(covariance[node + 1, node + 1])
        return max((1.0 - share) * here + share * above, 0.0)

    def _fade(self) -> None:
        """Move the belief towards the prior's ignorance, never past it."""
        fading = _FORGET_EVERY * (self.surprises.noise / self.memory_steps) ** 2 / float(self._prior[0, 0])
        np.subtract(self._prior, self._covariance, out=self._room)
        self._room *= min(fading, 1.0)
        self._covariance += self._room

    def state(self) -> dict[str, object]:
        """What was learned, as arrays and numbers."""
        return {
            "nodes": self.nodes.copy(),
            "log_factor": self._log.copy(),
            "covariance": self._covariance.copy(),
            "noise": self.surprises.noise,
            "observed": self.observed,
        }

    def restore(self, state: Mapping[str, object]) -> None:
        """Take over what :meth:`state` returned; ValueError says what doesn't fit. Held surprises are dropped."""
        size = len(self.nodes)
        nodes = numbers(state, "nodes", (size,))
        if not np.array_equal(nodes, self.nodes):
            raise ValueError("the saved cost has other nodes; largest_positions must be what it was")
        log_factor = numbers(state, "log_factor", (size,))
        covariance = numbers(state, "covariance", (size, size))
        noise, observed = numbers(state, "noise", ()), numbers(state, "observed", ())
        self._log, self._covariance = log_factor, covariance
        self.surprises.noise, self.observed = float(noise), int(observed)
        self.surprises.forget_held()
        self._values = np.exp(self._log)
        self._slopes[:-1] = np.diff(self._values) / np.diff(self.nodes)


def numbers(state: Mapping[str, object], name: str, shape: tuple[int, ...]) -> FloatArray:
    """The finite numbers called `name` in a saved cost, of this shape; ValueError if they are not there."""
    try:
        array = np.array(state[name], dtype=float)
    except KeyError:
        raise ValueError(f"the saved cost has no {name!r}; it has {', '.join(sorted(state))}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name!r} of the saved cost is no array of numbers") from error
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{name!r} of the saved cost must be finite and of shape {shape}; its shape is {array.shape}")
    return array


def _nodes(largest: int) -> FloatArray:
    """Positions at which the factor is held: rising, whole."""
    octaves = math.log2(largest / _DENSE_UNTIL)
    above = _DENSE_UNTIL * 2.0 ** (np.arange(1, math.ceil(octaves * _NODES_PER_OCTAVE)) / _NODES_PER_OCTAVE)
    return np.unique(np.concatenate([np.arange(1.0, _DENSE_UNTIL + 1), np.round(above), [float(largest)]]))


def _prior(nodes: FloatArray, local_deviation: float) -> FloatArray:
    """Prior covariance of the log factors at the nodes."""
    apart = np.abs(np.subtract.outer(np.log(nodes), np.log(nodes)))
    return np.asarray(_LEVEL_DEVIATION**2 + local_deviation**2 * np.exp(-apart / _REACH))
