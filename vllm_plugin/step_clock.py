"""StepClock: how long each of the engine's passes took, with one step in flight or two."""

from __future__ import annotations

import math
from collections.abc import Callable

from adaptive_spec.step import NAN, StepTime
from adaptive_spec.vllm_plugin.draft_split import DraftSplit
from adaptive_spec.vllm_plugin.scheduled_pass import ScheduledPass


class StepClock:
    """Pairs the moments at which passes are launched and completed into seconds of each pass.

    By launches: a pass lasts from its own launch to the next one's. So it is where execution blocks (with
    synchronous scheduling, and on a CPU always): the target verifies one decision's drafts and then the
    drafter works for the next. By completions: it lasts from its predecessor's completion to its own. So it
    is on a device that runs behind asynchronous scheduling: there a pass's results are there before its
    drafter has begun, and the interval holds the drafting for the pass itself. Either way an interval in
    which the engine was idle, or the device had nothing queued, is dropped.

    Parameters
    ----------
    clock : callable
        Seconds.
    by_completions : bool
        See above.
    split : DraftSplit, optional
        Tells target and draft apart; None where drafting costs nothing by depth.
    """

    def __init__(self, clock: Callable[[], float], by_completions: bool, split: DraftSplit | None) -> None:
        self.clock = clock
        self.by_completions = by_completions
        self.split = split
        self.dropped = 0
        self._open: ScheduledPass | None = None  # launched, and its interval still runs
        self._completed = NAN  # when the latest pass was completed

    def launch(self) -> tuple[float, ScheduledPass | None]:
        """A step begins: return the moment, and the pass whose interval this ends."""
        now = self.clock()
        ended, self._open = self._open, None
        if ended is not None:
            ended.seconds = now - ended.launched
            ended.timed = True
        return now, ended

    def launched(self, passed: ScheduledPass) -> None:
        """This pass was scheduled in the step that just began."""
        if not self.by_completions:
            self._open = passed

    def complete(self, passed: ScheduledPass) -> None:
        """The results of a pass are there."""
        if not self.by_completions:
            return
        now = self.clock()
        passed.timed = True
        if passed.launched <= self._completed:  # else the device stood idle between the two
            passed.seconds = now - self._completed
        else:
            self.dropped += 1
        self._completed = now

    def idle(self) -> None:
        """The engine has no work: what comes next begins anew."""
        self._completed = NAN
        if self._open is not None:
            self._open.timed = True
            self._open = None
            self.dropped += 1

    def time(self, passed: ScheduledPass) -> StepTime | None:
        """What a pass carried and took; None if its interval was dropped."""
        seconds = passed.seconds
        if not (0.0 < seconds < math.inf):
            return None
        draft_depth = passed.drafted_before if self.by_completions else passed.drafts_asked
        verify, draft = seconds, 0.0
        if self.split is not None:
            verify, draft = self.split.split(seconds, passed.positions, draft_depth, passed.sequences)
        return StepTime(
            step=0 if passed.decision is None else passed.decision.step,
            positions=passed.positions,
            sequences=passed.sequences,
            context=passed.context,
            draft_depth=draft_depth,
            tokens=passed.tokens,
            prefill_tokens=passed.prefill_tokens,
            sampling_prefills=passed.sampling_prefills,
            verify_seconds=verify,
            draft_seconds=draft,
            step_seconds=seconds,
        )
