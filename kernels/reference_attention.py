"""Attention over the paged cache in plain torch: sequence by sequence, as it is defined."""

from __future__ import annotations

import torch
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
    """Attend over the paged cache; see :func:`adaptive_spec.kernels.ops.verify_attention`.

    Arithmetic is that of the wider of float32 and q's type.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    page, group = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    for b in range(len(kv_len)):
        first, last, tokens = int(cu[b]), int(cu[b + 1]), int(kv_len[b])
        pages = block_table[b, : -(-tokens // page)].long()
        keys = k_cache[pages].flatten(0, 1)[:tokens].to(wide).repeat_interleave(group, 1)
        values = v_cache[pages].flatten(0, 1)[:tokens].to(wide).repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q[first:last].to(wide), keys) * scale
        visible = torch.arange(tokens, device=q.device) <= torch.arange(
            tokens - (last - first), tokens, device=q.device
        ).unsqueeze(1)
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write new keys and values into the paged cache; see :func:`adaptive_spec.kernels.ops.write_kv`."""
    kept = slots >= 0
    page = k_cache.shape[1]
    block, offset = slots[kept] // page, slots[kept] % page
    k_cache[block, offset] = k[kept]
    v_cache[block, offset] = v[kept]
