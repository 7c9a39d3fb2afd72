"""A tiny target, and a tiny draft model that resembles it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_drafts import write_similar
from tiny_llama import write_tiny_llama


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("target") / "tiny")


@pytest.fixture(scope="session")
def similar(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_similar(tmp_path_factory.mktemp("similar") / "tiny", target)
