"""Engines that a command sets beside each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adaptive_spec.cli.engine_options import EngineOptions
from adaptive_spec.config import TuningConfig


def test_engines_on_one_model_have_caches_of_one_size(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each asked for a share of what the ones before had left: the last of eight had a fifth of the first's."""
    pages, sysconf = [400, 200, 100, 50], os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: pages.pop(0) if name == "SC_AVPHYS_PAGES" else sysconf(name))
    options = EngineOptions(str(tiny_model), dtype="float32", max_num_seqs=512, engines=4)
    llm = options.load(TuningConfig(mode="off"), seed=0)
    blocks = [options.beside(llm, 0, llm.clock).scheduler.pool.num_blocks for _ in range(3)]
    assert blocks == [llm.scheduler.pool.num_blocks] * 3
    assert pages == [200, 100, 50]
