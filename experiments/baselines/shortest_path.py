"""shortest_path: the true optimum at one sequence, the fewest seconds in which a recorded text can be emitted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.replay.trace import TraceSequence
from adaptive_spec.step import FloatArray, IntArray


@dataclass(frozen=True)
class Path:
    """A way through a text.

    Attributes
    ----------
    seconds : float
        From the first output token, which the prefill yields, to the last.
    position : int array, shape (steps,)
        Output tokens that there are before each step.
    depth : int array, shape (steps,)
        Drafts verified in it.
    """

    seconds: float
    position: IntArray
    depth: IntArray


def shortest_path(sequence: TraceSequence, cost: StepCost, max_depth: int) -> Path:
    """Find the depths that emit a text alone on the machine in the fewest seconds.

    Output positions are the nodes of a graph without cycles. A step at position p with d drafts costs
    V(1 + d) + Dr(d) and leads to p + min(d, L[p]) + 1, and d is at most K, what is on offer, and the tokens
    that the request still allows less one: the same limits as a policy has. Dynamic programming from the end is
    exact for any cost, also one that falls somewhere; of equal depths the shallowest is taken. No policy can be
    faster on this text with this cost, not even one that knows the best step at each position.

    Parameters
    ----------
    sequence : TraceSequence
        The text. Its last token is the end: it is emitted and nothing follows.
    cost : StepCost
        What a step costs; a model that learns is taken as it stands.
    max_depth : int
        K.
    """
    tokens = sequence.output_tokens
    run, offered = sequence.run.astype(np.int64), sequence.offered.astype(np.int64)
    depths = np.arange(max_depth + 1)
    draft = cost.draft(depths, 1)
    left: FloatArray = np.zeros(tokens + 1)  # seconds from each position to the end
    chosen: IntArray = np.zeros(tokens + 1, dtype=np.int64)
    for p in range(tokens - 1, 0, -1):
        most = int(min(max_depth, offered[p - 1], sequence.max_tokens - p - 1))
        step = cost.verify_range(1, most + 1, float(sequence.context[p - 1]), 1) + draft[: most + 1]
        reach = np.minimum(p + 1 + np.minimum(depths[: most + 1], run[p - 1]), tokens)
        total = step + left[reach]
        chosen[p] = int(total.argmin())
        left[p] = total[chosen[p]]
    visited: list[int] = []
    p = 1
    while p < tokens:
        visited.append(p)
        p += 1 + int(min(chosen[p], run[p - 1]))
    position = np.array(visited, dtype=np.int64)
    return Path(float(left[1]) if tokens > 1 else 0.0, position, chosen[position])
