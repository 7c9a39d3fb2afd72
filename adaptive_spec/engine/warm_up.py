"""Has the kernels of a step compiled before the first, as far as capturing its passes does not."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_spec.engine.drafters.draft_sampler import DraftRows, DraftSampler
from adaptive_spec.engine.model import Model
from adaptive_spec.engine.packed_batch import PackedBatch
from adaptive_spec.engine.pass_inputs import INERT_SLOT
from adaptive_spec.engine.passes import Passes
from adaptive_spec.engine.sampling_mode import SamplingMode
from adaptive_spec.engine.staging import Staging
from adaptive_spec.engine.text_sampling import TextSampling
from adaptive_spec.kernels import backend, ops

_SPLIT_TOKENS = 1024  # room for so many has a lone sequence's keys split
_LEAST_WIDTH = 16  # the verifier rounds widths up to it, and to powers of two above


def warm_up(passes: Passes, max_depth: int, mode: SamplingMode) -> None:
    """Have what a target's steps launch compiled; nothing to do where passes aren't padded, as on a CPU.

    Otherwise the first request would wait for it, and its time would be taken for what such a step costs.

    Parameters
    ----------
    passes : Passes
        The target's.
    max_depth : int
        The most drafts of a text; 0 without a drafter.
    mode : {"match", "coupled", "ratio"}
    """
    if passes.buckets is not None:
        warm_up_passes(passes)
        warm_up_verification(passes.model, max_depth, mode)


@torch.inference_mode()
def warm_up_passes(passes: Passes) -> None:
    """Run a pass that is not captured, its keys split and not; its one row is inert, and changes no cache."""
    if passes.buckets is None:
        return
    device, size = passes.model.device, passes.cache.block_size
    for blocks in {1, -(-_SPLIT_TOKENS // size)}:
        nothing = torch.zeros(1, dtype=torch.int64, device=device)
        none = torch.zeros(2, dtype=torch.int32, device=device)
        table = none.new_zeros((1, blocks))
        batch = PackedBatch(nothing, nothing, none, none[:1], table, nothing + INERT_SLOT, nothing)
        with backend.inert_rows():
            passes.model.forward(batch, passes.cache)


@torch.inference_mode()
def warm_up_verification(model: Model, max_depth: int, mode: SamplingMode) -> None:
    """Verify one draft of a made-up text greedily, sampled and, in ratio mode, by the ratio, at every width."""
    logits = _logits(model, 2)
    device = logits.device
    cu = torch.tensor([0, 2], dtype=torch.int32, device=device)
    draft = torch.zeros(1, dtype=torch.int32, device=device)
    words, real = torch.zeros(1, dtype=torch.int64, device=device), torch.ones(1, device=device)
    sampling = {"temperature": real, "top_k": draft, "top_p": real}
    sampling |= {"seed": words, "sample_index": words, "position": words}
    width = _LEAST_WIDTH
    while True:
        with backend.trusted():
            ops.verify_greedy(logits, cu, draft, width - 1)
            ops.verify_match(logits, cu, draft, width - 1, **sampling)
            if mode == "ratio":
                ops.verify_ratio(logits, cu, draft, width - 1, draft_logits=logits[:1], **sampling)
        if width > max_depth:
            return
        width *= 2


@torch.inference_mode()
def warm_up_drafting(passes: Passes, vocab_size: int, mode: SamplingMode) -> None:
    """Have what a draft model's steps launch compiled, its passes and draws; `vocab_size` is the target's."""
    if passes.buckets is None:
        return
    warm_up_passes(passes)
    staging = Staging(passes.model.device)
    for sampling in (TextSampling(), TextSampling(temperature=1.0)):
        rows = DraftRows.of([sampling], [0], mode, staging)
        DraftSampler(mode, rows, vocab_size).draw(_logits(passes.model, 1), 0)


def _logits(model: Model, rows: int) -> Tensor:
    """Logits of rows of zeros, laid out as those of a pass."""
    return model.logits(torch.zeros((rows, model.config.hidden_size), dtype=model.dtype, device=model.device))
