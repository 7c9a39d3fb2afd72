"""UpkeepWatcher: counts vLLM's steps, and lets the tuning file, metrics and what was learned have their moments."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.metrics_folder import folder_offered
from adaptive_spec.step import StepTime
from adaptive_spec.tuning_file import Location
from adaptive_spec.upkeep import Upkeep
from adaptive_spec.vllm_plugin.step_report import StepReport

logger = logging.getLogger(__name__)

LOOK_EVERY_SECONDS = 0.2  # at what may be due; steps can be shorter
COUNTED_TOGETHER = 32  # steps at most; one after the other they take a third of the time that each takes alone


class Retunable(Protocol):
    """What steers the depths: the plugin's control."""

    max_depth: int

    @property
    def controller(self) -> Controller:
        """Decides and learns."""
        ...

    def retune(self, mode: Any, share: float, /) -> None:
        """Go on by another mode and share."""
        ...


class UpkeepWatcher:
    """A :class:`~adaptive_spec.vllm_plugin.step_report.Watcher` that stands for a deployment's upkeep.

    Steps are counted a few at a time, within a fifth of a second while others follow, and at once when none is left to
    do. Where metrics are switched off, they aren't counted.

    Parameters
    ----------
    control : DepthControl
        Told of the mode and share of an edited tuning file; the rest of it goes to its controller.
    upkeep : Upkeep
    """

    def __init__(self, control: Retunable, upkeep: Upkeep) -> None:
        self.control = control
        self.upkeep = upkeep
        self._look_at = -math.inf
        self._counts = upkeep.tuning.metrics.enabled
        self._steps: deque[StepReport] = deque()  # that are still to be counted

    def request(self, adapted: bool) -> None:
        """A request begins."""
        self.upkeep.counts.count_request(adapted)

    def step(self, report: StepReport) -> None:
        """Count a step's depths and what came of them, at the next look at the latest."""
        if self._counts:
            self._steps.append(report)
            if len(self._steps) == COUNTED_TOGETHER:
                self._count()

    def _count(self) -> None:
        counts, steps = self.upkeep.counts, self._steps
        while steps:
            report = steps.popleft()
            decision, adapted = report.decision, report.adapted
            if decision is not None:
                counts.count_decision(decision, report.decision_seconds, adapted)
            counts.count_outcome(report.drafted, report.verified, report.accepted)
            if decision is not None and not adapted.all():
                counts.count_shadow_outcome(decision.depth, adapted, report.verified, report.accepted)

    def timed(self, time: StepTime) -> None:
        """Seconds are the cost model's affair."""

    def fault(self, where: str, error: Exception) -> None:
        """Count a fault of the plugin's own."""
        self.upkeep.counts.count_fault(where)

    def tick(self, now: float) -> None:
        """Do what is due between two steps."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_SECONDS
        try:
            self._count()
        finally:
            tuning = self.upkeep.tick(now)
            if tuning is not None:
                self.control.retune(tuning.mode, tuning.share)

    def idle(self) -> None:
        """Leave the metrics as they will stand until the next request."""
        try:
            self._count()
        finally:
            self.upkeep.idle()

    def close(self) -> None:
        """Save what was learned, and leave the last metrics."""
        try:
            self._count()
        finally:
            self.upkeep.close()


def rank_of(parallel: Any) -> int:
    """Number of an engine among the data-parallel ones.

    Engines of a dense model are independent, and vLLM sets the `data_parallel_rank` of every one to 0; what tells
    them apart is `data_parallel_index`, where this vLLM has it.
    """
    index = getattr(parallel, "data_parallel_index", None)
    return int(parallel.data_parallel_rank if index is None else index)


def watch(
    control: Retunable,
    tuning: TuningConfig,
    file: str | None,
    vllm_config: Any,
    *,
    adjust: Callable[[TuningConfig], TuningConfig] | None = None,
    fixed: dict[Location, str] | None = None,
) -> UpkeepWatcher:
    """Make the watcher of one engine of vLLM's; what was learned before is taken over at once.

    Parameters
    ----------
    control : DepthControl
    tuning : TuningConfig
        What its controller was made from.
    file : str, optional
        The tuning's file.
    vllm_config : VllmConfig
        Names the model and the data-parallel rank, as vLLM's own metrics do.
    adjust, fixed
        See :class:`~adaptive_spec.upkeep.Upkeep`.
    """
    names = vllm_config.model_config.served_model_name
    settings: dict[str, Any] = {
        "file": file,
        "model_name": names if isinstance(names, str) else str(names[0]),
        "rank": rank_of(vllm_config.parallel_config),
        "fixed": fixed,
        "adjust": adjust,
        "most_drafts": control.max_depth,
        "folder": folder_offered() if tuning.metrics.enabled else None,
    }
    try:
        upkeep = Upkeep(control.controller, tuning, **settings)
    except ValueError as error:  # a port that is taken keeps no model from being served
        logger.error("adaptive depth goes on without a port for its metrics: %s", error)
        upkeep = Upkeep(control.controller, tuning, **settings, serve=False)
    return UpkeepWatcher(control, upkeep)
