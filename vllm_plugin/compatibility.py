"""Whether this vLLM still has every attribute and signature that the plugin touches."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

OLDEST = (0, 28)

# Methods that are overridden, and the parameters that they are called with by name or place.
_METHODS: dict[str, tuple[str, ...]] = {
    "schedule": (),
    "_update_after_schedule": ("scheduler_output",),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "update_draft_token_ids": ("draft_token_ids",),
    "add_request": ("request",),
    "_free_request": ("request",),
    "get_num_unfinished_requests": (),
    "shutdown": (),
}
# Set by a constructor, so that no class attribute shows them.
_SCHEDULER = (
    "requests", "running", "waiting", "vllm_config", "num_spec_tokens", "dynamic_sd_lookup", "max_model_len",
    "max_num_scheduled_tokens", "max_num_running_reqs",
)  # fmt: skip
_REQUEST = (
    "request_id", "sampling_params", "max_tokens", "num_prompt_tokens", "num_tokens", "num_output_tokens",
    "num_computed_tokens", "num_output_placeholders", "spec_token_ids", "is_prefill_chunk",
    "all_token_ids",
)  # fmt: skip
_SCHEDULER_OUTPUT = (
    "num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_spec_decode_tokens", "scheduled_new_reqs",
    "scheduled_cached_reqs", "preempted_req_ids", "num_spec_tokens_to_schedule", "num_invalid_spec_tokens",
)  # fmt: skip
_RESULTS = ("req_ids", "req_id_to_index", "sampled_token_ids")
_SPECULATIVE = ("method", "num_speculative_tokens")


def missing() -> list[str]:
    """What the plugin needs and the installed vLLM lacks, each in words; empty if all is there."""
    try:
        import vllm
        from vllm.config import SpeculativeConfig
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request
    except ImportError as error:
        return [f"vLLM's scheduler can't be imported: {error}"]
    problems = _too_old(str(vllm.__version__))
    if not issubclass(AsyncScheduler, Scheduler):
        problems.append("AsyncScheduler is no longer a Scheduler")
    for cls in (Scheduler, AsyncScheduler):
        problems += _methods(cls)
    problems += _instance_attributes(Scheduler, _SCHEDULER)
    problems += _instance_attributes(Request, _REQUEST)
    problems += _fields(SchedulerOutput, _SCHEDULER_OUTPUT)
    problems += _fields(CachedRequestData, ("resumed_req_ids",))
    problems += _fields(NewRequestData, ("req_id",))
    problems += _fields(ModelRunnerOutput, _RESULTS)
    problems += _fields(SpeculativeConfig, _SPECULATIVE)
    return problems


def _too_old(version: str) -> list[str]:
    """vllm.__version__ is asked: distributions of vLLM bear several names."""
    parts = version.split(".")[:2]
    if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < OLDEST:
        return [f"vLLM is {version}; {OLDEST[0]}.{OLDEST[1]} or later is needed"]
    return []


def _methods(cls: type) -> list[str]:
    problems = []
    for name, wanted in _METHODS.items():
        method = getattr(cls, name, None)
        if not callable(method):
            problems.append(f"{cls.__name__} has no method {name}")
            continue
        parameters = list(inspect.signature(method).parameters)[1:]
        if tuple(parameters[: len(wanted)]) != wanted:
            problems.append(f"{cls.__name__}.{name} takes ({', '.join(parameters)}), not ({', '.join(wanted)}, ...)")
    return problems


def _instance_attributes(cls: type, names: Iterable[str]) -> list[str]:
    """Attributes are there if the class has them, or a constructor names them."""
    named: set[str] = set()
    for base in cls.__mro__:
        constructor = base.__dict__.get("__init__")
        code = getattr(constructor, "__code__", None)
        if code is not None:
            named.update(code.co_names)
    return [f"{cls.__name__} has no {name}" for name in names if name not in named and not hasattr(cls, name)]


def _fields(cls: Any, names: Iterable[str]) -> list[str]:
    known = set(getattr(cls, "__dataclass_fields__", ())) | set(getattr(cls, "__annotations__", ())) | set(dir(cls))
    return [f"{cls.__name__} has no {name}" for name in names if name not in known]
