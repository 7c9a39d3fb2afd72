"""TextSampling: how the tokens of one text are chosen, as a drafter that draws needs to know it."""

from __future__ import annotations

from dataclasses import dataclass

from adaptive_spec.kernels.noise import GREEDY_TEMPERATURE
from adaptive_spec.serving.sequence import Sequence


@dataclass(slots=True, frozen=True)
class TextSampling:
    """How one text's tokens are chosen.

    Attributes
    ----------
    temperature : float
        0 (anything under 1e-5): the likeliest token.
    top_k : int
        0: off.
    top_p : float
        1: off.
    seed, sample_index : int
        Key the text's noise, beside the position.
    num_prompt_tokens : int
        Output position 0 stands behind them.
    max_tokens, min_tokens : int
        Bounds of the output; before `min_tokens` no token of `stops` is emitted.
    stops : tuple of int
        Tokens that end the text.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    sample_index: int = 0
    num_prompt_tokens: int = 0
    max_tokens: int = 1
    min_tokens: int = 0
    stops: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: Sequence) -> TextSampling:
        """Collect it; the text's `request` has `sampling_params` and `seed`."""
        params = text.request.sampling_params
        return cls(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=text.request.seed,
            sample_index=text.sample_index,
            num_prompt_tokens=text.num_prompt_tokens,
            max_tokens=text.max_tokens,
            min_tokens=text.min_tokens,
            stops=tuple(sorted(text.eos_token_ids | text.stop_token_ids)),
        )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < GREEDY_TEMPERATURE
