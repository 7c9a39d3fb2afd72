"""A baseline as it is written in one word: its name, and what its maker's users would set."""

from __future__ import annotations

from typing import Any

import yaml


def baseline_arguments(argument: str) -> dict[str, Any]:
    """The parameters that are set in ``NAME:VALUE`` (the first parameter) or ``NAME:KEY=VALUE;KEY=VALUE``.

    Parameters
    ----------
    argument : str
        As ``trtllm-schedule:schedule={4: 4, 8: 2};min_draft_len=1``; values are YAML.

    Raises
    ------
    ValueError
        If the baseline has no such parameter, or a value is none.
    """
    from adaptive_spec.experiments.baselines import parameters_of

    name, _, rest = argument.partition(":")
    known = parameters_of(name)
    arguments: dict[str, Any] = {}
    for number, part in enumerate(rest.split(";") if rest else []):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals and known and not number:
            key, value = known[0], part.strip()
        if key not in known:
            said = f"its parameters are {', '.join(known)}" if known else "it takes no arguments"
            raise ValueError(f"policy {argument!r}: {key!r} is no parameter of {name!r}; {said}")
        try:
            arguments[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"policy {argument!r}: {value!r} is no value of {key}") from error
    return arguments
