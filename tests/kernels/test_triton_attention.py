"""Attention: Triton, CPU and reference agree on ragged widths, any grouping, paging, split and type."""

from __future__ import annotations

import math

import pytest
import torch

from adaptive_spec.kernels import backend, cpu_attention, ops, reference_attention


def problem(seed, widths, contexts, *, heads=4, kv_heads=2, head_dim=64, page=16, dtype=torch.float32, poison=True):
    """Sequences with so many new rows after so many tokens, in scattered blocks; what is unused is NaN."""
    g = torch.Generator().manual_seed(seed)
    width = torch.tensor(widths)
    length = width + torch.tensor(contexts)
    cu = torch.zeros(len(widths) + 1, dtype=torch.int32)
    cu[1:] = width.cumsum(0)
    blocks = [-(-n // page) for n in length.tolist()]
    pages = sum(blocks) + 2
    order = torch.randperm(pages, generator=g)
    table = torch.full((len(widths), max(blocks) + 1), -1, dtype=torch.int32)
    filling = math.nan if poison else 0.0
    k = torch.full((pages, page, kv_heads, head_dim), filling, dtype=dtype)
    v = torch.full((pages, page, kv_heads, head_dim), filling, dtype=dtype)
    used = 0
    for b, n in enumerate(blocks):
        mine = order[used : used + n]
        used += n
        table[b, :n] = mine.int()
        for i, block in enumerate(mine.tolist()):
            here = min(page, int(length[b]) - i * page)
            k[block, :here] = torch.randn(here, kv_heads, head_dim, generator=g).to(dtype)
            v[block, :here] = torch.randn(here, kv_heads, head_dim, generator=g).to(dtype)
    q = torch.randn(int(cu[-1]), heads, head_dim, generator=g).to(dtype)
    return q, k, v, table, cu, length.int(), head_dim**-0.5


def in_float64(arguments):
    q, k, v, *rest = arguments
    return reference_attention.verify_attention(q.double(), k.double(), v.double(), *rest)


def to(device, arguments):
    return [x.to(device) if isinstance(x, torch.Tensor) else x for x in arguments]


CASES = {
    "one row each": ([1, 1, 1], [0, 15, 40], {}),
    "all widths to 17": ([1, 17, 2, 9, 16], [70, 3, 0, 33, 16], {}),
    "with a prefill chunk": ([5, 75, 1], [37, 20, 100], {}),
    "first chunk": ([40], [0], {}),
    "groups of 3": ([4, 1, 6], [30, 50, 3], {"heads": 9, "kv_heads": 3}),
    "groups of 7": ([3, 8], [30, 5], {"heads": 7, "kv_heads": 1}),
    "no groups": ([2, 5], [18, 3], {"heads": 2, "kv_heads": 2}),
    "head size 96": ([4, 2], [20, 35], {"head_dim": 96}),
    "head size 128": ([4, 2], [20, 35], {"head_dim": 128}),
    "pages of 5": ([4, 2], [20, 13], {"page": 5}),
}


@pytest.mark.parametrize("name", CASES)
def test_cpu_attention_is_the_definition(name):
    widths, contexts, options = CASES[name]
    arguments = problem(1, widths, contexts, **options)
    got = cpu_attention.verify_attention(*arguments)
    torch.testing.assert_close(got.double(), in_float64(arguments), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_triton_is_the_definition(device, monkeypatch, name, splits):
    from adaptive_spec.kernels import attention

    monkeypatch.setattr(attention, "splits_of", lambda *_: splits)
    widths, contexts, options = CASES[name]
    arguments = problem(1, widths, contexts, **options)
    got = attention.verify_attention(*to(device, arguments)).cpu()
    torch.testing.assert_close(got.double(), in_float64(arguments), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("splits", [1, 4])
def test_the_padding_of_a_captured_pass_changes_nothing(device, monkeypatch, splits):
    """Rows that belong to no sequence, and sequences without rows, behind those that are real."""
    from adaptive_spec.kernels import attention

    monkeypatch.setattr(attention, "splits_of", lambda *_: splits)
    q, k, v, table, cu, length, scale = problem(4, [3, 1, 6], [20, 40, 0])
    want = in_float64((q, k, v, table, cu, length, scale))
    q = torch.cat((q, torch.full((7, *q.shape[1:]), math.nan)))
    cu = torch.cat((cu, cu[-1:].expand(4)))
    length = torch.cat((length, length.new_zeros(4)))
    table = torch.cat((table, torch.full((4, table.shape[1]), -1, dtype=torch.int32)))
    padded = to(device, (q, k, v, table, cu, length, scale))
    with pytest.raises(ValueError, match="cu must"):
        ops.verify_attention(*padded)
    with backend.use("triton"), backend.inert_rows():
        got = ops.verify_attention(*padded, max_width=6).cpu()
    torch.testing.assert_close(got[: len(want)].double(), want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_half_types(device, dtype, tolerance):
    from adaptive_spec.kernels import attention

    arguments = problem(2, [1, 9, 40], [70, 30, 0], dtype=dtype)
    got = attention.verify_attention(*to(device, arguments), max_width=40).cpu()
    torch.testing.assert_close(got.double(), in_float64(arguments), atol=tolerance, rtol=tolerance)
    on_cpu = cpu_attention.verify_attention(*arguments)
    torch.testing.assert_close(on_cpu.double(), in_float64(arguments), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("max_width", [4, 17, None])
def test_small_tiles_give_the_same(device, max_width):
    from adaptive_spec.kernels import attention

    arguments = problem(3, [4, 1, 3], [50, 20, 0])
    got = attention.verify_attention(*to(device, arguments), max_width=max_width).cpu()
    torch.testing.assert_close(got.double(), in_float64(arguments), atol=2e-5, rtol=2e-5)


def test_large_scores_do_not_overflow(device):
    from adaptive_spec.kernels import attention

    q, k, v, table, cu, length, _ = problem(4, [3, 1], [90, 17])
    arguments = (q * 100, k, v, table, cu, length, 1.0)
    got = attention.verify_attention(*to(device, arguments)).cpu()
    torch.testing.assert_close(got.double(), in_float64(arguments), atol=1e-3, rtol=1e-3)


def test_splits_fill_the_device_and_no_more(device):
    from adaptive_spec.kernels import attention, launch

    count = launch.processors(device)
    assert attention.splits_of(1, 8, 100, device) == 1  # short sequences are not split
    assert attention.splits_of(count, 8, 32768, device) == 1
    few = attention.splits_of(2, 2, 32768, device)
    assert few == attention.SPLITS_MOST


def test_queries_with_strided_rows(device):
    """Queries are usually a slice of the projection."""
    from adaptive_spec.kernels import attention

    q, *rest = problem(5, [3, 2], [9, 30])
    wide = torch.cat([q, q * 0 + 7], 1)
    arguments = (wide[:, : q.shape[1]], *rest)
    got = attention.verify_attention(*to(device, arguments)).cpu()
    torch.testing.assert_close(got.double(), in_float64((q, *rest)), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("served_by", ["cpu", "triton"])
def test_writing_the_cache(device, served_by):
    g = torch.Generator().manual_seed(0)
    where = device if served_by == "triton" else torch.device("cpu")
    qkv = torch.randn(5, 9, 64, generator=g)
    k, v = qkv[:, 3:6], qkv[:, 6:]
    k_cache, v_cache = (torch.full((4, 8, 3, 64), -5.0).to(where) for _ in range(2))
    slots = torch.tensor([9, 0, -1, 31, 7])
    with backend.use(served_by):
        ops.write_kv(k.to(where), v.to(where), k_cache, v_cache, slots.to(where))
    for cache, new in ((k_cache, k), (v_cache, v)):
        flat = cache.cpu().flatten(0, 1)
        want = torch.full_like(flat, -5.0)
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                want[slot] = new[row]
        assert torch.equal(flat, want)


def test_the_front_door_serves_cpu_and_triton(device):
    arguments = problem(6, [2, 1], [9, 30])
    plain = ops.verify_attention(*arguments)
    with backend.use("triton"):
        kernel = ops.verify_attention(*to(device, arguments)).cpu()
    with backend.use("torch"):
        definition = ops.verify_attention(*arguments)
    torch.testing.assert_close(plain, definition)
    torch.testing.assert_close(kernel, definition, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(3, 4)}, "q must have the shape"),
        ({"q": torch.zeros(3, 4, 64, dtype=torch.float64)}, "q must be float32"),
        ({"q": torch.zeros(3, 5, 64)}, "q has 5 heads, no multiple of the 2 heads"),
        ({"q": torch.zeros(4, 4, 64)}, "cu must run from 0 to the 4 rows of q"),
        ({"k_cache": torch.zeros(8, 16, 2, 32)}, "k_cache must have the shape"),
        ({"k_cache": torch.zeros(8, 16, 2, 64, dtype=torch.float16)}, "k_cache must be torch.float32"),
        ({"v_cache": torch.zeros(7, 16, 2, 64)}, "v_cache must be laid out as k_cache"),
        ({"cu": torch.tensor([0, 3, 3], dtype=torch.int32)}, "sequence 1 has 0 rows"),
        ({"cu": torch.tensor([0, 2, 3])}, "cu must be torch.int32"),
        ({"max_width": 1}, "cu gives sequence 0 2 rows; max_width 1 allows 1"),
        ({"kv_len": torch.tensor([1, 5], dtype=torch.int32)}, "kv_len must count the new rows"),
        ({"kv_len": torch.tensor([99, 5], dtype=torch.int32)}, "kv_len is up to 99"),
        ({"kv_len": torch.tensor([9], dtype=torch.int32)}, "kv_len must have the shape [2]"),
        ({"block_table": torch.zeros(2, 2)}, "block_table must be torch.int32"),
        ({"block_table": torch.zeros(3, 2, dtype=torch.int32)}, "block_table must have the shape [2, blocks]"),
        ({"block_table": torch.full((2, 2), 8, dtype=torch.int32)}, "block_table must name blocks 0 to 7"),
    ],
)
def test_bad_arguments_are_named(change, message):
    good = {
        "q": torch.zeros(3, 4, 64),
        "k_cache": torch.zeros(8, 16, 2, 64),
        "v_cache": torch.zeros(8, 16, 2, 64),
        "block_table": torch.zeros(2, 2, dtype=torch.int32),
        "cu": torch.tensor([0, 2, 3], dtype=torch.int32),
        "kv_len": torch.tensor([20, 5], dtype=torch.int32),
        "scale": 0.1,
    }
    ops.verify_attention(**good)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        ops.verify_attention(**{**good, **change})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(3, 2)}, "k must have the shape"),
        ({"v": torch.zeros(2, 2, 8)}, "v must be like k"),
        ({"v_cache": torch.zeros(4, 4, 3, 8)}, "v_cache must be contiguous with 2 heads"),
        ({"slots": torch.zeros(3, dtype=torch.int32)}, "slots must be torch.int64"),
        ({"slots": torch.tensor([0, 1, 16])}, "slots must be under 16"),
    ],
)
def test_bad_writes_are_named(change, message):
    good = {
        "k": torch.zeros(3, 2, 8),
        "v": torch.zeros(3, 2, 8),
        "k_cache": torch.zeros(4, 4, 2, 8),
        "v_cache": torch.zeros(4, 4, 2, 8),
        "slots": torch.tensor([0, 1, 2]),
    }
    ops.write_kv(**good)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        ops.write_kv(**{**good, **change})
    assert message in str(error.value)
