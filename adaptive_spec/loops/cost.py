"""The cost model's loops."""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec.compiled import REAL, compiled
from adaptive_spec.step import FloatArray, IntArray


@compiled(f"float64[::1]({REAL}, float64[::1], float64[::1], int64[::1], float64[::1], int64)")
def scaled_along(
    seconds: FloatArray, values: FloatArray, slopes: FloatArray, below: IntArray, beyond: FloatArray, first: int
) -> FloatArray:
    """Seconds at consecutive positions from `first` on, times a factor that is linear between nodes.

    Parameters
    ----------
    seconds : float array, shape (n,)
    values, slopes : float array, shape (nodes,)
        The factor at each node, and its slope above it.
    below, beyond : int and float array, over the positions
        The node below each, and how far beyond that it lies.
    first : int
    """
    scaled = np.empty(len(seconds))
    for i in range(len(seconds)):
        node = below[first + i]
        scaled[i] = seconds[i] * (slopes[node] * beyond[first + i] + values[node])
    return scaled


@compiled(
    "void(float64[::1], float64[:,::1], float64[::1], float64[::1], float64[::1], int64, float64, float64, float64)",
    error_model="numpy",
)
def learn_curve(
    log: FloatArray,
    covariance: FloatArray,
    nodes: FloatArray,
    values: FloatArray,
    slopes: FloatArray,
    node: int,
    share: float,
    error: float,
    total: float,
) -> None:
    """Move a normal belief over the log of a factor by one observation, in place: a Kalman filter's step.

    Parameters
    ----------
    log : float array, shape (n,)
        Means.
    covariance : float array, shape (n, n)
    nodes, values, slopes : float array, shape (n,)
        Where the nodes lie; are filled with the factor there, and its slope up to the next.
    node, share : int, float
        What was observed: the log at a node, with this share of the next one's.
    error : float
        How far off its mean the observation lies.
    total : float
        Variance of the observation.
    """
    gain = covariance[node] * (1.0 - share)
    if share > 0.0:
        gain += covariance[node + 1] * share
    scale = 1.0 / math.sqrt(total)
    for i in range(len(log)):
        log[i] += gain[i] * (error / total)
        values[i] = math.exp(log[i])
        if i:
            slopes[i - 1] = (values[i] - values[i - 1]) / (nodes[i] - nodes[i - 1])
        for j in range(len(log)):
            covariance[i, j] -= (gain[i] * scale) * (gain[j] * scale)
