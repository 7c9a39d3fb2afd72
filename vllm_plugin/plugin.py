"""The entry point in ``vllm.general_plugins``: switches adaptive depth on where a tuning file is named."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

VARIABLE = "ADAPTIVE_SPEC_CONFIG"
SECTION = "adaptive_spec"  # of vLLM's additional_config
TUNING_FILE = "tuning_file"

logger = logging.getLogger(__name__)


def register() -> None:
    """Let vLLM use the tuning file that ``ADAPTIVE_SPEC_CONFIG`` names; without it, touch nothing.

    vLLM calls this in every process, the API server's, the engine's and the workers', and may call it again.
    """
    if not os.environ.get(VARIABLE):
        return
    from vllm.engine.arg_utils import EngineArgs

    _wrap(EngineArgs, "create_engine_config", _with_adaptive_scheduler)
    try:
        from vllm.v1.engine.input_processor import InputProcessor

        _wrap(InputProcessor, "process_inputs", _with_checked_overrides)
    except (ImportError, AttributeError) as error:
        logger.warning(
            "adaptive_spec can't check requests' overrides where they come in (%s); wrong ones are ignored", error
        )


def _wrap(cls: type, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(cls, name)
    if getattr(original, "wrapped_by_adaptive_spec", False):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    method.wrapped_by_adaptive_spec = True  # type: ignore[attr-defined]
    setattr(cls, name, method)


def _with_adaptive_scheduler(create: Any, arguments: Any, *args: Any, **kwargs: Any) -> Any:
    """Make vLLM's configuration, and name the adaptive scheduler in it.

    Raises
    ------
    adaptive_spec.config.TuningError
        If the tuning file is wrong; the server doesn't start with settings that nobody wanted.
    """
    from adaptive_spec.config import TuningConfig
    from adaptive_spec.metrics_folder import offer_folder
    from adaptive_spec.vllm_plugin.factory import PATH
    from adaptive_spec.vllm_plugin.logs import speak_through_vllm

    speak_through_vllm()
    config = create(arguments, *args, **kwargs)
    path = os.path.abspath(os.environ[VARIABLE])
    if config.speculative_config is None:
        logger.warning(
            "%s is set, but vLLM was started without speculative decoding; give it --speculative-config", VARIABLE
        )
        return config
    tuning = TuningConfig.load(path)
    scheduler = config.scheduler_config
    if scheduler.scheduler_cls not in (None, PATH):
        logger.warning(
            "%s is set, but so is vLLM's scheduler_cls (%s), which stays; name %s there instead",
            VARIABLE, scheduler.scheduler_cls, PATH,
        )  # fmt: skip
        return config
    scheduler.scheduler_cls = PATH
    if isinstance(config.additional_config, dict):  # the path travels; the engine's process reads the file
        config.additional_config[SECTION] = {TUNING_FILE: path}
    if tuning.metrics.enabled:  # this process answers /metrics, and the engines' are still to be started
        from prometheus_client import REGISTRY

        offer_folder(REGISTRY)
    return config


def _with_checked_overrides(process: Any, processor: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse a request with wrong overrides, as vLLM refuses wrong sampling parameters: HTTP clients get a 400."""
    from adaptive_spec.vllm_plugin.overrides import Overrides

    params = kwargs.get("params", args[2] if len(args) > 2 else None)
    extra = getattr(params, "extra_args", None)
    if extra:
        speculative = getattr(processor.vllm_config, "speculative_config", None)
        try:
            Overrides.parse(extra, None if speculative is None else speculative.num_speculative_tokens)
        except ValueError as error:
            raise _validation_error(str(error)) from None
    return process(processor, *args, **kwargs)


def _validation_error(message: str) -> Exception:
    try:
        from vllm.exceptions import VLLMValidationError
    except ImportError:  # before vLLM 0.30 or so a ValueError did as well
        return ValueError(message)
    error: Exception = VLLMValidationError(message, parameter="extra_args")
    return error
