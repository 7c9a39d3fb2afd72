"""make_scheduler: what ``--scheduler-cls`` names; picks the scheduler that fits the final configuration."""

from __future__ import annotations

import logging
from typing import Any

from adaptive_spec.vllm_plugin.compatibility import missing
from adaptive_spec.vllm_plugin.logs import speak_through_vllm

logger = logging.getLogger(__name__)

PATH = f"{__name__}.make_scheduler"


def make_scheduler(*args: Any, **kwargs: Any) -> Any:
    """Construct vLLM's scheduler with adaptive depth; stock vLLM's where that can't be.

    vLLM resolves ``scheduler_cls`` to a callable and calls it with the final configuration, after the platform
    had its last word on asynchronous scheduling. A class named there would have to be chosen before, and a
    synchronous one under asynchronous scheduling silently never speculates.
    """
    speak_through_vllm()  # this is the engine's process, not the one that made the configuration
    config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    asynchronous = bool(config.scheduler_config.async_scheduling)
    if problems := missing():
        logger.warning(
            "adaptive_spec doesn't fit this vLLM, which goes on with its own depth: %s. Install versions that "
            "belong together (see DEPLOY.md).",
            "; ".join(problems),
        )
        return _stock(asynchronous)(*args, **kwargs)
    from adaptive_spec.vllm_plugin.scheduler import AdaptiveAsyncScheduler, AdaptiveScheduler

    return (AdaptiveAsyncScheduler if asynchronous else AdaptiveScheduler)(*args, **kwargs)


def _stock(asynchronous: bool) -> Any:
    if asynchronous:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        return AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    return Scheduler
