"""Builds the plugin's parts from vLLM's configuration and the tuning file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from adaptive_spec.config import TuningConfig
from adaptive_spec.deployment import make_controller
from adaptive_spec.tuning_file import TuningError
from adaptive_spec.vllm_plugin.cost_source import cost_for, starting_cost
from adaptive_spec.vllm_plugin.depth_control import DepthControl
from adaptive_spec.vllm_plugin.draft_split import DraftSplit
from adaptive_spec.vllm_plugin.drafters import Drafter, drafter_of
from adaptive_spec.vllm_plugin.matched_text import MatchedText
from adaptive_spec.vllm_plugin.plugin import SECTION, TUNING_FILE, VARIABLE
from adaptive_spec.vllm_plugin.sequence_requests import SequenceRequests
from adaptive_spec.vllm_plugin.step_clock import StepClock
from adaptive_spec.vllm_plugin.upkeep_watcher import watch
from adaptive_spec.vllm_plugin.vllm_tuning import fitted, load_tuning

logger = logging.getLogger(__name__)


def tuning_file(vllm_config: Any) -> str | None:
    """Path of the deployment's tuning file, None if there is none."""
    additional = vllm_config.additional_config
    if isinstance(additional, dict) and (path := additional.get(SECTION, {}).get(TUNING_FILE)):
        return str(path)
    return os.environ.get(VARIABLE) or None


def make_control(scheduler: Any, clock: Callable[[], float] = time.perf_counter) -> DepthControl | None:
    """Build the control of a scheduler's depths; None, and a line in the log, where that can't be.

    There may be nothing to adapt, or vLLM may not be what the plugin takes it for: then it goes on by itself.

    Parameters
    ----------
    scheduler : Scheduler
        vLLM's, constructed.
    clock : callable
        Seconds.

    Raises
    ------
    TuningError
        If the tuning file is wrong, or asks for what can't be had inside vLLM.
    """
    try:
        drafter = _drafter(scheduler)
        path = tuning_file(scheduler.vllm_config)
        most = int(scheduler.num_spec_tokens)
    except Exception as error:
        _log_stock(error)
        return None
    if drafter is None:
        return None
    known = drafter.evidence(bool(scheduler.vllm_config.scheduler_config.async_scheduling))
    tuning = load_tuning(path, most, known)
    wanted = tuning.acceptance.evidence
    names = tuple(name for name in known if wanted is None or name in wanted)
    try:
        control = _control(scheduler, drafter, tuning, names, clock)
        control.watcher = watch(
            control, tuning, path, scheduler.vllm_config, adjust=lambda edited: fitted(edited, most, known)
        )
    except TuningError:
        raise
    except Exception as error:
        _log_stock(error)
        return None
    logger.info(
        "adaptive depth is %s for %.4g %% of the requests, 0 to %d drafts, policy %s; %s; %s",
        tuning.mode, 100 * tuning.share, tuning.max_depth, tuning.policy.name, drafter.describe(),
        f"tuning file {path}" if path else "no tuning file is named: the defaults hold",
    )  # fmt: skip
    if remark := graph_remark(scheduler.vllm_config, drafter):
        logger.warning("adaptive depth: %s", remark)
    return control


def _log_stock(error: Exception) -> None:
    """Say once why vLLM goes on with its own depths."""
    logger.warning(
        "adaptive_spec can't be set up in this engine, which goes on with vLLM's own depth: %s: %s. See the "
        "compatibility table of DEPLOY.md.", type(error).__name__, error,
    )  # fmt: skip


def _drafter(scheduler: Any) -> Drafter | None:
    """The engine's drafter; None if it has none whose depth could be adapted, which is logged."""
    config = scheduler.vllm_config
    speculative = config.speculative_config
    if (
        speculative is None
        or not scheduler.num_spec_tokens
        or getattr(scheduler, "num_sampled_tokens_per_step", 1) != 1
    ):
        logger.info("adaptive depth: this model doesn't speculate, so there is nothing to adapt")
        return None
    parallel = config.parallel_config
    try:
        return drafter_of(speculative, parallel.data_parallel_size, parallel.pipeline_parallel_size)
    except ValueError as error:
        logger.info("adaptive depth: %s", error)
        return None


def _control(
    scheduler: Any, drafter: Drafter, tuning: TuningConfig, names: tuple[str, ...], clock: Callable[[], float]
) -> DepthControl:
    config, most = scheduler.vllm_config, int(scheduler.num_spec_tokens)
    asynchronous = bool(config.scheduler_config.async_scheduling)
    start = starting_cost(tuning.cost, config, drafter)
    controller = make_controller(
        tuning,
        cost=cost_for(tuning.cost, start),
        evidence=names,
        identity=identity(config, drafter),
        clock=clock,
    )
    length = int(scheduler.max_model_len)
    texts = MatchedText(int(scheduler.max_num_running_reqs), length) if "matched_length" in names else None
    return DepthControl(
        controller,
        SequenceRequests(length, most, texts),
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


def graph_remark(vllm_config: Any, drafter: Drafter) -> str | None:
    """Say what full CUDA graphs do to a drafter that makes passes; None if nothing can be said.

    Without a Dynamic SD table, vLLM's V2 runner (0.32) captures all passes of the drafter in one graph for K, which
    it replays for any depth over 1. Its V1 runner takes full graphs of K + 1 positions for the target alone.
    """
    mode = getattr(getattr(vllm_config, "compilation_config", None), "cudagraph_mode", None)
    device = getattr(getattr(vllm_config, "device_config", None), "device_type", "cpu")
    table = getattr(vllm_config.speculative_config, "num_speculative_tokens_per_batch_size", None)
    full = getattr(mode, "has_full_cudagraphs", None)
    if device == "cpu" or full is None or table is not None or not drafter.plans_early or not full():
        return None
    return (
        "with full CUDA graphs vLLM may replay the drafter's passes for num_speculative_tokens at any depth over 1, so "
        'that only verification becomes shallower; --compilation-config \'{"cudagraph_mode": "PIECEWISE"}\' lets it '
        "draft less"
    )


def identity(vllm_config: Any, drafter: Drafter) -> dict[str, str]:
    """Names model and drafter, so that nobody takes over what was learned of others."""
    speculative = vllm_config.speculative_config
    model = vllm_config.model_config
    return {
        "model": f"{model.model} {model.dtype}",
        "drafter": f"{drafter.method} {getattr(speculative, 'model', None) or ''}".strip(),
    }
