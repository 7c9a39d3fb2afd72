"""Attention over the paged cache on CPU: sequence by sequence, through torch's fused attention.

Padding all sequences to one batch was measured to take three to four times the CPU time, for its copies of the keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def verify_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu: Tensor,
    kv_len: Tensor,
    scale: float,
    *,
    max_width: int | None = None,
) -> Tensor:
    """Attend over the paged cache; see :func:`adaptive_spec.kernels.ops.verify_attention`."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    page, kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = q.shape[1] // kv_heads
    offsets = cu.tolist()
    for b, tokens in enumerate(kv_len.tolist()):
        first, last = offsets[b], offsets[b + 1]
        width = last - first
        blocks = block_table[b, : -(-tokens // page)]
        keys, values = (
            cache.index_select(0, blocks).flatten(0, 1)[:tokens].transpose(0, 1)[None] for cache in (k_cache, v_cache)
        )  # [1, HKV, tokens, D]
        # The heads that share a key go side by side as rows of one: torch's kernel would copy the keys for each.
        rows = q[first:last].reshape(width, kv_heads, group, -1).permute(1, 2, 0, 3).flatten(1, 2)[None]
        mask = None
        if width > 1:
            mask = torch.ones(width, tokens, dtype=torch.bool).tril(tokens - width).repeat(group, 1)
        attended = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)[0]
        out[first:last] = attended.view(kv_heads, group, width, -1).permute(2, 0, 1, 3).flatten(1, 2)
    return out
