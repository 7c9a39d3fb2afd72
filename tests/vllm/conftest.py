"""Marks these tests; those that need vLLM skip themselves where it isn't installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.vllm)
