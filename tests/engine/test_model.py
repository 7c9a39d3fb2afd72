"""The forward pass against transformers, on tiny random models of every architecture."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from paged_driver import PagedDriver
from tokenizers import Tokenizer as Backend
from tokenizers import models

from adaptive_spec.engine.attention import paged_attention
from adaptive_spec.engine.model import Model, PackedBatch, load_model
from adaptive_spec.engine.model_config import ModelConfig

VOCAB = 97
TINY = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES = {
    "llama-gqa-tied": ("Llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama-mha-untied": ("Llama", {"num_key_value_heads": 6, "tie_word_embeddings": False}),
    "llama-llama3-rope": ("Llama", {"num_key_value_heads": 3, "rope_parameters": LLAMA3}),
    "llama-linear-rope": (
        "Llama",
        {"num_key_value_heads": 1, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "llama-bias": ("Llama", {"num_key_value_heads": 2, "attention_bias": True}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}),
}


def save_tokenizer(path: Path) -> None:
    Backend(models.BPE(vocab={chr(200 + i): i for i in range(VOCAB)}, merges=[])).save(str(path / "tokenizer.json"))


def build(name: str, path: Path, **save: object) -> transformers.PreTrainedModel:
    family, extra = CASES[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{family}Config")(**(TINY | extra))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():  # norms and biases start at one and zero, which would hide their loss
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or parameter_name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(path, **save)
    save_tokenizer(path)
    return model


@pytest.fixture(params=sorted(CASES))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[transformers.PreTrainedModel, Model]:
    reference = build(request.param, tmp_path)
    return reference, load_model(tmp_path, dtype="float32")[0]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Threads of torch, which the kernels run on too."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def want(reference: transformers.PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return reference(torch.tensor([tokens])).logits[0]


def test_logits_equal_transformers_in_random_ragged_passes(
    threads: int, pair: tuple[transformers.PreTrainedModel, Model]
) -> None:
    reference, model = pair
    rng = random.Random(5)
    texts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (90, 41, 17, 5)]
    driver = PagedDriver(model)
    left = {i: list(text) for i, text in enumerate(texts)}
    got: dict[int, list[torch.Tensor]] = {i: [] for i in left}
    while any(left.values()):
        order = [i for i in left if left[i]]
        rng.shuffle(order)
        order = order[: rng.randint(1, len(order))]
        parts = []
        for i in order:
            n = rng.choice([1, 1, 2, 5, 17, 40])  # 40 takes torch's path, the others the kernel's
            parts.append((i, left[i][:n]))
            left[i] = left[i][n:]
        for i, logits in zip(order, driver.feed(parts), strict=True):
            got[i].append(logits)
    for i, text in enumerate(texts):
        logits = torch.cat(got[i])
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, want(reference, text), atol=2e-4, rtol=2e-4)


def test_counts_and_geometry(pair: tuple[transformers.PreTrainedModel, Model]) -> None:
    reference, model = pair
    assert model.num_parameters == reference.num_parameters()
    assert model.config.eos_token_ids == (2,)
    assert model.config.bos_token_id == 1
    assert model.config.max_model_len == 128


def test_logit_rows_choose_rows_in_the_order_asked(tmp_path: Path) -> None:
    build("llama-gqa-tied", tmp_path)
    model, _ = load_model(tmp_path, dtype="float32")
    every = PagedDriver(model).feed([(0, [3, 4, 5, 6])])[0]
    batch = PackedBatch(
        torch.tensor([3, 4, 5, 6]),
        torch.arange(4),
        torch.tensor([0, 4], dtype=torch.int32),
        torch.tensor([4], dtype=torch.int32),
        torch.tensor([[2]], dtype=torch.int32),
        torch.arange(8, 12),
        torch.tensor([3, 1]),
    )
    got = model.forward(batch, model.new_kv_cache(4, 4))
    torch.testing.assert_close(got, every[[3, 1]], atol=1e-5, rtol=1e-5)
    for one in (0, 2):
        batch.logit_rows = torch.tensor([one])
        got = model.forward(batch, model.new_kv_cache(4, 4))
        assert got.shape == (1, VOCAB)
        torch.testing.assert_close(got, every[[one]], atol=1e-5, rtol=1e-5)


def test_float32_rows_do_not_depend_on_the_batch_or_the_width(threads: int, tmp_path: Path) -> None:
    build("llama-gqa-tied", tmp_path)
    model, _ = load_model(tmp_path, dtype="float32")
    rng = random.Random(1)
    texts = [[rng.randrange(VOCAB) for _ in range(40)] for _ in range(16)]
    together = PagedDriver(model, num_blocks=256)
    rows: list[list[torch.Tensor]] = [[] for _ in texts]
    for at in range(0, 40, 5):
        for i, logits in enumerate(together.feed([(i, text[at : at + 5]) for i, text in enumerate(texts)])):
            rows[i].append(logits)
    for i in (0, 7, 15):
        alone = PagedDriver(model, seed=i)
        one_by_one = torch.cat([alone.feed([(0, [token])])[0] for token in texts[i]])
        assert (one_by_one - torch.cat(rows[i])).abs().max() < 2e-5


def test_rejected_rows_leave_no_trace(tmp_path: Path) -> None:
    build("llama-gqa-tied", tmp_path)
    model, _ = load_model(tmp_path, dtype="float32")
    clean, dirty = PagedDriver(model), PagedDriver(model)
    clean.feed([(0, [5, 6, 7])])
    dirty.feed([(0, [5, 6, 7, 90, 91, 92, 93])])
    dirty.rewind(0, 3)
    torch.testing.assert_close(dirty.feed([(0, [8, 9])])[0], clean.feed([(0, [8, 9])])[0], atol=1e-6, rtol=1e-6)


def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    reference = build("qwen3", tmp_path)
    model, _ = load_model(tmp_path, dtype="bfloat16")
    text = list(range(3, 40))
    driver = PagedDriver(model)
    got = torch.cat([driver.feed([(0, text[:30])])[0], driver.feed([(0, text[30:])])[0]])
    exact = want(reference, text)
    error = (got - exact).norm() / exact.norm()
    assert error < 0.05
    assert torch.equal(got, got.bfloat16().float())


def test_sharded_checkpoints_and_auto_dtype(tmp_path: Path) -> None:
    reference = build("qwen2", tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model, _ = load_model(tmp_path)
    assert model.dtype == torch.float32
    text = [5, 4, 3, 2, 1]
    torch.testing.assert_close(PagedDriver(model).feed([(0, text)])[0], want(reference, text), atol=2e-4, rtol=2e-4)


def test_max_model_len_and_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    build("llama-gqa-tied", tmp_path / "a")
    build("llama-bias", tmp_path / "b")
    first, tokenizer = load_model(tmp_path / "a", max_model_len=64)
    assert first.config.max_model_len == 64
    again, _ = load_model(tmp_path / "a", max_model_len=64)
    other, other_tokenizer = load_model(tmp_path / "b")
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    assert tokenizer.fingerprint == other_tokenizer.fingerprint


def test_older_configs_state_the_rope_beside_its_scaling() -> None:
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 10,
        "hidden_size": 64,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "rope_theta": 5e5,
        "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"},
        "eos_token_id": 7,
    }
    config = ModelConfig.from_hf(raw, {"eos_token_id": [8, 9]}, "config.json")
    assert config.rope_theta == 5e5
    assert config.rope_scaling.kind == "llama3"
    assert config.rope_scaling.factor == 4.0
    assert config.eos_token_ids == (8, 9)
    assert config.num_kv_heads == 4
    plain = dataclasses.replace(config, rope_scaling=type(config.rope_scaling)())
    ratio = plain.inverse_frequencies() / config.inverse_frequencies()
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(4.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_paged_attention_equals_dense_attention(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    heads, kv_heads, dim, block = 6, 2, 8, 4
    widths, lengths = [1, 17, 3, 30, 4], [290, 17, 131, 45, 4]
    total = sum(widths)
    blocks = [-(-n // block) for n in lengths]
    order = torch.randperm(sum(blocks), generator=generator).int()
    table = torch.zeros(len(widths), max(blocks), dtype=torch.int32)
    at = 0
    for b, n in enumerate(blocks):
        table[b, :n] = order[at : at + n]
        at += n
    q = torch.randn(total, heads, dim, generator=generator).to(dtype)
    k = torch.randn(sum(blocks), block, kv_heads, dim, generator=generator).to(dtype)
    v = torch.randn(sum(blocks), block, kv_heads, dim, generator=generator).to(dtype)
    cu = torch.tensor([0, *widths]).cumsum(0).int()
    got = paged_attention(q, k, v, table, cu, torch.tensor(lengths).int(), 0.3)
    for b, (width, length) in enumerate(zip(widths, lengths, strict=True)):
        keys = k[table[b].long()].flatten(0, 1)[:length].float().repeat_interleave(3, 1)
        values = v[table[b].long()].flatten(0, 1)[:length].float().repeat_interleave(3, 1)
        for j in range(width):
            seen = length - width + j + 1
            scores = torch.einsum("hd,thd->ht", q[cu[b] + j].float(), keys[:seen]) * 0.3
            exact = torch.einsum("ht,thd->hd", scores.softmax(-1), values[:seen])
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(got[cu[b] + j].float(), exact, atol=tolerance, rtol=tolerance)
