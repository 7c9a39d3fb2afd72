"""A policy as it is written in one word, on a command line or in a list, and the tuning that it stands for."""

from __future__ import annotations

import inspect

import yaml
from pydantic import ValidationError

from adaptive_spec.config import TuningConfig
from adaptive_spec.policy import policy_class, policy_names

NONE = "none"
SYNTAX = "none, or a policy's name, with arguments as in fixed:4 or roofline-budget:horizon=run"

# A table for whoever has tuned none: deep while few sequences decode, off when many do.
DEFAULT_TABLE = ((1, 4, 8), (5, 16, 4), (17, 32, 2), (33, None, 0))


def tuning_for(argument: str, base: TuningConfig | None = None) -> TuningConfig:
    """Return `base` with the policy that one word names.

    Parameters
    ----------
    argument : str
        ``none`` (no speculation), ``NAME``, ``NAME:VALUE`` (the first argument of the policy) or
        ``NAME:KEY=VALUE;KEY=VALUE``; values are YAML. A bare ``NAME`` that is the policy of `base` keeps its arguments.
    base : TuningConfig, optional
        All other settings.

    Raises
    ------
    ValueError
        If there is no such policy, or it can't serve with these arguments.
    """
    base = TuningConfig() if base is None else base
    name, _, rest = argument.strip().partition(":")
    if name == NONE and not rest:
        return base.model_copy(update={"mode": "off"})
    if name not in policy_names():
        raise ValueError(f"no policy is called {name!r}; there are none, {', '.join(policy_names())}")
    parameters = list(inspect.signature(policy_class(name)).parameters)
    arguments: dict[str, object] = {} if rest else _usual_arguments(name, base)
    for number, part in enumerate(rest.split(";") if rest else []):
        key, equals, value = part.partition("=")
        if not equals:
            if number or not parameters:
                raise ValueError(f"policy {argument!r}: {part!r} is no KEY=VALUE; write {SYNTAX}")
            key, value = parameters[0], part
        try:
            arguments[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"policy {argument!r}: {value!r} is no value") from error
    settings = base.model_dump() | {"mode": "on", "policy": {"name": name, **arguments}}
    try:
        return TuningConfig.model_validate(settings)
    except ValidationError as error:
        told = "; ".join(item["msg"].removeprefix("Value error, ") for item in error.errors())
        raise ValueError(f"policy {argument!r}: {told}") from error


def _usual_arguments(name: str, base: TuningConfig) -> dict[str, object]:
    """A policy's arguments where none are written: the tuning's own, or else the default ones."""
    if name == base.policy.name and base.policy.params:
        return base.policy.params
    if name == "batch-threshold":
        return {"table": [[first, last, min(depth, base.max_depth)] for first, last, depth in DEFAULT_TABLE]}
    return {}


def fixed_depth(argument: str, base: TuningConfig | None = None) -> int | None:
    """The depth of a baseline with one depth for all (0 for none); None for other policies.

    `argument` and `base` are those of :func:`tuning_for`.
    """
    if argument == NONE:
        return 0
    tuning = tuning_for(argument, base)
    depth = tuning.policy.params.get("depth")
    return depth if tuning.policy.name == "fixed" and isinstance(depth, int) else None
