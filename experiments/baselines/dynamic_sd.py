"""DynamicSD: vLLM's table of batch sizes, and the offline tuning that makes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.policy import Allocation, DepthPolicy, SurvivalEstimate
from adaptive_spec.replay.trace import Trace
from adaptive_spec.step import FloatArray, StepView

Schedule = list[tuple[int, int, int]]


class DynamicSD(DepthPolicy):
    """Looks the depth of the whole batch up by its size; what vLLM calls dynamic speculative decoding.

    The depth read in one step is what the drafter is asked for at that step's end, and so what is verified
    in the *next*: a batch that grows is drafted for its old size once. Every request of a step counts,
    prefills too; a view tells only of the prefills that end, so those are counted here. Between two ranges,
    and above the last, the depth of the range before goes on. No hysteresis.

    Source: vLLM 0.33, ``vllm/v1/spec_decode/dynamic/utils.py`` (schedule and dense look-up) and
    ``vllm/v1/core/sched/scheduler.py`` (``dynamic_sd_lookup[len(num_scheduled_tokens)]``), setting
    ``num_speculative_tokens_per_batch_size``; vLLM pull request 32374.

    Parameters
    ----------
    schedule : sequence of (first, last, depth)
        Batch sizes from `first` to `last`, both included; the lowest range begins at 1.
    """

    explores = False
    needs_cost = False

    def __init__(self, schedule: Sequence[tuple[int, int, int]]) -> None:
        self.schedule = schedule

    def reset(self, max_depth: int, seed: int) -> None:
        """Check and sort the schedule; ValueError where vLLM refuses it: gaps at 1, overlaps, negative numbers."""
        if not len(self.schedule):
            raise ValueError("schedule is empty; give at least one range, as [[1, 256, 4]]")
        ranges = sorted((int(first), int(last), int(depth)) for first, last, depth in self.schedule)
        end = 0
        for first, last, depth in ranges:
            if first < 1 or last < first or depth < 0:
                raise ValueError(f"schedule has ({first}, {last}, {depth}); sizes rise from 1, depths from 0")
            if first <= end:
                raise ValueError(f"schedule has two ranges for batch size {first}; they must not overlap")
            end = last
        if ranges[0][0] != 1:
            raise ValueError(f"schedule begins at batch size {ranges[0][0]}; it must begin at 1")
        self.firsts_ = np.array([first for first, _, _ in ranges])
        self.depths_ = [min(depth, max_depth) for _, _, depth in ranges]
        self.next_depth_: int | None = None  # read in the last step, for this one

    def lookup(self, batch: int) -> int:
        """The depth for a batch of this size."""
        return self.depths_[int(np.searchsorted(self.firsts_, batch, side="right")) - 1]

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        read = self.lookup(max(view.sequences + view.sampling_prefills, 1))
        depth = read if self.next_depth_ is None else self.next_depth_
        self.next_depth_ = read
        return Allocation(np.minimum(view.limit, depth))


def goodput_table(
    acceptance_length: FloatArray, step_seconds: dict[int, dict[int, float]], last_batch: int
) -> Schedule:
    """The schedule that vLLM's tuning would make of measured acceptance lengths and step times.

    For every batch size the depth of the largest acceptance length over step time, the shallower of equals;
    times between measured batch sizes, and between measured depths, are interpolated linearly. (vLLM calls
    the step time inter-token latency, and keeps it in milliseconds: a factor changes nothing.)

    Source: ``DynamicSpeculativeDecodingManager`` and ``generate_config.py`` in the history of vLLM pull
    request 32374 (``vllm/v1/spec_decode/dynamic/``). Releases kept the table and left the tuning to the user.

    Parameters
    ----------
    acceptance_length : float array, shape (K + 1,)
        Tokens a step and sequence at each depth.
    step_seconds : dict of int to dict of int to float
        By batch size and depth; each batch size has depth 0.
    last_batch : int
        The schedule covers 1 to this size.
    """
    depths = np.arange(len(acceptance_length))
    sizes = sorted(step_seconds)
    measured = np.array(
        [
            np.interp(depths, sorted(step_seconds[b]), [step_seconds[b][d] for d in sorted(step_seconds[b])])
            for b in sizes
        ]
    )
    schedule: Schedule = []
    for batch in range(1, last_batch + 1):
        seconds = np.array([np.interp(batch, sizes, measured[:, d]) for d in depths])
        best = int((acceptance_length / seconds).argmax())
        if schedule and schedule[-1][2] == best:
            schedule[-1] = (schedule[-1][0], batch, best)
        else:
            schedule.append((batch, batch, best))
    return schedule


def tune(
    trace: Trace,
    cost: StepCost,
    max_depth: int,
    batch_sizes: Sequence[int] = (1, 4, 16, 64, 256),
    context: float = 0.0,
) -> Schedule:
    """Run vLLM's tuning on traces and a cost curve, in the place of its benchmark server.

    Acceptance length and time at depth k are those that serving every sequence at depth k would measure: of the
    positions that it visits, with the drafts that are on offer there, those without one included. The time of a batch
    is the mean over what its sequences may have on offer at once.

    Parameters
    ----------
    trace : Trace
        The training half.
    cost : StepCost
        What a step costs.
    max_depth : int
        K.
    batch_sizes : sequence of int
        Where the times are taken; vLLM's defaults.
    context : float
        KV tokens of a sequence.
    """
    depths = np.arange(max_depth + 1)
    length = np.array([trace.acceptance_length(depth) for depth in depths.tolist()])
    seconds: dict[int, dict[int, float]] = {batch: {} for batch in sorted(set(batch_sizes))}
    for depth in depths.tolist():
        drafts = np.minimum(trace.offered[trace.visited(depth)], depth)
        each = np.bincount(drafts, minlength=depth + 1) / max(len(drafts), 1)
        for batch, own in seconds.items():
            chance = _of_sum(each, batch)
            verify = cost.verify(batch + np.arange(len(chance)), context * batch, batch)
            own[depth] = float(chance @ verify) + float(cost.draft(depths[[depth]], batch)[0])
    return goodput_table(length, seconds, max(batch_sizes))


def _of_sum(chance: FloatArray, count: int) -> FloatArray:
    """The chances of the sum of `count` independent numbers, each of which is 0, 1, ... with these chances."""
    size = count * (len(chance) - 1) + 1
    return np.maximum(np.fft.irfft(np.fft.rfft(chance, size) ** count, size), 0.0)
