"""How many KV blocks are made: as many as are wanted, or as memory has room for once earlier engines are gone."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from adaptive_spec.engine.kv_memory import CUDA_SHARE, kv_cache_blocks


def test_blocks_are_those_wanted_or_those_that_fit():
    cpu = torch.device("cpu")
    assert kv_cache_blocks(100, 7, cpu, memory_bytes=1000) == 7
    assert kv_cache_blocks(100, 70, cpu, memory_bytes=1099) == 10
    with pytest.raises(ValueError, match="a KV block takes 100 bytes, and the KV cache may take 99"):
        kv_cache_blocks(100, 7, cpu, memory_bytes=99)


class Engine:
    """What an engine is to the collector: a cycle."""

    def __init__(self) -> None:
        self.loop = self


def test_a_gpus_memory_is_asked_for_after_earlier_engines_have_gone(monkeypatch):
    engine = Engine()
    left = weakref.ref(engine)
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(left() is None))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 if emptied == [True] else 10, 2000))
    gc.disable()
    try:
        del engine
        assert kv_cache_blocks(1, 10**6, torch.device("cuda")) == 1000 * CUDA_SHARE
    finally:
        gc.enable()
