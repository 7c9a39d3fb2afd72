"""What a step of vLLM costs before any was observed: from a file, or worked out for the machine and the model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from adaptive_spec.config import CostConfig
from adaptive_spec.cost import DraftCost, ModelGeometry, Online, Profile, Roofline, StepCost, hardware
from adaptive_spec.cost.factor import LOCAL_DEVIATION
from adaptive_spec.deployment import MEASURED_DEVIATION
from adaptive_spec.tuning_file import TuningError
from adaptive_spec.vllm_plugin.drafters import Drafter

T = TypeVar("T")
logger = logging.getLogger(__name__)

# What a device calls itself, and its entry of the hardware table; the first that fits counts.
_DEVICES = (
    ("H200", "H200-SXM"), ("H100", "H100-SXM"), ("A100", "A100-SXM-80GB"), ("B200", "B200"), ("MI300X", "MI300X"),
    ("4090", "RTX-4090"),
)  # fmt: skip
_OTHER_GPU = "A100-SXM-80GB"


def starting_cost(config: CostConfig, vllm_config: Any, drafter: Drafter) -> StepCost:
    """The cost model to begin with, without any correction.

    A scheduler can't time passes of its own, so `source: profile` stands for the machine's roofline here, and
    observed steps make a profile of it. A factor that is wrong for all numbers of positions alike changes no
    decision; where the knee lies is learned within some hundred steps. `source: file` skips that; where such a
    profile says nothing of a drafter that makes passes, one of them is to the target's what it is by the roofline.

    Raises
    ------
    TuningError
        If a file or a machine that the tuning names can't be used.
    """
    profile = None
    if config.source == "file":
        assert config.file is not None  # the tuning's own check
        profile = _named("file", Profile.from_file, config.file)
        if not drafter.costs_by_depth or profile.draft_cost != DraftCost.free():
            return profile
    if config.hardware is not None:
        name, machine = config.hardware, _named("hardware", hardware, config.hardware)
    else:
        name = device_entry(vllm_config)
        machine = hardware(name)
    dtype = config.dtype or _dtype(vllm_config.model_config)
    if dtype not in machine.flops_per_second:
        dtype = next(iter(machine.flops_per_second))
    if config.geometry_file is not None:
        geometry = _named("geometry_file", ModelGeometry.from_config, config.geometry_file)
    else:
        geometry = geometry_of(vllm_config.model_config)
    if profile is not None:
        # The machine may run on another scale than its roofline; what a draft's pass is to the target's stays.
        scale = _one_pass(profile) / _one_pass(Roofline(machine, geometry, dtype))
        return profile.with_draft_cost(_draft_cost(vllm_config, name, dtype, geometry, scale))
    draft = DraftCost.free()
    if drafter.costs_by_depth:
        draft = _draft_cost(vllm_config, name, dtype, geometry)
    return Roofline(machine, geometry, dtype, config.smoothing_share, draft_cost=draft)


def cost_for(config: CostConfig, start: StepCost) -> StepCost:
    """The cost model that decisions are made with: the starting one, corrected by observed steps."""
    if not config.online.enabled:
        return start
    deviation = MEASURED_DEVIATION if config.source == "file" else LOCAL_DEVIATION
    return Online(start, memory_steps=config.online.memory_steps, local_deviation=deviation)


def device_entry(vllm_config: Any) -> str:
    """Entry of the hardware table for the device that vLLM runs on, or the nearest thing, which is logged."""
    kind = vllm_config.device_config.device_type
    if kind == "cpu":
        return "generic-CPU"
    from vllm.platforms import current_platform

    name = str(current_platform.get_device_name())
    for part, entry in _DEVICES:
        if part in name:
            return entry
    logger.warning(
        "the hardware table has no %s; its cost is begun with as %s and corrected by observed steps. Set "
        "cost.source: roofline with cost.hardware, or a saved profile, for a better start.",
        name, _OTHER_GPU,
    )  # fmt: skip
    return _OTHER_GPU


def geometry_of(model_config: Any) -> ModelGeometry:
    """Geometry of a loaded model; of an architecture that isn't known, a dense decoder of its size."""
    text = model_config.hf_text_config
    try:
        return ModelGeometry.from_config(text.to_dict())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        hidden = int(getattr(text, "hidden_size", 4096))
        layers = int(getattr(text, "num_hidden_layers", 32))
        vocabulary = int(getattr(text, "vocab_size", 32000))
        inner = int(getattr(text, "intermediate_size", None) or 4 * hidden)
        logger.info("adaptive depth: the cost begins with a dense decoder of this size (%s)", error)
        parameters = layers * (4 * hidden * hidden + 3 * hidden * inner) + vocabulary * hidden
        return ModelGeometry.dense(parameters, 2 * layers * hidden, 4 * layers * hidden)


def _named(key: str, read: Callable[[Any], T], value: Any) -> T:
    """Read what the tuning names; whatever is wrong with it is the tuning's fault."""
    try:
        return read(value)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise TuningError(f"cost.{key}: {value} can't be used: {error}") from error


def _draft_cost(vllm_config: Any, machine: str, dtype: str, target: ModelGeometry, scale: float = 1.0) -> DraftCost:
    """One pass of the draft model for each token of depth; the first one is made even at depth 0.

    vLLM's draft models, EAGLE and MTP run once in every step, to keep their KV cache in step with the target's.
    A pass takes `scale` times what the roofline says.
    """
    draft_config = getattr(vllm_config.speculative_config, "draft_model_config", None)
    geometry = target if draft_config is None else geometry_of(draft_config)
    each = scale * _one_pass(Roofline(hardware(machine), geometry, dtype))
    return DraftCost(idle=(each,), start=(0.0,), each=(each,))


def _one_pass(cost: StepCost) -> float:
    """Seconds of a pass over one position."""
    return float(cost.verify_range(1, 1, 0.0, 1)[0])


def _dtype(model_config: Any) -> str:
    return str(model_config.dtype).removeprefix("torch.")
