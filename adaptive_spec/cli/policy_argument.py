"""A policy as it is written on a command line, and lists of them."""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_spec import policy_argument
from adaptive_spec.cli.failure import UsageError
from adaptive_spec.config import TuningConfig
from adaptive_spec.policy_argument import SYNTAX

__all__ = ["SYNTAX", "fixed_depth", "split_list", "tuning_for", "unique"]


def tuning_for(argument: str, base: TuningConfig | None = None) -> TuningConfig:
    """See :func:`adaptive_spec.policy_argument.tuning_for`; UsageError for its ValueError."""
    try:
        return policy_argument.tuning_for(argument, base)
    except ValueError as error:
        raise UsageError(str(error)) from error


def fixed_depth(argument: str, base: TuningConfig | None = None) -> int | None:
    """See :func:`adaptive_spec.policy_argument.fixed_depth`; UsageError for its ValueError."""
    try:
        return policy_argument.fixed_depth(argument, base)
    except ValueError as error:
        raise UsageError(str(error)) from error


def split_list(text: str) -> list[str]:
    """Split a list at its commas, but not at those within brackets."""
    parts, level = [""], 0
    for character in text:
        level += (character in "[{(") - (character in "]})")
        if character == "," and level == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def unique(arguments: Sequence[str]) -> list[str]:
    """The arguments, each once, in their order."""
    return list(dict.fromkeys(arguments))
