"""Counts what a serving loop reports of its steps."""

from __future__ import annotations

from adaptive_spec.serving.loop import StepReport
from adaptive_spec.step_counts import StepCounts


def count_step(counts: StepCounts, report: StepReport) -> None:
    """Add one step to the counts of its deployment.

    Parameters
    ----------
    counts : StepCounts
        Of the controller's K.
    report : StepReport
        As a :class:`~adaptive_spec.serving.loop.ServingLoop` hands it to its observer.
    """
    if report.decision is not None:
        counts.count_decision(report.decision, report.decision_seconds)
        counts.count_outcome(report.drafted, report.verified, report.accepted)
    for sequence in report.started:
        if sequence.num_output_tokens <= 1:  # not one whose prompt was computed again after a preemption
            counts.count_request(adapted=True)
