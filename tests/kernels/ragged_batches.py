"""Random ragged batches for the kernels' tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class RaggedBatch:
    """Target logits, drafts of which some four in five are what the target's argmax says, and sampling parameters."""

    depth: Tensor
    cu: Tensor
    logits: Tensor
    draft: Tensor
    max_depth: int
    sampling: dict[str, Tensor]
    generator: torch.Generator = field(repr=False)

    @property
    def rows_of_drafts(self) -> Tensor:
        """The row of the logits that judges each draft."""
        return torch.arange(len(self.draft)) + torch.repeat_interleave(torch.arange(len(self.depth)), self.depth)


def ragged(
    seed: int,
    batch: int,
    max_depth: int,
    vocabulary: int,
    *,
    scale: float = 2.5,
    truncated: bool = True,
    dtype: torch.dtype = torch.float32,
) -> RaggedBatch:
    """Draw a batch whose first sequence is as deep as can be and whose last has no drafts."""
    g = torch.Generator().manual_seed(seed)
    depth = torch.randint(0, max_depth + 1, (batch,), generator=g)
    depth[0] = max_depth
    depth[-1] = 0 if batch > 1 else depth[-1]
    cu = torch.zeros(batch + 1, dtype=torch.int32)
    cu[1:] = (depth + 1).cumsum(0)
    logits = (torch.randn(int(cu[-1]), vocabulary, generator=g) * scale).to(dtype)

    def choice(values: list[float], of: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=of)[torch.randint(0, len(values), (batch,), generator=g)]

    sampling = {
        "temperature": choice([0.0, 0.6, 1.0, 1.4], torch.float32),
        "top_k": choice([0, 0, 1, 5, 50, vocabulary] if truncated else [0], torch.int32),
        "top_p": choice([1.0, 1.0, 0.9, 0.5, 1e-6] if truncated else [1.0], torch.float32),
        "seed": torch.randint(-(2**62), 2**62, (batch,), generator=g),
        "sample_index": torch.randint(0, 3, (batch,), generator=g),
        "position": torch.randint(0, 10000, (batch,), generator=g),
    }
    result = RaggedBatch(depth, cu, logits, torch.zeros(0, dtype=torch.int32), max_depth, sampling, g)
    result.draft = torch.zeros(int(depth.sum()), dtype=torch.int32)
    best = logits.float().argmax(1)[result.rows_of_drafts]
    wild = torch.randint(-1, vocabulary, best.shape, generator=g)
    result.draft = torch.where(torch.rand(best.shape, generator=g) < 0.8, best, wild).int()
    return result


def on(device: torch.device, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move all tensors to a device."""
    return {name: value.to(device) for name, value in values.items()}
