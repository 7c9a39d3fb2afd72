"""A tiny model on disk, and prompts for it, for the commands that load an engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))  # for tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_llama import write_tiny_llama

    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"category": "ab"[i % 2], "turns": [f"{'abcdefgh'[i]} bad cab, a bad cab."]} for i in range(6)]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path
