"""Random ragged batches and paged caches on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def batch_of(
    batch: int, depth: int, vocabulary: int, dtype: torch.dtype, device: torch.device, seed: int
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Ragged logits, offsets, drafts that are mostly right, and sampling parameters."""
    g = torch.Generator(device=device).manual_seed(seed)
    depths = torch.randint(0, depth + 1, (batch,), generator=g, device=device)
    depths[0] = depth
    cu = torch.zeros(batch + 1, dtype=torch.int32, device=device)
    cu[1:] = (depths + 1).cumsum(0)
    logits = (torch.randn(int(cu[-1]), vocabulary, generator=g, device=device) * 2.5).to(dtype)
    rows = torch.arange(int(depths.sum()), device=device) + torch.arange(batch, device=device).repeat_interleave(depths)
    right = logits.argmax(1)[rows]
    wrong = torch.randint(0, vocabulary, right.shape, generator=g, device=device)
    draft = torch.where(torch.rand(right.shape, generator=g, device=device) < 0.8, right, wrong).int()
    sampling = {
        "temperature": torch.ones(batch, device=device),
        "top_k": torch.zeros(batch, dtype=torch.int32, device=device),
        "top_p": torch.ones(batch, device=device),
        "seed": torch.randint(0, 2**60, (batch,), generator=g, device=device),
        "sample_index": torch.zeros(batch, dtype=torch.int64, device=device),
        "position": torch.arange(batch, device=device),
    }
    return logits, cu, draft, sampling


def paged(
    batch: int, widths: Tensor, context: int, heads: tuple[int, int, int], dtype: torch.dtype, seed: int
) -> tuple[Any, ...]:
    """Queries and a cache in scattered blocks; what no sequence owns is NaN."""
    query_heads, kv_heads, head_dim = heads
    device = widths.device
    g = torch.Generator(device=device).manual_seed(seed)
    page = 16
    length = (widths + context).int()
    blocks = -(-int(length.max()) // page)
    order = torch.randperm(batch * blocks, generator=g, device=device)
    table = order.view(batch, blocks).int()
    shape = (batch * blocks, page, kv_heads, head_dim)
    k, v = (torch.randn(shape, generator=g, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
    token = torch.arange(blocks * page, device=device).view(blocks, page)
    stale = token[None] >= length[:, None, None]
    for cache in (k, v):
        cache[table.long()[:, :, None].expand_as(stale)[stale], (token % page).expand_as(stale)[stale]] = float("nan")
    cu = torch.zeros(batch + 1, dtype=torch.int32, device=device)
    cu[1:] = widths.cumsum(0)
    q = torch.randn(int(cu[-1]), query_heads, head_dim, generator=g, device=device).to(dtype)
    return q, k, v, table, cu, length, head_dim**-0.5
