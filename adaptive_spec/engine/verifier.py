"""Verifier: which drafts stand, and the token that each text gains after them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_spec.engine.staging import Staging
from adaptive_spec.kernels import backend, ops
from adaptive_spec.serving.sequence import Sequence as Text
from adaptive_spec.step import IntArray


@dataclass(slots=True)
class SamplingRows:
    """The sampling parameters of a batch as tensors, kept while the batch stays the same."""

    ids: list[int]
    greedy: bool
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    sample_index: Tensor

    @classmethod
    def of(cls, texts: list[Text], staging: Staging) -> SamplingRows:
        """Collect them; every text's `request` has `sampling_params` and `seed`."""
        params = [text.request.sampling_params for text in texts]
        real = np.array([[p.temperature for p in params], [p.top_p for p in params]], dtype=np.float32)
        seed, sample_index, top_k, temperature, top_p = staging.put(
            np.array([text.request.seed for text in texts], dtype=np.int64),
            np.array([text.sample_index for text in texts], dtype=np.int64),
            np.array([p.top_k for p in params], dtype=np.int32),
            *real.view(np.int32),
        )
        return cls(
            ids=[text.id for text in texts],
            greedy=all(p.greedy for p in params),
            temperature=temperature.view(torch.float32),
            top_k=top_k,
            top_p=top_p.view(torch.float32),
            seed=seed,
            sample_index=sample_index,
        )


class Verifier:
    """Verifies drafts where the target's logits lie; a GPU is waited for once, for the tokens.

    Parameters
    ----------
    device : torch.device
        The target's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._staging = Staging(device)
        self._parameters = Staging(device)
        self._sampling: SamplingRows | None = None

    def verify(
        self,
        logits: Tensor,
        texts: list[Text],
        drafted: IntArray,
        draft: NDArray[np.int32],
        draft_logits: Tensor | None = None,
    ) -> tuple[list[list[int]], IntArray]:
        """Verify the drafts of the first texts, and draw the first token of the others, whose prefill ended.

        Parameters
        ----------
        logits : Tensor, shape (N, V)
            One row for each draft and one more for each text; stop tokens that come too early are barred in place.
        texts : list of Sequence, length B
        drafted : int array, shape (D,)
            Drafts of each of the first D texts.
        draft : int32 array, shape (sum of drafted,)
            The drafts end to end.
        draft_logits : Tensor, shape (sum of drafted, V), optional
            What the drafts were drawn from. With it they are accepted by the ratio of the two probabilities, without
            it when they equal the token that the target emits.

        Returns
        -------
        tokens : list of list of int, length B
            What each text gains.
        accepted : int array, shape (D,)
        """
        if not texts:
            return [], drafted
        cu = np.zeros(len(texts) + 1, dtype=np.int32)
        np.cumsum(np.concatenate((drafted + 1, np.ones(len(texts) - len(drafted), dtype=np.int64))), out=cu[1:])
        position = np.array([text.num_output_tokens for text in texts], dtype=np.int64)
        barred_row, barred_token = _early_stops(texts, cu, position)
        at, row, token, rows, drafts = self._tensors(
            position, barred_row, barred_token, cu, np.ascontiguousarray(draft, dtype=np.int32)
        )
        if len(barred_row):
            logits[row, token] = -torch.inf
        sampling = self._sampling
        if sampling is None or sampling.ids != [text.id for text in texts]:
            sampling = self._sampling = SamplingRows.of(texts, self._parameters)
        max_depth = _width_bound(drafted, backend.backend_of(logits))
        with backend.trusted():  # the offsets are those of above
            if sampling.greedy:
                emitted, count = ops.verify_greedy(logits, rows, drafts, max_depth)
            else:
                parameters = {
                    "temperature": sampling.temperature,
                    "top_k": sampling.top_k,
                    "top_p": sampling.top_p,
                    "seed": sampling.seed,
                    "sample_index": sampling.sample_index,
                    "position": at,
                }
                if draft_logits is None:
                    emitted, count = ops.verify_match(logits, rows, drafts, max_depth, **parameters)
                else:
                    emitted, count = ops.verify_ratio(
                        logits, rows, drafts, max_depth, draft_logits=draft_logits, **parameters
                    )
        if self.device.type == "cpu":
            counts, emissions = count.tolist(), emitted.tolist()
        else:  # one copy, one wait
            together = torch.cat((count[:, None], emitted), 1).tolist()
            counts, emissions = [line[0] for line in together], [line[1:] for line in together]
        tokens = [line[:n] for line, n in zip(emissions, counts, strict=True)]
        return tokens, np.array(counts[: len(drafted)], dtype=np.int64) - 1

    def _tensors(self, *arrays: NDArray[np.int64] | NDArray[np.int32]) -> list[Tensor]:
        if self.device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        return self._staging.put(*arrays)


def _width_bound(drafted: IntArray, served_by: str) -> int:
    """The deepest draft; for GPUs one less than 16, 32, ..., so that few kernels have to be compiled."""
    deepest = int(drafted.max(initial=0))
    return deepest if served_by == "cpu" else max(15, (1 << deepest.bit_length()) - 1)


def _early_stops(
    texts: list[Text], cu: NDArray[np.int32], position: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that come before their text's `min_tokens`, and its stop tokens, as pairs."""
    rows: list[int] = []
    tokens: list[int] = []
    for i, text in enumerate(texts):
        early = text.min_tokens - int(position[i])
        if early > 0 and (stops := sorted(text.eos_token_ids | text.stop_token_ids)):
            for row in range(int(cu[i]), min(int(cu[i]) + early, int(cu[i + 1]))):
                rows += [row] * len(stops)
                tokens += stops
    return np.array(rows, dtype=np.int64), np.array(tokens, dtype=np.int64)
