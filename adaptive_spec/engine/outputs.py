"""RequestOutput: what a request has produced, under vLLM's names, and what its speculation came to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SpeculationStats:
    """What speculation did for one text.

    Attributes
    ----------
    steps : int
        Decoding steps. The first token comes with the prefill and takes none.
    drafted, verified, accepted : int
        Draft tokens made, judged, and kept in the text beside the one token of every step.
    depths : list of int
        Drafts verified in each step.
    preemptions : int
        Times that it lost its KV cache and was computed anew.
    """

    steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    depths: list[int] = field(default_factory=list)
    preemptions: int = 0

    @property
    def acceptance_length(self) -> float:
        """Tokens per decoding step: accepted drafts and the bonus token (NaN without a step)."""
        return 1 + self.accepted / self.steps if self.steps else float("nan")

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        return SpeculationStats(
            self.steps + other.steps,
            self.drafted + other.drafted,
            self.verified + other.verified,
            self.accepted + other.accepted,
            self.depths + other.depths,
            self.preemptions + other.preemptions,
        )


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's texts.

    Attributes
    ----------
    index : int
        Which of the request's `n` texts.
    text : str
    token_ids : list of int
    finish_reason : str or None
        ``stop``, ``length``, ``abort``, ``error``; None while it goes on.
    stop_reason : int, str or None
        The stop token or stop string that ended it (None for the model's own end), or the error.
    stats : SpeculationStats
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    stats: SpeculationStats = field(default_factory=SpeculationStats)

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """What a request has produced.

    Attributes
    ----------
    request_id : str
    prompt : str or None
        None where the prompt was given as tokens.
    prompt_token_ids : list of int
    outputs : list of CompletionOutput
        In the order of their index. :meth:`LLM.generate` returns them whole; what :meth:`LLM.stream` yields
        holds only what is new.
    finished : bool
        Whether all of them have ended.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool

    @property
    def stats(self) -> SpeculationStats:
        """The sum over its texts."""
        return sum((output.stats for output in self.outputs), SpeculationStats())
