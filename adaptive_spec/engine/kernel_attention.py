"""KernelAttention: one pass's rotation, cache writes and attention by the kernels that serve the model's device."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_spec.engine.kv_cache import KVCache
from adaptive_spec.engine.model_config import ModelConfig
from adaptive_spec.engine.packed_batch import PackedBatch
from adaptive_spec.kernels import ops


class HeadNorms(Protocol):
    """What attention reads of a layer: the norms of its heads, empty where it has none."""

    q_norm: Tensor
    k_norm: Tensor


class KernelAttention:
    """The attention of every layer of one pass, through :mod:`adaptive_spec.kernels.ops`.

    Nothing is read back to the host, and shapes alone decide what is launched: a pass may be captured in a CUDA graph.

    Parameters
    ----------
    config : ModelConfig
        Heads and their norm.
    batch : PackedBatch
        Sequences at its end may have no rows, and rows at its end may belong to none, with the slot -1: the padding
        of a captured pass. What comes out for such rows means nothing.
    cache : KVCache
        Where keys and values are written and read.
    cos, sin : float32 Tensor, shape (max_model_len, head_dim / 2)
        Rotary tables.
    scale : float
        What scores are multiplied by.
    """

    def __init__(
        self, config: ModelConfig, batch: PackedBatch, cache: KVCache, cos: Tensor, sin: Tensor, scale: float
    ) -> None:
        self._config, self._batch, self._cache, self._scale = config, batch, cache, scale
        self._cos, self._sin = cos, sin

    def __call__(self, i: int, layer: HeadNorms, qkv: Tensor) -> Tensor:
        """Attend in layer `i` for projected rows, shape (>= N, (HQ + 2 HKV) D), which are overwritten.

        Returns
        -------
        Tensor, shape (as many rows, HQ D)
        """
        c, batch, rows = self._config, self._batch, len(self._batch.tokens)
        heads = qkv[:rows].view(rows, c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        ops.rotate(
            heads[:, : c.num_heads + c.num_kv_heads],
            batch.positions,
            self._cos,
            self._sin,
            queries=c.num_heads,
            q_norm=layer.q_norm if c.qk_norm else None,
            k_norm=layer.k_norm if c.qk_norm else None,
            eps=c.rms_norm_eps,
        )
        q, k, v = torch.split(heads, [c.num_heads, c.num_kv_heads, c.num_kv_heads], 1)
        keys, values = self._cache.k[i], self._cache.v[i]
        ops.write_kv(k, v, keys, values, batch.slots)
        out = ops.verify_attention(
            q, keys, values, batch.block_table, batch.cu, batch.kv_len, self._scale, max_width=batch.max_width
        ).flatten(1)
        return F.pad(out, (0, 0, 0, len(qkv) - rows)) if len(qkv) > rows else out
