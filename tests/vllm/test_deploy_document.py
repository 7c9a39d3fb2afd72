"""The settings that DEPLOY.md shows are settings that there are, and it shows all of them."""

from __future__ import annotations

import re
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from adaptive_spec.config import TuningConfig
from adaptive_spec.policy import policy_names
from adaptive_spec.vllm_plugin.drafters import drafter_of
from adaptive_spec.vllm_plugin.vllm_tuning import fitted

TEXT = (resources.files("adaptive_spec.vllm_plugin") / "DEPLOY.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def keys(settings: dict[str, Any], prefix: str = "") -> set[str]:
    """Dotted names of all settings."""
    found = set()
    for key, value in settings.items():
        found |= keys(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key}
    return found


def known(section: type[BaseModel], prefix: str = "") -> set[str]:
    """Dotted names of all settings that the tuning file has."""
    names: set[str] = set()
    for name, field in section.model_fields.items():
        inner = field.annotation
        is_section = isinstance(inner, type) and issubclass(inner, BaseModel)
        names |= known(inner, f"{prefix}{name}.") if is_section else {prefix + name}
    return names


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_is_a_tuning_that_the_plugin_takes(block: str) -> None:
    tuning = TuningConfig.parse(block)
    assert fitted(tuning, 8, drafter_of(SimpleNamespace(method="ngram")).evidence(asynchronous=False)) == tuning


def test_every_setting_and_policy_has_an_example() -> None:
    shown = [yaml.safe_load(block) for block in BLOCKS]
    refused = {"cost.interpolation"}  # of the profile that the standalone engine measures
    assert known(TuningConfig) - refused <= set().union(*map(keys, shown))
    assert {tuning["policy"]["name"] for tuning in shown if "policy" in tuning} == set(policy_names())


def test_the_whole_file_shows_the_defaults() -> None:
    whole = max(BLOCKS, key=len)
    shown, default = TuningConfig.parse(whole).model_dump(), TuningConfig().model_dump()
    shown.pop("policy"), default.pop("policy")
    assert shown == default
