"""DraftSampler: draws one token for each text of a draft model's pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptive_spec.engine.sampling_mode import SamplingMode
from adaptive_spec.engine.staging import Staging
from adaptive_spec.engine.text_sampling import TextSampling
from adaptive_spec.kernels import backend, noise, ops

# A row's noise is keyed by its seed plus the stream's constant: this much further, match mode draws the drafts' noise.
_TO_DRAFT_STREAM = noise.GOLDEN_64 * (noise.DRAFT_STREAM - noise.MATCH_STREAM)


@dataclass(slots=True)
class DraftRows:
    """The sampling of the texts that are drafted for, deepest first, as tensors.

    Attributes
    ----------
    greedy, truncated : bool
        Whether all of them are greedy; whether any has top-k or top-p.
    position : int64 Tensor, shape (n,)
        Output position of each text's first draft.
    early : list of (int, int, tuple of int)
        Rows, the draft from which on their stop tokens may be drawn, and these tokens.
    """

    greedy: bool
    truncated: bool
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    sample_index: Tensor
    position: Tensor
    early: list[tuple[int, int, tuple[int, ...]]]

    @classmethod
    def of(
        cls, sampling: Sequence[TextSampling], lengths: Sequence[int], mode: SamplingMode, staging: Staging
    ) -> DraftRows:
        """Collect them; `lengths` are the texts', in tokens, prompts included. They hold until the staging's next."""
        position = [n - s.num_prompt_tokens for n, s in zip(lengths, sampling, strict=True)]
        drawn = [s for s in sampling if not s.greedy]
        offset = _TO_DRAFT_STREAM if mode == "ratio" else 0
        early = [
            (row, s.min_tokens - at, s.stops)
            for row, (s, at) in enumerate(zip(sampling, position, strict=True))
            if s.min_tokens > at and s.stops
        ]
        real = np.array([[s.temperature for s in sampling], [s.top_p for s in sampling]], dtype=np.float32)
        seed, sample_index, at, top_k, temperature, top_p = staging.put(
            np.array([_int64(s.seed + offset) for s in sampling], dtype=np.int64),
            np.array([s.sample_index for s in sampling], dtype=np.int64),
            np.array(position, dtype=np.int64),
            np.array([s.top_k for s in sampling], dtype=np.int32),
            *real.view(np.int32),
        )
        return cls(
            greedy=mode == "match" or not drawn,
            truncated=any(s.top_k > 0 or s.top_p < 1.0 for s in drawn),
            temperature=temperature.view(torch.float32),
            top_k=top_k,
            top_p=top_p.view(torch.float32),
            seed=seed,
            sample_index=sample_index,
            position=at,
            early=early,
        )


class DraftSampler:
    """Draws drafts, and keeps what they were drawn from where the ratio rule needs it.

    Parameters
    ----------
    mode : {"match", "coupled", "ratio"}
        ``match``: the likeliest token; ``coupled``: with the target's noise, of the same seed and position;
        ``ratio``: with noise of another stream, after the request's own top-k and top-p.
    rows : DraftRows
        The texts, deepest first.
    vocab_size : int
        Columns of the target's logits; a draft model whose own were padded to another number is cut or filled up.
    """

    def __init__(self, mode: SamplingMode, rows: DraftRows, vocab_size: int) -> None:
        self.mode = mode
        self.rows = rows
        self.vocab_size = vocab_size
        self.logits: list[Tensor] = []  # of each pass, in ratio mode

    def draw(self, logits: Tensor, draft: int) -> Tensor:
        """Draw draft number `draft`, from 0, of the first texts.

        Parameters
        ----------
        logits : Tensor, shape (n, any)
            Of the first n texts; it may be written to.

        Returns
        -------
        int32 Tensor, shape (n,)
        """
        rows, n = self.rows, len(logits)
        logits = logits[:, : self.vocab_size]
        for row, until, stops in rows.early:
            if row < n and draft < until:
                logits[row, list(stops)] = -torch.inf
        cu = torch.arange(n + 1, dtype=torch.int32, device=logits.device)
        nothing = cu[:0]
        with backend.trusted():  # the offsets are those of above
            if rows.greedy:
                tokens, _ = ops.verify_greedy(logits, cu, nothing, 0)
            else:
                tokens, _ = ops.verify_match(
                    logits,
                    cu,
                    nothing,
                    0,
                    temperature=rows.temperature[:n],
                    top_k=rows.top_k[:n],
                    top_p=rows.top_p[:n],
                    seed=rows.seed[:n],
                    sample_index=rows.sample_index[:n],
                    position=rows.position[:n] + draft,
                )
        if self.mode == "ratio":
            if rows.truncated:
                logits = truncate(logits, rows.temperature[:n], rows.top_k[:n], rows.top_p[:n])
            missing = self.vocab_size - logits.shape[1]
            self.logits.append(F.pad(logits, (0, missing), value=-torch.inf) if missing else logits)
        drawn: Tensor = tokens[:, 0]
        return drawn


def truncate(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return the logits with minus infinity where :func:`adaptive_spec.kernels.ops.verify_match` would never draw.

    Parameters
    ----------
    logits : float Tensor, shape (n, V)
    temperature, top_k, top_p : Tensor, shape (n,)
        As in :func:`adaptive_spec.kernels.ops.verify_match`.

    Returns
    -------
    float Tensor, shape (n, V)
    """
    # Tokens that tie with the last one kept are kept: the cut is a value, no rank.
    x = torch.where(torch.isnan(logits), -torch.inf, logits) * noise.inverse_temperature(temperature)[:, None]
    vocabulary = x.shape[1]
    ordered = x.sort(dim=1, descending=True).values
    rank = torch.where(top_k > 0, top_k, vocabulary).clamp(max=vocabulary).long() - 1
    least = ordered.gather(1, rank[:, None])
    peak = ordered[:, :1]
    mass = torch.where(ordered == peak, 0.0, ordered.double() - peak.double()).exp() * (ordered >= least)
    before = mass.cumsum(1) - mass
    kept = before < top_p[:, None].double() * mass.sum(1, keepdim=True)
    last = torch.where(top_p < 1.0, kept.sum(1).clamp(min=1) - 1, vocabulary - 1)
    least = torch.maximum(least, ordered.gather(1, last[:, None]))
    return torch.where(x >= least, logits, -torch.inf)


def _int64(value: int) -> int:
    """The whole number of 64 bits, with sign, that `value` wraps to."""
    return (value + 2**63) % 2**64 - 2**63
