"""GainSplit: how much of a gain over the best fixed depth comes from load, from requests, and from not drafting.

All runs are of the same trace, arrivals, machine and seed. Let

- F be the fixed depth (of 0..K) with the highest goodput in hindsight,
- U the best uniform depth per load in hindsight: one depth for all sequences of a step, which depends on how many
  decode (:func:`load_table` finds the table in runs of fixed depths, and a run of it gives the goodput);
  where that run is behind F, F takes its place, since a table may hold one depth only,
- P the policy,
- G(X) the goodput of a run, and G°(X) what it would have been if every step at draft depth 0 had paid for drafting one
  token deep, the least that a drafter which is kept running costs: ``RunMetrics.paid_goodput``.

The gain splits, in logarithms, into

- *from load*: log G°(U) / G°(F): what depends on nothing but how full the machine is,
- *from differences between requests*: log G°(P) / G°(U): depths that differ within a step, or from step to step at one
  load,
- *from not drafting*: log G(P) / G°(P) - log G(F) / G°(F): the drafter's time that P saves by skipping it, beyond
  what F saves (all of it, where F is depth 0).

They add up to log G(P) / G(F) exactly. With a free drafter nothing comes from not drafting. The order matters, as in
every split of a product: what load alone can bring is counted as load's. An open system that keeps up yields what
arrives, whatever its policy: there is a gain to split where requests are waiting, or replaced when they finish.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adaptive_spec.replay.metrics import LoadBucket, RunMetrics

FAIR_SHARE = 0.1  # of a depth's steps at a load that must have carried next to no prompt, to judge it by these
Table = list[tuple[int, int | None, int]]


@dataclass(frozen=True)
class GainSplit:
    """A gain over the best fixed depth, in parts; each is a logarithm of a ratio, and they add up to `total`.

    Attributes
    ----------
    best_depth : int
        F.
    load, requests, not_drafting : float
    """

    best_depth: int
    load: float
    requests: float
    not_drafting: float

    @property
    def total(self) -> float:
        """Logarithm of the policy's goodput over the best fixed depth's."""
        return self.load + self.requests + self.not_drafting

    def __str__(self) -> str:
        return (
            f"{math.exp(self.total):.3f} x the best fixed depth ({self.best_depth}): {self.load:+.1%} from load, "
            f"{self.requests:+.1%} from differences between requests, {self.not_drafting:+.1%} from not drafting"
        )


def best_fixed(fixed: Mapping[int, RunMetrics]) -> int:
    """The fixed depth with the highest goodput; the shallower of equals."""
    if not fixed:
        raise ValueError("there is no run of a fixed depth; give one for each depth from 0 up")
    return max(sorted(fixed), key=lambda depth: fixed[depth].goodput)


def load_table(runs: Mapping[int, Sequence[RunMetrics]]) -> Table:
    """The best uniform depth at each load, out of runs of fixed depths.

    In each bucket of load, the depth with the highest goodput there: in the steps that carried next to no prompt, whose
    time says nothing of the depth, or in all steps where for some depth fewer than a tenth were such. A depth can't win
    a load that its runs never saw, and loads that no run saw take the depth of the nearest smaller one. So runs at
    several constant concurrencies are the best material: an open system that a depth overloads shows this depth at one
    load alone.

    Parameters
    ----------
    runs : mapping of int to sequence of RunMetrics
        By depth.

    Returns
    -------
    list of (first, last, depth)
        As ``batch-threshold`` takes it, from 1 up without a gap; the last range has no end.
    """
    table: Table = []
    buckets = [bucket for own in runs.values() for run in own for bucket in run.by_load.items()]
    if not buckets:
        raise ValueError("no run of a fixed depth decoded anything")
    for number, first in sorted({(number, bucket.first) for number, bucket in buckets}):
        seen = {depth: [run.by_load[number] for run in runs[depth] if number in run.by_load] for depth in sorted(runs)}
        seen = {depth: own for depth, own in seen.items() if own}
        pure = all(_mostly_pure(own) for own in seen.values())
        goodput = {depth: _goodput(own, pure) for depth, own in seen.items()}
        depth = max(goodput, key=lambda depth: goodput[depth])  # the shallower of equals
        if table and table[-1][2] == depth:
            continue
        if table:
            table[-1] = (table[-1][0], first - 1, table[-1][2])
        table.append((first if table else 1, None, depth))
    return table


def _mostly_pure(buckets: Sequence[LoadBucket]) -> bool:
    """Whether the steps that carried next to no prompt are enough to stand for all."""
    steps = sum(bucket.pure_steps for bucket in buckets)
    return steps > 0 and steps >= FAIR_SHARE * sum(bucket.steps for bucket in buckets)


def _goodput(buckets: Sequence[LoadBucket], pure: bool) -> float:
    if pure:
        return sum(b.pure_tokens for b in buckets) / sum(b.pure_seconds for b in buckets)
    return sum(b.tokens for b in buckets) / sum(b.seconds for b in buckets)


def split_gain(policy: RunMetrics, fixed: Mapping[int, RunMetrics], by_load: RunMetrics) -> GainSplit:
    """Split the gain of a policy over the best fixed depth.

    Parameters
    ----------
    policy : RunMetrics
        P.
    fixed : mapping of int to RunMetrics
        By depth, from 0 up.
    by_load : RunMetrics
        The run of :func:`load_table`.
    """
    depth = best_fixed(fixed)
    base = fixed[depth]
    uniform = by_load if by_load.goodput > base.goodput else base
    return GainSplit(
        best_depth=depth,
        load=math.log(uniform.paid_goodput / base.paid_goodput),
        requests=math.log(policy.paid_goodput / uniform.paid_goodput),
        not_drafting=math.log(policy.goodput / policy.paid_goodput) - math.log(base.goodput / base.paid_goodput),
    )
