"""Fixed: the same depth for every sequence at every step, which is what most engines do."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import StepView


class Fixed(DepthPolicy):
    """Speculates to one depth, whatever happens: the baseline that every other policy has to beat.

    It neither learns nor explores, reads no cost model, and the guard leaves it alone. A sequence whose
    limit is lower (it is about to end, or the drafter has less on offer) gets its limit.

    Source: the original algorithm's gamma (Leviathan et al., "Fast Inference from Transformers via
    Speculative Decoding", 2023), vLLM's ``num_speculative_tokens``.

    Parameters
    ----------
    depth : int
        Draft tokens per sequence and step; 0 turns speculation off.
    """

    explores = False
    needs_cost = False

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def reset(self, max_depth: int, seed: int) -> None:
        """Check the depth; ValueError if it is outside 0..`max_depth`."""
        if not 0 <= self.depth <= max_depth:
            raise ValueError(f"depth is {self.depth}; this deployment drafts 0 to {max_depth} tokens")

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        return Allocation(np.minimum(view.limit, self.depth))
