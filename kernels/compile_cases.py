"""The launches whose specialisations :mod:`adaptive_spec.kernels.compile_check` compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from adaptive_spec.kernels import accept_stats, allocate, attention, ratio, rotary, verify

BATCH, MAX_DEPTH = 4, 8
DEEP = 31  # drafts that take the next width that engines round up to
TIMED = 4  # rows of a sequence where passes are timed
VOCABULARY = 131072  # divisible by 16, as most are
ODD_VOCABULARY = 32001  # with a token added, as fine-tuned models often have: rows are not aligned
TYPES = (torch.bfloat16, torch.float16, torch.float32)


def _ints(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int32)


def _logits(dtype: torch.dtype, vocabulary: int, rows: int) -> Tensor:
    return torch.empty((rows, vocabulary), dtype=dtype)


def _sampling() -> dict[str, Tensor]:
    words = torch.zeros(BATCH, dtype=torch.int64)
    return {
        "temperature": torch.ones(BATCH),
        "top_k": _ints(BATCH),
        "top_p": torch.ones(BATCH),
        "seed": words,
        "sample_index": words,
        "position": words,
    }


def _verification() -> Iterator[Callable[[], object]]:
    cu, rows = _ints(BATCH + 1), BATCH * (MAX_DEPTH + 1)
    for dtype, vocabulary in product(TYPES, (VOCABULARY, ODD_VOCABULARY)):
        logits = _logits(dtype, vocabulary, rows)
        draft = _ints(rows - BATCH)
        for most in (0, TIMED, MAX_DEPTH, DEEP):  # a draft model's own draws have no drafts
            yield partial(verify.verify_greedy, logits, cu, draft, most)
        yield partial(verify.verify_match, logits, cu, draft, MAX_DEPTH, **_sampling())


def _ratio() -> Iterator[Callable[[], object]]:
    cu, rows = _ints(BATCH + 1), BATCH * (MAX_DEPTH + 1)
    for dtype, vocabulary in product(TYPES, (VOCABULARY, ODD_VOCABULARY)):
        logits, draft_logits = _logits(dtype, vocabulary, rows), _logits(dtype, vocabulary, rows - BATCH)
        draft = _ints(rows - BATCH)
        for most in (MAX_DEPTH, DEEP):
            yield partial(ratio.verify_ratio, logits, cu, draft, most, draft_logits=draft_logits, **_sampling())


def _rotation() -> Iterator[Callable[[], object]]:
    positions = torch.zeros(16, dtype=torch.int64)
    for dtype, head_dim in product(TYPES, (64, 96, 128)):
        heads = torch.empty((16, 40, head_dim), dtype=dtype)
        table, norm = torch.empty((4096, head_dim // 2)), torch.empty(head_dim)
        for weight in (None, norm):
            yield partial(
                rotary.rotate, heads, positions, table, table, queries=32, q_norm=weight, k_norm=weight, eps=1e-6
            )


def _attention() -> Iterator[Callable[[], object]]:
    """Models of 64, 96 and 128 a head; all widths that K up to 16 brings, and prefill chunks among them."""
    page, blocks, kv_heads = 16, 512, 8
    for dtype, head_dim in product(TYPES, (64, 96, 128)):
        cache = torch.empty((blocks, page, kv_heads, head_dim), dtype=dtype)
        slots = torch.zeros(16, dtype=torch.int64)
        new = torch.empty((16, kv_heads, head_dim), dtype=dtype)
        yield partial(attention.write_kv, new, new, cache, cache, slots)
        # Few and many sequences (keys split or not), and tiles of 16, 32 and 64 rows.
        shapes = [(2, 4, 4), (256, 4, 4), (2, 17, 4), (256, 17, 4)]
        if dtype != torch.float32:
            shapes += [(2, 8, 4), (256, 8, 4)]
        if dtype == torch.bfloat16:
            shapes += [(2, 9, 7), (2, 17, 3)]
        for batch, width, group in shapes:
            q = torch.empty((batch * width, kv_heads * group, head_dim), dtype=dtype)
            table = torch.zeros((batch, 256), dtype=torch.int32)
            yield partial(
                attention.verify_attention,
                q,
                cache,
                cache,
                table,
                _ints(batch + 1),
                _ints(batch),
                head_dim**-0.5,
                max_width=width,
            )


def _small_model() -> Iterator[Callable[[], object]]:
    """SmolLM2's 9 and 3 heads of 64, whose keys and values are no power of two."""
    page, blocks, heads, kv_heads, head_dim = 16, 512, 9, 3, 64
    for dtype in TYPES:
        cache = torch.empty((blocks, page, kv_heads, head_dim), dtype=dtype)
        rows = torch.empty((16, heads + 2 * kv_heads, head_dim), dtype=dtype)
        q, k, v = torch.split(rows, [heads, kv_heads, kv_heads], 1)
        yield partial(attention.write_kv, k, v, cache, cache, torch.zeros(16, dtype=torch.int64))
        for batch, width in product((2, 256), (5, 9, None)):
            table = torch.zeros((batch, 256), dtype=torch.int32)
            yield partial(
                attention.verify_attention, q, cache, cache, table, _ints(batch + 1), _ints(batch), head_dim**-0.5,
                max_width=width,
            )  # fmt: skip


def _depths() -> Iterator[Callable[[], object]]:
    for batch, depths, price in ((256, 16, None), (64, 8, None), (64, 8, 100.0), (64, 4, None), (64, 4, 100.0)):
        floats = torch.ones(batch)
        tables = (torch.ones(batch * depths + 1), torch.ones(depths + 1))
        survival = torch.ones((batch, depths))
        yield partial(allocate.allocate, survival, floats, _ints(batch), 3.0, *tables, price=price)
    for batch, depths, cells in ((256, 16, 72), (60, 8, 6), (60, 4, 1)):
        odds, rows, counts = torch.ones((depths, cells)), torch.ones(batch), _ints(batch)
        for effect in ((), (rows, rows)):
            yield partial(accept_stats.accept_stats, odds, counts, counts, counts, *effect)
            yield partial(accept_stats.survival, odds, counts, *effect)


def cases() -> Iterator[Callable[[], object]]:
    """Yield the launches, one after the other."""
    yield from _verification()
    yield from _ratio()
    yield from _rotation()
    yield from _attention()
    yield from _small_model()
    yield from _depths()
