"""The entry point in ``vllm.general_plugins``: switches adaptive depth on where a tuning file is named."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive_spec.config import TuningConfig

VARIABLE = "ADAPTIVE_SPEC_CONFIG"
SECTION = "adaptive_spec"  # of vLLM's additional_config
TUNING_FILE = "tuning_file"
MAX_DEPTH = "max_depth"  # the tuning's, for those who check requests

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
        If the tuning file is wrong, or asks for what can't be had with this configuration; the server doesn't
        start with settings that nobody wanted.
    """
    from adaptive_spec.metrics_folder import offer_folder
    from adaptive_spec.vllm_plugin.factory import PATH
    from adaptive_spec.vllm_plugin.logs import speak_through_vllm

    speak_through_vllm()
    _check_overrides_before_streams()
    config = create(arguments, *args, **kwargs)
    path = os.path.abspath(os.environ[VARIABLE])
    if config.speculative_config is None:
        logger.warning(
            "%s is set, but vLLM was started without speculative decoding; give it --speculative-config", VARIABLE
        )
        return config
    scheduler = config.scheduler_config
    tuning = _tuning(path, config.speculative_config, bool(scheduler.async_scheduling))
    if scheduler.scheduler_cls not in (None, PATH):
        logger.warning(
            "%s is set, but so is vLLM's scheduler_cls (%s), which stays; name %s there instead",
            VARIABLE, scheduler.scheduler_cls, PATH,
        )  # fmt: skip
        return config
    scheduler.scheduler_cls = PATH
    if isinstance(config.additional_config, dict):  # the path travels; the engine's process reads the file
        config.additional_config[SECTION] = {TUNING_FILE: path, MAX_DEPTH: tuning.max_depth}
    if tuning.learned.file is not None and getattr(config, "shutdown_timeout", None) == 0:
        logger.info(
            "what is learned is saved every %g s; at its end vLLM kills its engine before it can save, unless it is "
            "given --shutdown-timeout, of 10 say", tuning.learned.save_every_seconds
        )  # fmt: skip
    if tuning.metrics.enabled:  # this process answers /metrics, and the engines' are still to be started
        from prometheus_client import REGISTRY

        try:
            offer_folder(REGISTRY)
        except OSError as error:
            logger.warning(
                "adaptive depth goes on without its metrics on /metrics, for want of a temporary folder: %s", error
            )
    return config


def _tuning(path: str, speculative: Any, asynchronous: bool) -> TuningConfig:
    """The tuning as the engine will have it; as it stands in the file where there is nothing to adapt."""
    from adaptive_spec.config import TuningConfig
    from adaptive_spec.vllm_plugin.drafters import drafter_of
    from adaptive_spec.vllm_plugin.vllm_tuning import load_tuning

    try:
        drafter = drafter_of(speculative)
    except ValueError:
        return TuningConfig.load(path)
    return load_tuning(path, speculative.num_speculative_tokens, drafter.evidence(asynchronous))


def _check_overrides_before_streams() -> None:
    """A stream's inputs are processed when its first chunk is asked for, when status 200 is sent: check before."""
    try:
        from vllm.v1.engine.async_llm import AsyncLLM

        _wrap(AsyncLLM, "generate", _with_overrides_checked_at_once)
    except (ImportError, AttributeError) as error:
        logger.warning("adaptive_spec answers wrong overrides of a stream within the stream (%s)", error)


def _with_overrides_checked_at_once(generate: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
    """Check when the generator of a request's outputs is made, not when it is first asked."""
    _check(engine.vllm_config, kwargs.get("sampling_params", args[1] if len(args) > 1 else None))
    return generate(engine, *args, **kwargs)


def _with_checked_overrides(process: Any, processor: Any, *args: Any, **kwargs: Any) -> Any:
    """Check a request where every way into an engine leads by."""
    _check(processor.vllm_config, kwargs.get("params", args[2] if len(args) > 2 else None))
    return process(processor, *args, **kwargs)


def _check(vllm_config: Any, params: Any) -> None:
    """Refuse a request with wrong overrides, as vLLM refuses wrong sampling parameters: HTTP clients get a 400."""
    from adaptive_spec.vllm_plugin.overrides import Overrides

    extra = getattr(params, "extra_args", None)
    if extra:
        try:
            Overrides.parse(extra, _deepest(vllm_config))
        except ValueError as error:
            raise _validation_error(str(error)) from None


def _deepest(vllm_config: Any) -> int | None:
    """Drafts that a request may have at most: by the tuning, which can't change it at run time, and by vLLM's K."""
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is None:
        return None
    most: int = speculative.num_speculative_tokens
    additional = getattr(vllm_config, "additional_config", None)
    own = additional.get(SECTION, {}).get(MAX_DEPTH) if isinstance(additional, dict) else None
    return most if own is None else min(most, own)


def _validation_error(message: str) -> Exception:
    try:
        from vllm.exceptions import VLLMValidationError
    except ImportError:  # before vLLM 0.30 or so a ValueError did as well
        return ValueError(message)
    error: Exception = VLLMValidationError(message)  # the message names the key
    return error
