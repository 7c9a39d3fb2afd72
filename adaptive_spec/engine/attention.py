"""Attention over the paged cache: narrow rows by the CPU kernel, wide ones and other devices by torch."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_spec.engine.cpu_attention import BITS, CpuAttention

# Up to this many new rows the kernel is faster than torch's attention after gathering the blocks.
WIDEST_NARROW = 24


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu: Tensor,
    kv_len: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of ragged new rows over the paged cache.

    Row j of a sequence's n new rows sees its first ``kv_len - n + j + 1`` tokens, which are in the cache.

    Parameters
    ----------
    q : Tensor, shape (N, HQ, D)
        Rotated queries; sequence b owns rows ``cu[b]`` to ``cu[b+1] - 1``.
    k_cache, v_cache : Tensor, shape (P, S, HKV, D)
        One layer of the cache; same type as `q`.
    block_table : int Tensor, shape (B, max_blocks)
    cu : int Tensor, shape (B + 1,)
    kv_len : int Tensor, shape (B,)
        Tokens of each sequence in the cache, this pass's included.
    scale : float
        What scores are multiplied by.

    Returns
    -------
    Tensor, shape (N, HQ, D)
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    widths = np.diff(cu.cpu().numpy())
    narrow = widths <= WIDEST_NARROW
    if q.device.type == "cpu" and q.dtype in BITS and narrow.any():
        rows, heads, head_dim = q.shape
        kernel = CpuAttention(
            q.dtype,
            heads,
            k_cache.shape[2],
            head_dim,
            cu,
            kv_len,
            block_table,
            scale,
            WIDEST_NARROW,
            q.reshape(rows, -1).float().numpy(),
            out,
        )
        kernel.cache(k_cache.contiguous(), v_cache.contiguous())
        kernel.attend()
        widths = np.where(narrow, 0, widths)
    wide = np.flatnonzero(widths).tolist()
    attend_wide(q, k_cache, v_cache, block_table, cu.tolist(), kv_len.tolist(), wide, scale, out)
    return out


def attend_wide(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu: list[int],
    kv_len: list[int],
    sequences: list[int],
    scale: float,
    out: Tensor,
) -> None:
    """Attend for the listed sequences one by one, with torch; shapes as in :func:`paged_attention`.

    The keys are a view where a sequence's blocks follow each other in memory, a copy otherwise.
    """
    block_size = k_cache.shape[1]
    for b in sequences:
        first, last, tokens = cu[b], cu[b + 1], kv_len[b]
        blocks = block_table[b, : -(-tokens // block_size)]
        start = int(blocks[0])
        if torch.equal(blocks, torch.arange(start, start + len(blocks), dtype=blocks.dtype, device=blocks.device)):
            k, v = k_cache[start : start + len(blocks)], v_cache[start : start + len(blocks)]
        else:
            k, v = k_cache.index_select(0, blocks), v_cache.index_select(0, blocks)
        keys = k.flatten(0, 1)[:tokens].transpose(0, 1)[None]  # [1, HKV, tokens, D]
        values = v.flatten(0, 1)[:tokens].transpose(0, 1)[None]
        queries = q[first:last].transpose(0, 1)[None]
        width = last - first
        causal = width == tokens
        mask = None
        if not causal:
            mask = torch.ones(width, tokens, dtype=torch.bool, device=q.device).tril(tokens - width)
        attended = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=causal,
            scale=scale,
            enable_gqa=keys.shape[1] != queries.shape[1],
        )
        out[first:last] = attended[0].transpose(0, 1)
