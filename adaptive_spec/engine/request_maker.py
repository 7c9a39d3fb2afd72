"""RequestMaker: makes requests of prompts and sampling parameters, or says why one can't be served."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from adaptive_spec.engine.detokenizer import Detokenizer
from adaptive_spec.engine.model_config import ModelConfig
from adaptive_spec.engine.request import Request
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.engine.tokenizer import Tokenizer
from adaptive_spec.serving.scheduler import Scheduler
from adaptive_spec.serving.sequence import Sequence as Text

Prompt: TypeAlias = str | list[int]
Params: TypeAlias = SamplingParams | Sequence[SamplingParams] | None


class RequestMaker:
    """Makes requests, and numbers their texts in the order of arrival.

    Parameters
    ----------
    config : ModelConfig
        The model's.
    tokenizer : Tokenizer
    scheduler : Scheduler
        Knows what can be served.
    seed : int
        Draws a seed for every request that has none.
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer, scheduler: Scheduler, seed: int) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.scheduler = scheduler
        self._numbers = itertools.count()
        self._rng = np.random.default_rng(seed)

    def make_all(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params) -> list[Request]:
        """Make a request of each prompt; ValueError says which one can't be served."""
        single = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        many: Any = [prompts] if single else list(prompts)
        if sampling_params is None:
            sampling_params = SamplingParams()
        params = [sampling_params] * len(many) if isinstance(sampling_params, SamplingParams) else sampling_params
        if len(params) != len(many):
            raise ValueError(f"{len(many)} prompts but {len(params)} sampling_params; give one, or one for each")
        requests = []
        for i, (prompt, own) in enumerate(zip(many, params, strict=True)):
            try:
                requests.append(self.make(f"#{next(self._numbers)}", prompt, own))
            except ValueError as error:
                raise ValueError(f"prompt {i}: {error}" if len(many) > 1 else str(error)) from None
        return requests

    def make(self, request_id: str, prompt: Prompt, params: SamplingParams) -> Request:
        """Make a request and its texts; ValueError if it can't be served."""
        tokens, max_tokens = self.check(prompt, params)
        seed = int(self._rng.integers(2**63)) if params.seed is None else params.seed
        request = Request(request_id, prompt if isinstance(prompt, str) else None, tokens, params, seed)
        request.texts = [
            Text(
                id=next(self._numbers),
                tokens=list(tokens),
                max_tokens=max_tokens,
                min_tokens=params.min_tokens,
                eos_token_ids=frozenset() if params.ignore_eos else frozenset(self.tokenizer.eos_token_ids),
                stop_token_ids=frozenset(params.stop_token_ids),
                keep_stop_token=params.include_stop_str_in_output,
                weight=request.weight,
                sample_index=index,
                sink=Detokenizer(self.tokenizer, params, tokens),
                request=request,
            )
            for index in range(params.n)
        ]
        return request

    def check(self, prompt: Prompt, params: SamplingParams) -> tuple[list[int], int]:
        """A prompt's tokens and the most that can follow them; ValueError if the request can't be served."""
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt) if prompt else []
        else:
            tokens = [int(token) for token in prompt]
            self._check_known(tokens, "token {} of the prompt")
        self._check_known(params.stop_token_ids, "stop_token_ids: token {}")
        max_tokens = self.config.max_model_len if params.max_tokens is None else params.max_tokens
        return tokens, self.scheduler.check(len(tokens), max_tokens)

    def _check_known(self, tokens: Sequence[int], what: str) -> None:
        size = self.config.vocab_size
        if wrong := [token for token in tokens if not 0 <= token < size]:
            raise ValueError(f"{what.format(wrong[0])} is outside the vocabulary 0..{size - 1}")
