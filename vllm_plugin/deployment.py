"""Builds the plugin's parts from vLLM's configuration and the tuning file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from adaptive_spec.config import TuningConfig
from adaptive_spec.deployment import make_controller
from adaptive_spec.vllm_plugin.cost_source import cost_for, starting_cost
from adaptive_spec.vllm_plugin.depth_control import DepthControl
from adaptive_spec.vllm_plugin.draft_split import DraftSplit
from adaptive_spec.vllm_plugin.drafters import Drafter, drafter_of
from adaptive_spec.vllm_plugin.plugin import SECTION, TUNING_FILE, VARIABLE
from adaptive_spec.vllm_plugin.sequence_requests import SequenceRequests
from adaptive_spec.vllm_plugin.step_clock import StepClock
from adaptive_spec.vllm_plugin.upkeep_watcher import watch

logger = logging.getLogger(__name__)

EVIDENCE = ("last_accepted", "age")


def tuning_file(vllm_config: Any) -> str | None:
    """Path of the deployment's tuning file, None if there is none."""
    additional = vllm_config.additional_config
    if isinstance(additional, dict) and (path := additional.get(SECTION, {}).get(TUNING_FILE)):
        return str(path)
    return os.environ.get(VARIABLE) or None


def make_control(scheduler: Any, clock: Callable[[], float] = time.perf_counter) -> DepthControl | None:
    """Build the control of a scheduler's depths; None where there is nothing to adapt, which is logged.

    Parameters
    ----------
    scheduler : Scheduler
        vLLM's, constructed.
    clock : callable
        Seconds.

    Raises
    ------
    adaptive_spec.config.TuningError
        If the tuning file is wrong.
    """
    config = scheduler.vllm_config
    speculative = config.speculative_config
    if (
        speculative is None
        or not scheduler.num_spec_tokens
        or getattr(scheduler, "num_sampled_tokens_per_step", 1) != 1
    ):
        logger.info("adaptive depth: this model doesn't speculate, so there is nothing to adapt")
        return None
    try:
        drafter = drafter_of(speculative, config.parallel_config.data_parallel_size)
    except ValueError as error:
        logger.info("adaptive depth: %s", error)
        return None
    path = tuning_file(config)
    most = int(scheduler.num_spec_tokens)
    tuning = capped(TuningConfig.load(path) if path else TuningConfig(), most)
    asynchronous = bool(config.scheduler_config.async_scheduling)
    start = starting_cost(tuning.cost, config, drafter)
    controller = make_controller(
        tuning,
        cost=cost_for(tuning.cost, start),
        evidence=evidence(tuning),
        identity=identity(config, drafter),
        clock=clock,
    )
    control = DepthControl(
        controller,
        SequenceRequests(scheduler.max_model_len, most),
        drafter,
        most,
        asynchronous=asynchronous,
        clock=StepClock(
            clock,
            # On a CPU a pass is over when the call that starts it returns, asynchronous scheduling or not.
            by_completions=getattr(config, "max_concurrent_batches", 1 + asynchronous) > 1
            and config.device_config.device_type != "cpu",
            split=DraftSplit(start) if drafter.costs_by_depth else None,
        ),
        mode=tuning.mode,
        share=tuning.share,
    )
    control.watcher = watch(control, tuning, path, config, adjust=lambda edited: capped(edited, most))
    logger.info(
        "adaptive depth is %s for %.4g of the requests, 0 to %d drafts, policy %s; %s",
        tuning.mode, tuning.share, min(tuning.max_depth, most), tuning.policy.name, drafter.describe(),
    )  # fmt: skip
    return control


def capped(tuning: TuningConfig, most: int) -> TuningConfig:
    """The tuning with no more depth than vLLM's ``num_speculative_tokens``."""
    if tuning.max_depth <= most:
        return tuning
    logger.info("adaptive depth: vLLM's num_speculative_tokens is %d, so that is K", most)
    return TuningConfig.model_validate(tuning.model_dump() | {"max_depth": most})


def evidence(tuning: TuningConfig) -> tuple[str, ...]:
    """Names of the evidence to use: what the plugin knows, as far as the tuning file wants it.

    Raises
    ------
    ValueError
        If it wants what the plugin doesn't know.
    """
    wanted = tuning.acceptance.evidence
    if wanted is None:
        return EVIDENCE
    if unknown := [name for name in wanted if name not in EVIDENCE]:
        raise ValueError(f"acceptance.evidence asks for {unknown[0]!r}; inside vLLM there is {', '.join(EVIDENCE)}")
    return tuple(name for name in EVIDENCE if name in wanted)


def identity(vllm_config: Any, drafter: Drafter) -> dict[str, str]:
    """Names model and drafter, so that nobody takes over what was learned of others."""
    speculative = vllm_config.speculative_config
    model = vllm_config.model_config
    return {
        "model": f"{model.model} {model.dtype}",
        "drafter": f"{drafter.method} {getattr(speculative, 'model', None) or ''}".strip(),
    }
