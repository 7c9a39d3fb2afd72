"""Passes: target passes over one KV cache, replayed from captured graphs where the model is on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_spec.engine.buckets import Buckets
from adaptive_spec.engine.captured_pass import CapturedPass, CapturedPasses
from adaptive_spec.engine.kv_cache import KVCache
from adaptive_spec.engine.model import Model
from adaptive_spec.engine.packed_batch import PackedBatch
from adaptive_spec.kernels import backend


def buckets_of(model: Model) -> Buckets | None:
    """The sizes that a model's passes are padded to; None where they are not: on a CPU, and without Triton."""
    return Buckets() if model.backend == "triton" else None


class Passes:
    """Runs a model's passes over one KV cache.

    On a CPU a pass is the model's forward pass. On a GPU a pass that fits a bucket is padded to it and replayed
    from a graph, and a larger one (with prefill chunks) is launched kernel by kernel.

    Parameters
    ----------
    model : Model
    cache : KVCache
        Captured passes are kept with it, and serve whoever runs passes over it later.
    max_depth : int, optional
        The most drafts of a sequence; lets a GPU use smaller tiles.

    Attributes
    ----------
    buckets : Buckets or None
        The sizes that passes are padded to; None where they are not.
    """

    def __init__(self, model: Model, cache: KVCache, max_depth: int | None = None) -> None:
        self.model = model
        self.cache = cache
        self.max_width = None if max_depth is None else max_depth + 1
        self.buckets = buckets_of(model)
        self._prepared = False
        if self.buckets is not None and cache.captured is None:
            blocks = -(-model.config.max_model_len // cache.block_size)
            cache.captured = CapturedPasses(model, cache, self.buckets.largest, blocks)

    @torch.inference_mode()
    def prepare(self, most_sequences: int, max_depth: int) -> int:
        """Capture every pass that decoding so many sequences to such a depth can need; return how many there are.

        After it nothing more is captured: a pass that fits none of them is launched kernel by kernel. Without it each
        is captured when a step first needs it, and that step waits.
        """
        if self.buckets is None or self.cache.captured is None:
            return 0
        # The largest first: the memory that it takes from the pool then serves all.
        wanted = self.buckets.decoding(most_sequences, max_depth)
        for bucket in wanted:
            self.cache.captured.capture(bucket, self.max_width)
        self._prepared = True
        return len(wanted)

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Tensor:
        """Run one pass; the host does not wait for it.

        Parameters
        ----------
        batch : PackedBatch
            On the host.

        Returns
        -------
        Tensor, shape (R, vocab_size)
            Logits of ``batch.logit_rows``, on the model's device.
        """
        captured = self._fitting(batch)
        if captured is None:
            with backend.trusted():
                return self.model.forward(batch.to(self.model.device), self.cache)
        return self.model.logits(captured.run(batch))

    def _fitting(self, batch: PackedBatch) -> CapturedPass | None:
        """The captured pass that a batch is padded to; None if it is to be launched as it is."""
        passes = self.cache.captured
        if self.buckets is None or passes is None:
            return None
        bucket = self.buckets.fitting(len(batch.tokens), len(batch.kv_len))
        if bucket is None or batch.block_table.shape[1] > passes.inputs.blocks:
            return None
        if self._prepared:
            return passes.find(bucket, self.max_width)
        return passes.capture(bucket, self.max_width)
