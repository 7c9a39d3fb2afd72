"""How many KV blocks are made: as many as are wanted, or as memory has room for once earlier engines are gone."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest
import torch

from adaptive_spec.engine.kv_cache import KVCache
from adaptive_spec.engine.kv_memory import CPU_MOST, CUDA_SHARE, GIB, kv_cache_blocks


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


@pytest.mark.parametrize("engines", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("free", [4 * GIB, 20 * GIB, 500 * GIB])
def test_engines_beside_each_other_find_room_for_their_caches(monkeypatch, free, engines):
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": free // 4096, "SC_PAGE_SIZE": 4096}.__getitem__)
    each = kv_cache_blocks(1, 10**15, torch.device("cpu"), engines=engines)
    assert engines * each <= 0.6 * free
    assert each <= kv_cache_blocks(1, 10**15, torch.device("cpu")) <= CPU_MOST
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2 * free))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    each = kv_cache_blocks(1, 10**15, torch.device("cuda"), engines=engines)
    assert engines * each <= CUDA_SHARE * free < engines * (each + 1)


def test_no_engine_is_no_number_of_engines():
    with pytest.raises(ValueError, match="engines is 0; it must be at least 1"):
        kv_cache_blocks(1, 1, torch.device("cpu"), engines=0)


def test_a_cache_takes_memory_only_as_it_is_written():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    cache = KVCache(4, 4096, 16, 4, 64, torch.bfloat16, torch.device("cpu"))
    assert cache.num_bytes == 2**28
    assert resident() - before < 2**24
    assert not cache.k[:, 7].any()
    cache.k[1, :1024] = 1.0
    assert resident() - before > 2**22
    assert cache.k.data_ptr() % 64 == cache.v.data_ptr() % 64 == 0
    assert cache.v[2].is_contiguous()
