"""The peers as baselines, one file each, and the yardsticks that know more than an engine can."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from adaptive_spec.experiments.baselines.adaptive_verification import AdaptiveVerification
from adaptive_spec.experiments.baselines.banditspec import EXP3Spec, UCBSpec
from adaptive_spec.experiments.baselines.clairvoyant import Clairvoyant
from adaptive_spec.experiments.baselines.dspark import DSparkEarlyStop
from adaptive_spec.experiments.baselines.dynamic_sd import DynamicSD, tune
from adaptive_spec.experiments.baselines.hf_confidence import HFConfidence
from adaptive_spec.experiments.baselines.hf_heuristic import HFHeuristic
from adaptive_spec.experiments.baselines.mlc_table import MLCTable
from adaptive_spec.experiments.baselines.offline import Offline
from adaptive_spec.experiments.baselines.sglang_ema import BY_BATCH_SIZE, SGLangEMA
from adaptive_spec.experiments.baselines.shortest_path import shortest_path
from adaptive_spec.experiments.baselines.signal_ceiling import SignalCeiling
from adaptive_spec.experiments.baselines.trtllm_schedule import TensorRTSchedule
from adaptive_spec.experiments.baselines.turbospec import TurboSpec
from adaptive_spec.policies.fixed import Fixed
from adaptive_spec.policy import DepthPolicy
from adaptive_spec.replay.controllers import ReplaySetting

__all__ = ["Factory", "Offline", "baselines", "parameters_of", "reads_confidence", "shortest_path"]

Factory = Callable[..., DepthPolicy]  # of an Offline, a ReplaySetting, and arguments by name

_CLASSES: dict[str, type[DepthPolicy]] = {
    "dynamic-sd": DynamicSD,
    "adaptive-verification": AdaptiveVerification,
    "dspark-early-stop": DSparkEarlyStop,
    "turbospec": TurboSpec,
    "sglang-ema": SGLangEMA,
    "sglang-ema-by-batch": SGLangEMA,
    "trtllm-schedule": TensorRTSchedule,
    "mlc-table": MLCTable,
    "hf-heuristic": HFHeuristic,
    "hf-confidence": HFConfidence,
    "banditspec-ucb": UCBSpec,
    "banditspec-exp3": EXP3Spec,
    "clairvoyant": Clairvoyant,
    "signal-ceiling": SignalCeiling,
}
_GIVEN = ("confidence", "present_runs", "survival", "present_places")  # by the replay, and by nobody else


def baselines(max_depth: int) -> dict[str, Factory]:
    """Every baseline by name, each as its maker has it; a factory tunes what the maker's users would tune.

    A factory takes what was there to tune on, and the replay's setting: from it comes the machine's true cost, on
    which tables are tuned, and what the yardsticks ``clairvoyant`` and ``signal-ceiling`` foresee. Parameters that the
    maker's users may set (:func:`parameters_of`) are further arguments. All are policies with ``explores = False``:
    exploration, the guard and the watchdog leave them alone, whatever a tuning file says, as their makers have none
    of these. In a replay::

        BareController(lambda setting: factory(offline, setting), offline.max_depth)

    Parameters
    ----------
    max_depth : int
        K; there is one ``fixed-k`` for each depth 1..K.
    """
    fixed: dict[str, Factory] = {f"fixed-{k}": _fixed(k) for k in range(1, max_depth + 1)}
    return {
        "none": _fixed(0),
        **fixed,
        "dynamic-sd": _dynamic_sd,
        "adaptive-verification": lambda given, setting, **own: AdaptiveVerification(given.confidence, **own),
        "dspark-early-stop": lambda given, setting, **own: DSparkEarlyStop(given.confidence, **own),
        "turbospec": _turbospec,
        "sglang-ema": lambda given, setting, **own: SGLangEMA(**own),
        "sglang-ema-by-batch": lambda given, setting, **own: SGLangEMA(**{"tiers": BY_BATCH_SIZE, **own}),
        "trtllm-schedule": lambda given, setting, **own: TensorRTSchedule(**own),
        "mlc-table": lambda given, setting, **own: MLCTable(**own),
        "hf-heuristic": lambda given, setting, **own: HFHeuristic(**own),
        "hf-confidence": lambda given, setting, **own: HFConfidence(given.confidence, **own),
        "banditspec-ucb": lambda given, setting, **own: UCBSpec(**own),
        "banditspec-exp3": lambda given, setting, **own: EXP3Spec(**own),
        "clairvoyant": lambda given, setting: Clairvoyant(setting.present_runs),
        "signal-ceiling": lambda given, setting: SignalCeiling(given.survival, setting.present_places),
    }


def parameters_of(name: str) -> list[str]:
    """The parameters of a baseline that may be set, in its class's order."""
    return [key for key in _signature(name) if key not in _GIVEN]


def reads_confidence(name: str) -> bool:
    """Whether a baseline needs a draft's confidence, for which it gets the stand-in of :attr:`Offline.confidence`."""
    return "confidence" in _signature(name)


def _signature(name: str) -> list[str]:
    return list(inspect.signature(_CLASSES[name]).parameters) if name in _CLASSES else []


def _fixed(depth: int) -> Factory:
    return lambda given, setting: Fixed(depth)


def _dynamic_sd(given: Offline, setting: ReplaySetting, **own: Any) -> DynamicSD:
    if own:
        return DynamicSD(**own)
    return DynamicSD(tune(given.training, setting.machine.cost, given.max_depth, given.batch_sizes, given.context))


def _turbospec(given: Offline, setting: ReplaySetting, **own: Any) -> TurboSpec:
    """As its n-gram path has it where the drafter looks drafts up: off counts for what it is."""
    return TurboSpec(**({"off_factor": 1.0} if given.ngram else {}) | own)
