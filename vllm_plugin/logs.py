"""Where the package's log goes inside vLLM: to vLLM's own handlers, which it gives to its own loggers only."""

from __future__ import annotations

import logging


def speak_through_vllm() -> None:
    """Give the loggers of this package the handlers and the level of vLLM's, once in a process."""
    ours, vllm = logging.getLogger("adaptive_spec"), logging.getLogger("vllm")
    for handler in vllm.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
    if vllm.handlers and ours.level == logging.NOTSET:
        ours.setLevel(vllm.getEffectiveLevel())
