"""The exact split of one step's budget over (sequence, position) slots: how deep each sequence goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_spec import loops
from adaptive_spec.policy import Allocation
from adaptive_spec.step import DeferredTipping, FloatArray, IntArray, Tipping

NAN = float("nan")


def allocate(
    survival: FloatArray,
    weight: FloatArray,
    limit: IntArray,
    base_tokens: float,
    verify_seconds: FloatArray,
    draft_seconds: FloatArray,
    *,
    price: float | None = None,
    levels: Sequence[int] | None = None,
    uniform: bool = False,
) -> Allocation:
    """Choose the depths that maximise a step's goodput, or its worth less a price for its seconds.

    Without `price` the depths ``d`` maximise::

        (base_tokens + sum_i weight[i] * sum_{k <= d[i]} survival[i, k]) / (V(T0 + sum d) + Dr(max d))

    over all ``d[i] <= limit[i]``; with `price` they maximise numerator - price * denominator. For n slots
    under a cap on depth the n largest ``weight * survival`` are best, since survival never rises along a
    sequence: the slots are sorted once, and every n is priced for every cap at which drafting gets dearer.
    Nothing is assumed of the shape of V: real curves are staircases with dips and cliffs.

    Parameters
    ----------
    survival : float array, shape (B, K)
        Chance that draft k and all before it are accepted; never rises along k. The transpose of a
        C-contiguous (K, B) array is the fastest.
    weight : float array, shape (B,)
        Worth of one token of each sequence, not negative.
    limit : int array, shape (B,)
        The most drafts of each sequence, not negative; more than K counts as K.
    base_tokens : float
        Worth that the pass yields at depth 0.
    verify_seconds : float array, shape (N + 1,)
        ``verify_seconds[n]``: seconds of a pass with n slots on top of the positions that it carries
        anyway; N is at least ``sum(min(limit, K))``.
    draft_seconds : float array, shape (K + 1,)
        Seconds of drafting to each depth. Where a deeper depth is cheaper than a shallower one, the
        drafter is asked for the deeper one (`draft_depth`) and what is not wanted is left unverified.
    price : float, optional
        Tokens that a second must bring: the running goodput, for the long-run optimum.
    levels : sequence of int, optional
        Depths allowed besides 0; a limit between two levels counts as the lower one. Mixed levels are
        chosen greedily along the (concave) curve of every sequence, which is not exact: filling a
        staircase with blocks of several slots is a knapsack.
    uniform : bool
        One depth for all, out of `levels` or else 0..K, each sequence clipped to the largest of them
        within its limit. Exact over the set.

    Returns
    -------
    Allocation
        Ties go to fewer slots, then to the shallower cap. The objective is the optimum within
        ``2**(b - 52)`` relative, b being the bits of B * K - 1: 5e-13 for 2,048 slots.

    Raises
    ------
    ValueError
        For a `verify_seconds` or `draft_seconds` that is too short, for levels outside 0..K, and for NaN
        or infinity among the numbers.

    Notes
    -----
    The one-step rule of DSpark's Algorithm 1, but with the draft's cost and without early stopping. A
    `price` is the parametric form of the same ratio (Dinkelbach, "On nonlinear fractional programming",
    1967): at the best long-run goodput both choose the same.
    """
    depths = survival.shape[1]
    offered = np.minimum(limit, depths, dtype=np.int64)
    count = int(np.add.reduce(offered))
    if len(verify_seconds) <= count:
        raise ValueError(
            f"verify_seconds has {len(verify_seconds)} entries; with {count} slots on offer it needs {count + 1}"
        )
    if len(draft_seconds) <= depths:
        raise ValueError(f"draft_seconds has {len(draft_seconds)} entries; depths 0 to {depths} need {depths + 1}")
    if price is not None and not math.isfinite(price):
        raise ValueError(f"price is {price}; it must be finite")
    draft = draft_seconds.tolist()
    asked = list(range(depths + 1))  # the depth to draft to, by the deepest depth verified
    for d in range(depths - 1, -1, -1):
        if draft[d + 1] < draft[d]:
            draft[d], asked[d] = draft[d + 1], asked[d + 1]
    worth = np.multiply(survival.T, weight, order="C", dtype=np.float64)  # [K, B]
    verify = loops.real(verify_seconds)
    step = _Step(worth, offered, count, base_tokens, verify, draft, asked, price)
    if levels is None and not uniform:
        return step.allocation(_exact(step))
    allowed = _checked(levels, depths)
    step.offered = offered = _largest_level(allowed, depths)[offered]
    step.count = int(offered.sum())
    choice = _uniform(step, allowed) if uniform else _mixed(step, allowed)
    return step.allocation(choice, levels=allowed, uniform=uniform)


@dataclass(slots=True)
class _Choice:
    """Slots bought, the objective and the worth that they reach, and the depths (None: all 0)."""

    slots: int
    objective: float
    tokens: float
    depth: IntArray | None


@dataclass(slots=True)
class _Step:
    """One step's numbers, and what follows from them for a choice."""

    worth: FloatArray  # [K, B]
    offered: IntArray  # [B]
    count: int
    base_tokens: float
    verify: FloatArray  # [N + 1]
    draft: list[float]  # [K + 1], never falling
    asked: list[int]  # [K + 1]
    price: float | None

    def objective(self, tokens: float, seconds: float) -> float:
        return tokens / seconds if self.price is None else tokens - self.price * seconds

    def objectives(self, tokens: FloatArray, seconds: FloatArray) -> FloatArray:
        return tokens / seconds if self.price is None else tokens - self.price * seconds

    def nothing(self) -> _Choice:
        return _Choice(
            0, self.objective(self.base_tokens, float(self.verify[0]) + self.draft[0]), self.base_tokens, None
        )

    def allocation(self, choice: _Choice, levels: list[int] | None = None, uniform: bool = False) -> Allocation:
        _check(choice)
        depth = choice.depth
        if depth is None:
            depth = np.zeros(len(self.offered), dtype=np.int64)
        deepest = int(np.maximum.reduce(depth)) if choice.slots else 0
        seconds = float(self.verify[choice.slots]) + self.draft[deepest]
        return Allocation(
            depth=depth,
            draft_depth=self.asked[deepest],
            tipping=DeferredTipping(lambda: _tipping(self, choice, depth, deepest, levels, uniform)),
            expected_tokens=choice.tokens,
            expected_seconds=seconds,
        )


def _check(choice: _Choice) -> None:
    if not math.isfinite(choice.objective):
        raise ValueError(
            "cannot allocate: survival, weight, base_tokens, verify_seconds, draft_seconds and price must be "
            f"finite, and seconds positive; the best objective came out as {choice.objective}"
        )


def _exact(step: _Step) -> _Choice:
    """Price every number of slots under every cap on depth that could be best."""
    best = step.nothing()
    draft = step.draft
    if step.count == 0:
        return best
    # A deeper cap at the same cost of drafting includes a shallower one, and so does the deepest offer.
    depths = len(step.worth)
    deepest = depths if draft[0] == draft[depths] else int(step.offered.max())
    price = NAN if step.price is None else step.price
    for cap in reversed([d for d in range(1, deepest) if draft[d] < draft[d + 1]] + [deepest]):
        depth = np.empty(len(step.offered), dtype=np.int64)
        slots, value, tokens = loops.best_prefix(
            step.worth, step.offered, cap, step.base_tokens, step.verify, draft[cap], price, depth
        )
        choice = _Choice(slots, value, tokens, depth if slots else None)
        _check(choice)
        if not (value < best.objective or (value == best.objective and slots > best.slots)):
            best = choice
    return best


def _checked(levels: Sequence[int] | None, depths: int) -> list[int]:
    """The depths allowed besides 0, rising."""
    if levels is None:
        return list(range(1, depths + 1))
    allowed = sorted(set(levels) - {0})
    wrong = [level for level in allowed if not 0 < level <= depths]
    if wrong:
        raise ValueError(f"depth level {wrong[0]} is outside 0..{depths}; allowed are depths up to {depths}")
    return allowed


def _largest_level(allowed: list[int], depths: int) -> IntArray:
    """The largest depth allowed within each limit 0..`depths`."""
    bounds = np.array([0, *allowed])
    return bounds[np.searchsorted(bounds, np.arange(depths + 1), side="right") - 1]


def _uniform(step: _Step, allowed: list[int]) -> _Choice:
    """The best single depth, each sequence clipped to its limit's level."""
    best = step.nothing()
    gains = step.worth.cumsum(axis=0)  # [K, B]
    columns = np.arange(gains.shape[1])
    for level in allowed:
        depth = np.minimum(step.offered, level)
        slots = int(depth.sum())
        tokens = step.base_tokens + float(np.where(depth > 0, gains[depth - 1, columns], 0.0).sum())
        value = step.objective(tokens, float(step.verify[slots]) + step.draft[level])
        if not (value < best.objective or (value == best.objective and slots >= best.slots)):
            best = _Choice(slots, value, tokens, depth)
    return best


def _blocks(step: _Step, allowed: list[int]) -> tuple[FloatArray, IntArray]:
    """Worth [J, B] and slots [J] of the blocks that lead each sequence from one level to the next."""
    edges = np.array([0, *allowed])
    gains = np.concatenate((np.zeros((1, step.worth.shape[1])), step.worth.cumsum(axis=0)))[edges]
    return np.diff(gains, axis=0), np.diff(edges)


def _mixed(step: _Step, allowed: list[int]) -> _Choice:
    """Blocks between levels, taken by falling worth per slot: greedy, since they differ in size."""
    best = step.nothing()
    if step.count == 0:
        return best
    sequences = len(step.offered)
    worth, sizes = _blocks(step, allowed)
    offered = np.flatnonzero(np.array(allowed)[:, None] <= step.offered)
    order = offered[np.argsort(-(worth / sizes[:, None]).reshape(-1)[offered], kind="stable")]
    for index, cap in enumerate(allowed, start=1):
        kept = order[order < index * sequences]
        tokens = np.cumsum(np.concatenate(([step.base_tokens], worth.reshape(-1)[kept])))
        slots = np.cumsum(np.concatenate(([0], sizes[kept // sequences])))
        values = step.objectives(tokens, step.verify[slots] + step.draft[cap])
        j = int(values.argmax())
        value = float(values[j])
        if not (value < best.objective or (value == best.objective and slots[j] >= best.slots)):
            depth = np.bincount(kept[:j] % sequences, sizes[kept[:j] // sequences], sequences).astype(np.int64)
            best = _Choice(int(slots[j]), value, float(tokens[j]), depth)
    return best


def _tipping(
    step: _Step, choice: _Choice, depth: IntArray, deepest: int, levels: list[int] | None, uniform: bool
) -> Tipping:
    """Find the refused block that came nearest to paying.

    Whatever is added to the slots bought is another choice that was open, and so no better: where the
    choice is exact, a block's worth never exceeds price * seconds. The nearest has the largest ratio of
    worth to seconds. A block that costs nothing brings nothing, and is named only when nothing else is.
    """
    positions = np.arange(len(step.worth))[:, None]
    bought = positions < depth
    refused = (positions < step.offered) & ~bought
    seconds = float(step.verify[choice.slots]) + step.draft[deepest]
    price = choice.tokens / seconds
    used = price if step.price is None else step.price
    floor = float(step.worth[bought].min()) if choice.slots else NAN
    if not refused.any():
        return Tipping(floor, NAN, 0, 0.0, 0.0, price, 0.0, used)

    nearest = (-np.inf, 0, 0.0, 0.0, 0.0)  # worth per second, slots, worth, seconds, of which drafting
    steps = range(1, len(step.worth) + 1) if levels is None else levels
    for cap in (level for level in steps if level >= deepest):
        if uniform:
            more = refused & (positions < cap)
            tokens, slots = step.worth[more].sum(keepdims=True), more.sum(keepdims=True).reshape(-1)
        elif levels is None:
            worths = np.sort(step.worth[refused & (positions < cap)])[::-1]
            tokens, slots = worths.cumsum(), np.arange(1, len(worths) + 1)
        else:
            worth, sizes = _blocks(step, levels)
            ends = np.array(levels)[:, None]
            more = (ends > depth) & (ends <= step.offered) & (ends <= cap)
            block_slots = np.broadcast_to(sizes[:, None], worth.shape)[more]
            order = np.argsort(-worth[more] / block_slots, kind="stable")
            tokens, slots = worth[more][order].cumsum(), block_slots[order].cumsum()
        if not len(slots) or slots[-1] == 0:
            continue
        drafting = step.draft[cap] - step.draft[deepest]
        extra = step.verify[choice.slots + slots] - step.verify[choice.slots] + drafting
        free = extra <= 1e-12 * seconds  # equal but for rounding
        ratio = np.where(free, 0.0, tokens / np.where(free, 1.0, extra))
        if levels is not None and not uniform:
            # What pays was passed over by greed, not refused for its price: named only when nothing else is.
            ratio = np.where(tokens > used * extra, -ratio, ratio)
        j = int(ratio.argmax())
        if ratio[j] > nearest[0]:
            nearest = (float(ratio[j]), int(slots[j]), float(tokens[j]), float(extra[j]), drafting)
    _, block, worth_of_block, cost, drafting = nearest
    best_refused = float(step.worth[refused].max())
    return Tipping(floor, best_refused, block, worth_of_block, cost, price, drafting, used)
