"""ClockedRunner: a model's runner on a virtual clock."""

from __future__ import annotations

from typing import Any

from adaptive_spec.replay.step_timer import StepTimer


class ClockedRunner:
    """A model's runner whose steps take what a curve says."""

    def __init__(self, inner: Any, timer: StepTimer) -> None:
        self.inner = inner
        self.timer = timer
        self.add, self.remove, self.offers = inner.add, inner.remove, inner.offers

    def execute(self, step: Any) -> Any:
        result = self.inner.execute(step)
        result.verify_seconds, result.draft_seconds = self.timer.charge(step, result.drafted)
        return result
