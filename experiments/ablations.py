"""Ablations: roofline-budget with one of its parts taken away, to see what that part brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.config import PolicyConfig, TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost.base import StepCost
from adaptive_spec.experiments.baselines.dspark import admit
from adaptive_spec.policies.roofline_budget import RooflineBudget
from adaptive_spec.policy import Allocation, SurvivalEstimate
from adaptive_spec.replay.controllers import ControllerFactory, ReplaySetting, TunedController
from adaptive_spec.step import FloatArray, IntArray, StepView
from adaptive_spec.survival import SURVIVAL_FLOOR, Survival

Ablation = Callable[[TuningConfig], ControllerFactory]


def ablations() -> dict[str, Ablation]:
    """Every ablation by name; each takes a tuning, and returns what makes a run's controller.

    =========================== ==================================================================================
    name                        what is other than in ``roofline-budget``
    =========================== ==================================================================================
    without-exploration         no ledger: no probes, and the guard has no off-steps to pay from it
    without-evidence            the acceptance model sees none of the drafter's evidence, nor the sequence's age
    without-sequence-effect     the acceptance model has no level for each sequence
    product-of-means            survival is the product of mean acceptances, not the mean of their product
    monotone-curve              the step-cost curve is forced never to fall: its running maximum is priced
    early-stop                  slots are bought in order until the first that lowers goodput (DSpark's Algorithm 1)
    without-skipping-draft      the drafter is kept running: every step drafts one deep at least, and knows it
    without-draft-cost          drafting is taken to be free, whatever it costs
    without-guard               neither guard nor watchdog
    without-guard-or-draft-cost both; the guard would switch off what takes drafting for free and loses by it
    run-horizon                 slots are bought at the running goodput, and not at the step's own
    =========================== ==================================================================================
    """
    return {
        "without-exploration": lambda tuning: _tuned(tuning, exploration={"enabled": False}),
        "without-evidence": lambda tuning: _tuned(tuning, acceptance={"evidence": ()}),
        "without-sequence-effect": lambda tuning: _tuned(tuning, acceptance={"sequence_effect": False}),
        "product-of-means": lambda tuning: _MarginalController(tuning),
        "monotone-curve": lambda tuning: _OtherPolicy(tuning, MonotoneCurve),
        "early-stop": lambda tuning: _OtherPolicy(tuning, EarlyStop),
        "without-skipping-draft": lambda tuning: _OtherPolicy(tuning, KeptDrafting),
        "without-draft-cost": lambda tuning: _OtherPolicy(tuning, DraftTakenForFree),
        "without-guard": lambda tuning: TunedController(_with_policy(_unguarded(tuning))),
        "without-guard-or-draft-cost": lambda tuning: _OtherPolicy(_unguarded(tuning), DraftTakenForFree),
        "run-horizon": lambda tuning: TunedController(_with_policy(tuning, horizon="run")),
    }


# -------------------------------------------------------------------- by the tuning


def _with_policy(tuning: TuningConfig, **arguments: Any) -> TuningConfig:
    return tuning.model_copy(update={"mode": "on", "policy": PolicyConfig(name="roofline-budget", **arguments)})


def _with_sections(tuning: TuningConfig, **sections: dict[str, Any]) -> TuningConfig:
    changed = {name: getattr(tuning, name).model_copy(update=update) for name, update in sections.items()}
    return tuning.model_copy(update=changed)


def _tuned(tuning: TuningConfig, **sections: dict[str, Any]) -> ControllerFactory:
    return TunedController(_with_policy(_with_sections(tuning, **sections)))


def _unguarded(tuning: TuningConfig) -> TuningConfig:
    return _with_sections(tuning, guard={"enabled": False}, watchdog={"enabled": False})


# -------------------------------------------------------------------- by the estimate


class MarginalSurvival(Survival):
    """Survival as the product of the marginal acceptances, as if a sequence's drafts were independent of each other.

    That who survives to position k is a sequence of high u is forgotten, so deep drafts are under-estimated.
    """

    def _integrate(self, odds_against: FloatArray) -> FloatArray:
        """Product over positions of the mean over u."""
        integrate = super()._integrate
        marginal = np.concatenate([integrate(row[None].copy()) for row in odds_against], axis=1)  # [B, K]
        product: FloatArray = np.multiply.accumulate(marginal.T, axis=0)
        return np.maximum(product, SURVIVAL_FLOOR).T


class MarginalAcceptance(AcceptanceModel):
    """An acceptance model that estimates by :class:`MarginalSurvival`."""

    def estimate(self, row: IntArray, cell: IntArray) -> Survival:
        """As the base, but the product of means."""
        if self.effect is None:
            return MarginalSurvival(self.population, cell, None, None)
        return MarginalSurvival(self.population, cell, *self.effect.posterior(row))


class _MarginalController:
    def __init__(self, tuning: TuningConfig) -> None:
        self.tuning = _with_policy(tuning)

    def __call__(self, setting: ReplaySetting) -> Controller:
        controller = TunedController(self.tuning)(setting)
        arguments = self.tuning.acceptance.model_dump(exclude={"evidence"})
        controller.acceptance = MarginalAcceptance(controller.max_depth, controller.acceptance.evidence, **arguments)
        return controller


# -------------------------------------------------------------------- by the policy


class _OtherPolicy:
    """The controller of a tuning with a policy that no entry point names."""

    def __init__(self, tuning: TuningConfig, policy: type[RooflineBudget]) -> None:
        self.tuning = _with_policy(tuning)
        self.policy = policy

    def __call__(self, setting: ReplaySetting) -> Controller:
        controller = TunedController(self.tuning)(setting)
        controller.policy = self.policy()
        controller.policy.reset(controller.max_depth, setting.seed)
        return controller


class _Seen(StepCost):
    """A cost as somebody sees it who is wrong about one thing; what is observed goes to nobody."""

    def __init__(self, cost: StepCost) -> None:
        self.cost = cost

    def verify(self, positions: IntArray, context: float, sequences: int) -> FloatArray:
        return self.cost.verify(positions, context, sequences)

    def verify_range(self, first: int, count: int, context: float, sequences: int) -> FloatArray:
        return self.cost.verify_range(first, count, context, sequences)

    def draft(self, depth: IntArray, sequences: int, lag: int = 0) -> FloatArray:
        return self.cost.draft(depth, sequences, lag)


class _Monotone(_Seen):
    def verify_range(self, first: int, count: int, context: float, sequences: int) -> FloatArray:
        whole: FloatArray = np.maximum.accumulate(self.cost.verify_range(1, first + count - 1, context, sequences))
        return whole[first - 1 :]


class _Drafting(_Seen):
    def draft(self, depth: IntArray, sequences: int, lag: int = 0) -> FloatArray:
        return self.cost.draft(np.maximum(depth, 1), sequences, lag)


class _FreeDraft(_Seen):
    def draft(self, depth: IntArray, sequences: int, lag: int = 0) -> FloatArray:
        return np.zeros(len(depth))


class MonotoneCurve(RooflineBudget):
    """Prices the running maximum of the step-cost curve, as vLLM's adaptive verification does."""

    def _allocate(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        assert cost is not None  # decide() saw to it
        return super()._allocate(view, acceptance, _Monotone(cost))


class DraftTakenForFree(RooflineBudget):
    """Leaves what drafting costs out of the objective."""

    def _allocate(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        assert cost is not None  # decide() saw to it
        choice = super()._allocate(view, acceptance, _FreeDraft(cost))
        choice.expected_seconds = float("nan")  # the controller knows better
        return choice


class KeptDrafting(RooflineBudget):
    """Keeps the drafter running: it drafts one deep even where nothing is verified."""

    def _allocate(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        assert cost is not None  # decide() saw to it
        choice = super()._allocate(view, acceptance, _Drafting(cost))
        choice.draft_depth = max(1, choice.draft_depth or 0)
        return choice


class EarlyStop(RooflineBudget):
    """Buys slots by falling worth, and stops at the first that doesn't raise goodput; drafting deeper is priced."""

    def _allocate(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        assert cost is not None  # decide() saw to it
        sequences, survival = view.sequences, acceptance.mean()
        offered = np.arange(survival.shape[1]) < view.limit[:, None]
        order = np.argsort(-np.where(offered, survival, -1.0), axis=None, kind="stable")[: int(offered.sum())]
        deepest = np.maximum.accumulate(np.concatenate(([0], order % survival.shape[1] + 1)))
        seconds = cost.verify_range(view.base_positions, len(deepest), view.total_context, sequences)
        seconds = seconds + cost.draft(self.depths_, sequences, view.lag)[deepest]
        return Allocation(admit(survival, view.limit, view.base_tokens, 1.0 / seconds))
