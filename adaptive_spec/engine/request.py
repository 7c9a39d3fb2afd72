"""Request: what was asked for, and the texts that answer it."""

from __future__ import annotations

from dataclasses import dataclass, field

from adaptive_spec.engine.detokenizer import Detokenizer
from adaptive_spec.engine.outputs import CompletionOutput, RequestOutput, SpeculationStats
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.serving.sequence import Sequence


@dataclass(slots=True, eq=False)
class Request:
    """One request.

    Attributes
    ----------
    request_id : str
    prompt : str or None
        None where it was given as tokens.
    prompt_token_ids : list of int
    sampling_params : SamplingParams
    seed : int
        Keys all of its noise: its own, or one that the engine drew.
    texts : list of Sequence
        One for each of its `n` samples.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    seed: int
    texts: list[Sequence] = field(default_factory=list)
    _told: list[tuple[int, int]] = field(default_factory=list)  # tokens and characters of each text handed out

    @property
    def weight(self) -> float:
        """Worth of one of its tokens."""
        return float(self.sampling_params.extra_args.get("adaptive_spec.weight", 1.0))

    @property
    def depth_limits(self) -> tuple[int | None, int | None]:
        """The deepest that it may be drafted, and the depth that it is pinned to; None where it doesn't say."""
        extra = self.sampling_params.extra_args
        if extra.get("adaptive_spec.off"):
            return 0, None
        return extra.get("adaptive_spec.max_depth"), extra.get("adaptive_spec.depth")

    @property
    def finished(self) -> bool:
        """Whether all of its texts have ended."""
        return all(text.finished for text in self.texts)

    def output(self) -> RequestOutput:
        """All that it has produced."""
        return self._output([(0, 0)] * len(self.texts))

    def news(self) -> RequestOutput:
        """What it has produced since this was last called; the statistics are the totals so far."""
        told = self._told or [(0, 0)] * len(self.texts)
        output = self._output(told)
        self._told = [
            (tokens + len(new.token_ids), characters + len(new.text))
            for (tokens, characters), new in zip(told, output.outputs, strict=True)
        ]
        return output

    def _output(self, told: list[tuple[int, int]]) -> RequestOutput:
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            [completion(text, *already) for text, already in zip(self.texts, told, strict=True)],
            self.finished,
        )


def completion(text: Sequence, tokens: int = 0, characters: int = 0) -> CompletionOutput:
    """What a text holds beyond its first `tokens` and `characters`."""
    sink = text.sink
    assert isinstance(sink, Detokenizer)
    depths = text.depths.tolist()
    return CompletionOutput(
        index=text.sample_index,
        text=sink.text[characters:],
        token_ids=text.tokens[text.num_prompt_tokens + tokens :],
        finish_reason=text.finish_reason,
        stop_reason=text.stop_reason,
        stats=SpeculationStats(len(depths), text.drafted, sum(depths), text.accepted, depths, text.num_preemptions),
    )
