"""Builds the controller and the cost model that a tuning file describes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.config import CostConfig, TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import DraftCost, ModelGeometry, Online, Profile, Roofline, StepCost, hardware
from adaptive_spec.cost.factor import LOCAL_DEVIATION
from adaptive_spec.evidence import EvidenceFeature
from adaptive_spec.explore import Ledger
from adaptive_spec.fallback import Fallback
from adaptive_spec.guard import Guard, Watchdog

MEASURED_DEVIATION = 0.15  # in logs: what a profile, measured on this machine, may be off along the curve


def make_controller(
    tuning: TuningConfig,
    *,
    cost: StepCost | None,
    evidence: Sequence[str | EvidenceFeature] = (),
    identity: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Controller:
    """Build the controller that a tuning file describes.

    Parameters
    ----------
    tuning : TuningConfig
        The deployment's settings.
    cost : StepCost, optional
        What a step costs, measured or computed by the engine.
    evidence : sequence of str or EvidenceFeature
        The evidence columns that the engine's drafter reports, in order.
    identity : mapping of str to str, optional
        Names the target model and the drafter.
    clock : callable
        Seconds.
    """
    ledger = Ledger(**_arguments(tuning.exploration)) if tuning.exploration.enabled else None
    budget = tuning.fallback
    controller = Controller(
        tuning.policy.make(tuning.max_depth, tuning.seed),
        AcceptanceModel(tuning.max_depth, evidence, **_arguments(tuning.acceptance)),
        cost=cost,
        ledger=ledger,
        guard=Guard(ledger or Ledger(0.0, 0.0), clock=clock, **_arguments(tuning.guard))
        if tuning.guard.enabled
        else None,
        watchdog=Watchdog(**_arguments(tuning.watchdog)) if tuning.watchdog.enabled else None,
        fallback=Fallback(
            budget.depth,
            budget.time_budget_ms / 1e3,
            budget.bench_after_faults,
            budget.retry_after_steps,
            clock=clock,
        ),
        identity=identity,
        seed=tuning.seed,
        clock=clock,
    )
    controller.enabled = tuning.mode != "off"
    return controller


def wants_cost(tuning: TuningConfig) -> bool:
    """Whether a tuning has use for a cost model: its policy, or the guard and the exploration beside it."""
    policy = tuning.policy.make(tuning.max_depth, tuning.seed)
    return policy.needs_cost or (policy.explores and (tuning.guard.enabled or tuning.exploration.enabled))


def retune(controller: Controller, tuning: TuningConfig) -> list[str]:
    """Let a running controller go on by other settings, between any two steps.

    Parameters
    ----------
    controller : Controller
        Keeps its sequences, its steps in flight and what it has learned.
    tuning : TuningConfig
        The new settings, of the same `max_depth`.

    Returns
    -------
    list of str
        The parts of the controller that begin anew, since what was learned says nothing to them.

    Raises
    ------
    ValueError
        If the controller can't go on by them; it is then as it was.
    """
    if controller.cost is None and wants_cost(tuning):
        raise ValueError(
            f"policy: {tuning.policy.name!r}, or the guard and exploration beside it, needs a cost model, and the "
            "engine was started without one; restart it to have its passes timed"
        )
    fresh = make_controller(
        tuning,
        cost=controller.cost,
        evidence=controller.acceptance.evidence,
        identity=controller.identity,
        clock=controller.clock,
    )
    return controller.adopt(fresh)


def _arguments(section: BaseModel) -> dict[str, Any]:
    """The constructor arguments that a section of the tuning file holds, which bear the same names."""
    return section.model_dump(exclude={"enabled", "evidence"})


def make_cost(
    config: CostConfig,
    *,
    measure: Callable[[], StepCost],
    geometry: ModelGeometry | None = None,
    draft_cost: DraftCost | None = None,
) -> StepCost:
    """Build the cost model that a tuning file describes.

    Parameters
    ----------
    config : CostConfig
        The tuning file's section.
    measure : callable
        Times the engine's own passes, for ``source: profile``.
    geometry : ModelGeometry, optional
        The loaded model's, for ``source: roofline`` without a file of its own.
    draft_cost : DraftCost, optional
        What drafting costs, except where the profile says it; free if None.

    Raises
    ------
    ValueError
        If a file doesn't hold what it should, or the geometry is missing.
    """
    base: StepCost
    if config.source == "profile":
        base = measure()
    elif config.source == "file":
        assert config.file is not None  # the tuning's own check
        base = Profile.from_file(config.file)
    else:
        assert config.hardware is not None
        if config.geometry_file is not None:
            geometry = ModelGeometry.from_config(config.geometry_file)
        if geometry is None:
            raise ValueError(
                "cost source roofline needs the model's geometry; set cost.geometry_file to its config.json"
            )
        base = Roofline(
            hardware(config.hardware),
            geometry,
            config.dtype or "bfloat16",
            config.smoothing_share,
            draft_cost=draft_cost,
        )
    if draft_cost is not None and isinstance(base, Profile) and base.draft_cost == DraftCost.free():
        base = base.with_draft_cost(draft_cost)
    if not config.online.enabled:
        return base
    deviation = LOCAL_DEVIATION if config.source == "roofline" else MEASURED_DEVIATION
    return Online(base, memory_steps=config.online.memory_steps, local_deviation=deviation)
