"""The peers as baselines, one file each, and the yardsticks that know more than an engine can."""

from __future__ import annotations

from collections.abc import Callable

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

__all__ = ["Factory", "Offline", "baselines", "shortest_path"]

Factory = Callable[[Offline, ReplaySetting], DepthPolicy]


def baselines(max_depth: int) -> dict[str, Factory]:
    """Every baseline by name, each as its maker has it; a factory tunes what the maker's users would tune.

    A factory takes what was there to tune on, and the replay's setting: from it comes the machine's true cost, on
    which tables are tuned, and what the yardsticks ``clairvoyant`` and ``signal-ceiling`` foresee. All are policies
    with ``explores = False``: exploration, the guard and the watchdog leave them alone, whatever a tuning file
    says, as their makers have none of these. In a replay::

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
        "dynamic-sd": lambda given, setting: DynamicSD(
            tune(given.training, setting.machine.cost, given.max_depth, given.batch_sizes, given.context)
        ),
        "adaptive-verification": lambda given, setting: AdaptiveVerification(given.confidence),
        "dspark-early-stop": lambda given, setting: DSparkEarlyStop(given.confidence),
        "turbospec": lambda given, setting: TurboSpec(),
        "sglang-ema": lambda given, setting: SGLangEMA(),
        "sglang-ema-by-batch": lambda given, setting: SGLangEMA(BY_BATCH_SIZE),
        "trtllm-schedule": lambda given, setting: TensorRTSchedule(),
        "mlc-table": lambda given, setting: MLCTable(),
        "hf-heuristic": lambda given, setting: HFHeuristic(),
        "hf-confidence": lambda given, setting: HFConfidence(given.confidence),
        "banditspec-ucb": lambda given, setting: UCBSpec(),
        "banditspec-exp3": lambda given, setting: EXP3Spec(),
        "clairvoyant": lambda given, setting: Clairvoyant(setting.present_runs),
        "signal-ceiling": lambda given, setting: SignalCeiling(given.survival, setting.present_places),
    }


def _fixed(depth: int) -> Factory:
    return lambda given, setting: Fixed(depth)
