"""Offline: what a baseline may be tuned on before it serves, as its maker's users would tune it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from adaptive_spec.experiments.baselines.confidence import FEATURE, ConfidenceTable
from adaptive_spec.experiments.baselines.signal_ceiling import predict_survival
from adaptive_spec.replay.trace import Trace
from adaptive_spec.step import FloatArray


@dataclass(frozen=True, eq=False)
class Offline:
    """What there is before serving begins.

    Attributes
    ----------
    training : Trace
        Texts to tune on: the training half.
    served : Trace
        Texts that will be served. Only the yardstick of causal signals looks at them, to predict them.
    max_depth : int
        K.
    batch_sizes : tuple of int
        Numbers of sequences that a table is tuned for.
    seed : int
        Of every random choice in the tuning.

    What is fitted is kept, so make one for a trace and hand the same to all factories.
    """

    training: Trace
    served: Trace
    max_depth: int
    batch_sizes: tuple[int, ...] = (1, 4, 16, 64, 256)
    seed: int = 0

    @property
    def context(self) -> float:
        """KV tokens of a sequence, on average over the training texts."""
        trace = self.training
        return float((trace.prompt_tokens + trace.output_tokens / 2.0).mean())

    @property
    def ngram(self) -> bool:
        """Whether the drafter looks its drafts up: it then tells how long a match it found."""
        return FEATURE in self.training.evidence_names

    @cached_property
    def confidence(self) -> ConfidenceTable:
        """The stand-in for a draft confidence, fitted on the training half; the same for all peers that need one."""
        return ConfidenceTable.fit(self.training, self.max_depth)

    @cached_property
    def survival(self) -> FloatArray:
        """What a predictor trained on the training half says of the served texts, shape (positions, K)."""
        return predict_survival(self.training, self.served, self.max_depth, self.seed)
