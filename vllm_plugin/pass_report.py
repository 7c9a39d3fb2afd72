"""report_of: what a pass did, in the words of whoever watches the steps."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from adaptive_spec.step import BoolArray, IntArray
from adaptive_spec.vllm_plugin.scheduled_pass import DecidedDepths, ScheduledPass
from adaptive_spec.vllm_plugin.step_report import StepReport


def report_of(
    passed: ScheduledPass,
    decided: DecidedDepths,
    outcome: tuple[IntArray, IntArray, IntArray, BoolArray | None],
    mode: str,
    steers: bool,
    max_depth: int,
) -> StepReport:
    """The report of a pass that something was decided for.

    Parameters
    ----------
    passed : ScheduledPass
    decided : DecidedDepths
    outcome : tuple of array, shape (B,) each
        Verified, accepted, emitted and who is still there (None: all), in the decision's order.
    mode : str
    steers : bool
        Whether depths are put into effect in this mode.
    max_depth : int
        K.
    """
    verified, accepted, emitted, alive = outcome
    roster, drafted, depth = decided.roster, decided.offered, passed.drafted_before
    if depth < max_depth:  # a request may have waited with older drafts
        depth = max(depth, int(drafted.max()))
    return StepReport(
        mode,
        decided.decision,
        roster.ids,
        roster.adapted if steers else np.zeros(len(roster), dtype=bool),
        _everyone(len(roster)) if alive is None else alive,
        drafted,
        verified,
        accepted,
        emitted,
        depth,
        passed.prefill_tokens,
        passed.sampling_prefills,
        decided.seconds,
    )


@lru_cache(maxsize=8)
def _everyone(count: int) -> BoolArray:
    """All of so many requests; not to be written to."""
    everyone = np.ones(count, dtype=bool)
    everyone.flags.writeable = False
    return everyone
