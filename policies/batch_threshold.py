"""BatchThreshold: a depth by the number of decoding sequences, read from a table that somebody tuned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.step import StepView


class BatchThreshold(DepthPolicy):
    """Looks the depth up by how many sequences are decoding: deep when few are, none when many are.

    The idea: an idle machine verifies drafts for nothing, a full one pays for every position, and the
    batch says roughly how full it is. Prefills don't count, they come and go within a step or two. Near
    the border of two ranges the batch size flickers, so a range is left only when the batch is clearly
    outside of it (hysteresis, upwards and downwards alike). It neither learns nor explores, and knows
    nothing of how predictable the texts are.

    In a tuning file::

        policy: {name: batch-threshold, table: [[1, 4, 8], [5, 16, 4], [17, null, 2]], off_above: 64}

    Source: vLLM's ``num_speculative_tokens_per_batch_size`` (the same triples; depth by batch size) and,
    earlier, ``disable_by_batch_size``; TensorRT-LLM's ``draft_len_schedule`` with ``max_concurrency``.

    Parameters
    ----------
    table : sequence of (first, last, depth)
        Batch sizes from `first` to `last`, both included, get `depth`. The ranges begin at 1 and follow
        each other without a gap; the last may end at None (null in YAML), without end. Above a last range
        that ends, nothing is drafted.
    off_above : int, optional
        Larger batches draft nothing, whatever the table says.
    hysteresis : float
        How far outside its range the batch must be before the depth changes, as a part of the border that
        it crossed, rounded down: with 0.125 and a border between 16 and 17, up from 19 and down from 14.
        0 turns it off.
    """

    explores = False
    needs_cost = False

    def __init__(
        self,
        table: Sequence[tuple[int, int | None, int]],
        off_above: int | None = None,
        hysteresis: float = 0.125,
    ) -> None:
        self.table = table
        self.off_above = off_above
        self.hysteresis = hysteresis

    def reset(self, max_depth: int, seed: int) -> None:
        """Check the table and forget the present range.

        Raises
        ------
        ValueError
            For ranges that overlap, leave a gap or run backwards, depths outside 0..`max_depth`, and an
            `off_above` or `hysteresis` out of its range.
        """
        if not 0 <= self.hysteresis < 1:
            raise ValueError(f"hysteresis is {self.hysteresis}; it must be at least 0 and below 1")
        if self.off_above is not None and self.off_above < 0:
            raise ValueError(f"off_above is {self.off_above}; it must be 0 or more sequences")
        ends, depths = self._checked(max_depth)
        if self.off_above is not None:
            kept = [(end, depth) for end, depth in zip(ends, depths, strict=True)]
            below = [pair for pair in kept if pair[0] < self.off_above]
            over = [(float(self.off_above), depth) for _, depth in kept[len(below) : len(below) + 1]]
            ends, depths = [end for end, _ in below + over], [depth for _, depth in below + over]
        if ends[-1] != math.inf:
            ends.append(math.inf)
            depths.append(0)
        self.ends_ = ends  # last batch size of each range
        self.depths_ = depths
        self.range_: int | None = None

    def _checked(self, max_depth: int) -> tuple[list[float], list[int]]:
        if not len(self.table):
            raise ValueError("table is empty; give at least one range, as [[1, null, 4]]")
        ends: list[float] = []
        before = 0.0
        for i, entry in enumerate(self.table):
            if len(entry) != 3:
                raise ValueError(f"table[{i}] is {list(entry)}; a range is [first batch, last batch, depth]")
            first, last, depth = entry
            if before == math.inf:
                raise ValueError(f"table[{i - 1}] has no end, so table[{i}] overlaps it; only the last may be open")
            if first > before + 1:
                raise ValueError(
                    f"table[{i}] begins at {first}, which leaves a gap: no range covers {before + 1:.0f}; "
                    f"begin it at {before + 1:.0f}"
                )
            if first < before + 1:
                fault = f"overlaps table[{i - 1}], which ends at {before:.0f}" if i else "is no batch size"
                raise ValueError(f"table[{i}] begins at {first}, which {fault}; begin it at {before + 1:.0f}")
            if last is not None and last < first:
                raise ValueError(f"table[{i}] runs backwards, from {first} to {last}; end it at {first} or more")
            if not 0 <= depth <= max_depth:
                raise ValueError(f"table[{i}] has depth {depth}; this deployment drafts 0 to {max_depth} tokens")
            before = math.inf if last is None else float(last)
            ends.append(before)
        return ends, [entry[2] for entry in self.table]

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        self.range_ = self._range(view.sequences)
        return Allocation(np.minimum(view.limit, self.depths_[self.range_]))

    def _range(self, batch: int) -> int:
        """The range of this batch size, or the present one while it is not clearly left."""
        if self.range_ is not None:
            above = self.ends_[self.range_]
            below = self.ends_[self.range_ - 1] if self.range_ else 0.0
            widest = above + math.floor(self.hysteresis * above) if above < math.inf else above
            if below - math.floor(self.hysteresis * below) < batch <= widest:
                return self.range_
        return next(i for i, end in enumerate(self.ends_) if batch <= end)
