"""The engine on the GPU's kernels: on a GPU, or every kernel in Triton's interpreter, with a tiny model."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))  # for tiny_llama

from tiny_llama import make_tiny_llm, write_tiny_llama

from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.buckets import Bucket
from adaptive_spec.engine.captured_pass import CapturedPass
from adaptive_spec.engine.measure import measure_profile
from adaptive_spec.engine.model import load_model
from adaptive_spec.engine.packing import pack
from adaptive_spec.engine.passes import Passes
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.kernels import backend

PROMPTS = ["abcabcabcabc", "hello hello hel", "a b c d a b c"]
LENGTH = 512  # of a text, so that its keys are split
KERNELS = {
    *("greedy_kernel", "match_kernel", "accept_kernel", "threshold_kernel"),
    *("row_stats_kernel", "ratio_accept_kernel", "residual_kernel", "emit_kernel"),
    *("rotate_kernel", "write_kv_kernel", "attention_kernel", "merge_kernel"),
    *("rank_kernel", "price_kernel", "choose_kernel", "sequence_kernel", "cell_kernel", "survival_kernel"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LENGTH}))
    return folder


@pytest.fixture
def launched(monkeypatch):
    """Counts the kernels that are launched, by name."""
    from adaptive_spec.kernels import verify

    counts: Counter[str] = Counter()
    kind = type(verify.greedy_kernel)
    run = kind.run

    def counting(self, *args, **kwargs):
        counts[self.fn.__name__] += 1
        return run(self, *args, **kwargs)

    monkeypatch.setattr(kind, "run", counting)
    return counts


def tuning(**settings) -> TuningConfig:
    """Nothing in it looks at a clock."""
    return TuningConfig.model_validate(
        {
            "max_depth": 4,
            "cost": {"online": {"enabled": False}},
            "exploration": {"enabled": False},
            "guard": {"enabled": False},
            "watchdog": {"enabled": False},
            "fallback": {"time_budget_ms": 60000.0},
            **settings,
        }
    )


def params(**kind) -> list[SamplingParams]:
    """The text may not end before its time: that is barred on the device."""
    return [SamplingParams(max_tokens=12, min_tokens=12, seed=i, **kind) for i in range(len(PROMPTS))]


KINDS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8},
    "truncated": {"temperature": 1.0, "top_k": 9, "top_p": 0.8},
}


def texts(llm, kinds=tuple(KINDS)) -> dict[str, list[list[int]]]:
    return {
        kind: [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params(**KINDS[kind]))] for kind in kinds
    }


def test_a_generation_in_which_every_kernel_takes_part(folder, device, launched):
    """Greedy, sampled and truncated, with depths chosen on the device; and a draft model in ratio mode."""
    lookup = {"dtype": "float32", "tuning": tuning()}
    # Ratio mode's text depends on the depths, so these are fixed.
    draft = {
        **lookup,
        "drafter": "draft_model",
        "drafter_config": {"model": str(folder)},
        "sampling": "ratio",
        "tuning": tuning(policy={"name": "fixed", "depth": 3}),
    }
    expected = texts(make_tiny_llm(folder, **lookup))
    expected_ratio = texts(make_tiny_llm(folder, **draft), ("sampled",))
    launched.clear()
    with backend.use("triton") if device.type == "cpu" else nullcontext():
        llm = make_tiny_llm(folder, device=device.type, allocate="device", **lookup)
        got = texts(llm)
        assert llm.runner.fault is None
        assert not llm.controller.fallback.faults
        llm = make_tiny_llm(folder, device=device.type, **draft)
        got_ratio = texts(llm, ("sampled",))
        assert llm.runner.fault is None
    assert got == expected
    assert got_ratio == expected_ratio
    assert set(launched) >= KERNELS, f"never launched: {KERNELS - set(launched)}"


def test_the_kernels_that_there_are_are_the_ones_that_take_part():
    """A kernel that is added must be added above."""
    from importlib import import_module

    names = set()
    for module in ("verify", "truncation", "ratio", "rotary", "attention", "allocate", "accept_stats"):
        names |= {name for name in vars(import_module(f"adaptive_spec.kernels.{module}")) if name.endswith("_kernel")}
    assert names == KERNELS


def ragged(rng, widths, contexts, blocks, logit_rows=None, num_blocks=60):
    """A batch of sequences in scattered blocks of 16, with so many new rows after so many tokens."""
    width, start = np.array(widths), np.array(contexts)
    order = rng.permutation(num_blocks).astype(np.int32)
    table = np.zeros((len(widths), blocks), dtype=np.int32)
    used = 0
    for row, tokens in zip(table, (start + width).tolist(), strict=True):
        n = -(-tokens // 16)
        row[:n] = order[used : used + n]
        used += n
    rows = np.arange(width.sum()) if logit_rows is None else np.array(logit_rows)
    return pack(rng.integers(0, 20, width.sum()), start, width, table, rows, 16)


def filled_caches(model, *others, num_blocks=60):
    """KV caches of equal content, one for each model."""
    generator = torch.Generator().manual_seed(3)
    caches = [one.new_kv_cache(num_blocks, 16) for one in (model, *others)]
    for part in ("k", "v"):
        values = torch.randn(getattr(caches[0], part).shape, generator=generator)
        for cache in caches:
            getattr(cache, part).copy_(values)
    return caches


PASSES = {
    "one row": ([1], [0]),
    "decoding": ([1, 4, 2, 1, 3], [40, 7, 100, 16, 31]),
    "fewer, in the same bucket": ([6, 4], [3, 60]),
    "with a chunk of a prompt": ([1, 33, 2], [20, 16, 9]),
    "a whole bucket": ([4, 4], [50, 2]),
}


def test_padded_passes_are_the_models_passes(folder, kernels, monkeypatch):
    """One after another through the same buffers, with all that is uninitialised set to NaN."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    with backend.use("cpu"):
        plain = load_model(folder, dtype="float32")[0]
    model = load_model(folder, dtype="float32", device=kernels.type)[0]
    cache, plain_cache = filled_caches(model, plain)
    passes = Passes(model, cache, max_depth=5)
    rng = np.random.default_rng(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for name in (*PASSES, *reversed(PASSES)):
            widths, contexts = PASSES[name]
            batch = ragged(rng, widths, contexts, blocks=int(rng.integers(8, 12)))
            with torch.inference_mode():
                got = passes.forward(batch).cpu()
                with backend.use("cpu"):
                    want = plain.forward(batch, plain_cache)
            torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4, msg=lambda text, name=name: f"{name}: {text}")
            torch.testing.assert_close(cache.k.cpu(), plain_cache.k, atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(cache.v.cpu(), plain_cache.v, atol=2e-5, rtol=2e-5)
    finally:
        torch.use_deterministic_algorithms(False)
    assert {bucket.positions for bucket, _ in cache.captured._passes} == {1, 8, 16, 40}


def test_only_the_wanted_rows_get_logits(folder, kernels):
    model = load_model(folder, dtype="float32", device=kernels.type)[0]
    (cache,) = filled_caches(model)
    passes = Passes(model, cache)
    batch = ragged(np.random.default_rng(2), [3, 5], [10, 20], blocks=4)
    with torch.inference_mode():
        every = passes.forward(batch)
        batch.logit_rows = torch.tensor([7, 0, 2])
        some = passes.forward(batch)
        batch.logit_rows = torch.tensor([], dtype=torch.int64)
        none = passes.forward(batch)
    torch.testing.assert_close(some, every[[7, 0, 2]])
    assert none.shape == (0, every.shape[1])


def test_what_was_captured_beforehand_serves_and_nothing_else_is_captured(folder, kernels, monkeypatch):
    model = load_model(folder, dtype="float32", device=kernels.type)[0]
    (cache,) = filled_caches(model)
    passes = Passes(model, cache, max_depth=2)
    assert passes.prepare(4, 2) == len(cache.captured) == len(passes.buckets.decoding(4, 2))
    captured = len(cache.captured)
    replayed = []
    run = CapturedPass.run

    def watched(self, batch):
        replayed.append(self.bucket)
        return run(self, batch)

    monkeypatch.setattr(CapturedPass, "run", watched)
    rng = np.random.default_rng(3)
    for widths, bucket in (
        ([3], Bucket(4, 4)),  # one sequence of 3 rows: 4 positions hold it, whose sequences need not be 4
        ([1, 3, 2], Bucket(8, 4)),
        ([9], Bucket(16, 4)),  # a chunk of a prompt, in a bucket of more sequences than it has
        ([1, 30], None),  # larger than any: launched as it is
    ):
        replayed.clear()
        batch = ragged(rng, widths, [5] * len(widths), blocks=4)
        with torch.inference_mode():
            got = passes.forward(batch)
        assert len(got) == sum(widths)
        if bucket is None:
            assert not replayed
        else:
            assert replayed[0].positions == bucket.positions
    assert len(cache.captured) == captured
    # Another runner over the same cache finds them.
    again = Passes(model, cache, max_depth=2)
    again.prepare(4, 2)
    assert len(cache.captured) == captured


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: only there a pass is captured in a CUDA graph")
def test_a_replay_waits_for_nothing(folder):
    model = load_model(folder, dtype="float32", device="cuda")[0]
    (cache,) = filled_caches(model)
    passes = Passes(model, cache, max_depth=5)
    batch = ragged(np.random.default_rng(4), [1, 4, 2], [40, 7, 100], blocks=8)
    with torch.inference_mode():
        passes.forward(batch)  # captures
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            passes.forward(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")


class Clock:
    now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def test_the_profile_is_the_staircase_of_the_buckets(folder, kernels):
    model = load_model(folder, dtype="float32", device=kernels.type)[0]
    profile = measure_profile(model, most_positions=10, block_size=16, repeats=1, clock=Clock(), max_depth=4)
    assert profile.positions.tolist() == [1, 2, 4, 8, 16]  # the last one holds all that is wanted
    assert profile.interpolation == "staircase"
    assert profile.staircase_until == 16
