"""Requests by the thousand come and go through the real schedulers, and memory stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from adaptive_spec.experiments.stepped_vllm import make_config
from adaptive_spec.experiments.vllm_soak import soak
from adaptive_spec.vllm_plugin.factory import make_scheduler

REQUESTS = 2000  # the experiment's command sends ten times as many


@pytest.mark.parametrize(("method", "asynchronous"), [("ngram", False), ("draft_model", True)], ids=["sync", "async"])
def test_memory_is_flat(tmp_path: Path, method: str, asynchronous: bool) -> None:
    tuning = tmp_path / "tuning.yaml"
    tuning.write_text(f"max_depth: 4\nlearned: {{file: '{tmp_path}/learned.npz'}}\n")
    config = make_config(
        tmp_path,
        method=method,
        asynchronous=asynchronous,
        max_num_batched_tokens=96,
        num_blocks=48,
        max_model_len=160,
        tuning_file=tuning,
    )
    seen = soak(make_scheduler, config, REQUESTS, marks=4)
    assert [mark.requests for mark in seen] == [500, 1000, 1500, 2000]
    assert seen[-1].aborted > 10
    assert seen[-1].preempted > 0
    # What is kept of every request would show by the thousand: an object for each that has come since the first mark.
    assert seen[-1].blocks - seen[0].blocks < 1000
    assert seen[-1].resident - seen[0].resident < 4e6
