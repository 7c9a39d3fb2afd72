"""ConfidenceTable: the stand-in for a draft model's confidence, which n-gram drafts don't have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_spec.evidence import EVIDENCE
from adaptive_spec.replay.trace import Trace
from adaptive_spec.step import FloatArray, IntArray

CERTAIN = 1e-3  # no confidence comes nearer to 0 or 1
FEATURE = "matched_length"


@dataclass(frozen=True)
class ConfidenceTable:
    """How sure a drafter would be of each of its next drafts, by the length of the match it found.

    vLLM's adaptive verification, DSpark and Hugging Face's threshold read a number between 0 and 1 beside
    every draft: a confidence head's output, or the draft distribution's largest probability. A lookup
    drafter has neither. In their place stands a calibrated table over matched length and draft position,
    fitted on the training half of the texts, the same for all peers that need one. It is kinder to them
    than a real confidence in that it is calibrated, and less kind in that it can't tell apart two drafts
    of the same matched length. Traces without matched lengths (synthetic ones, EAGLE's) get one row, of the
    acceptance by position.

    Attributes
    ----------
    acceptance : float array, shape (bins, K)
        Share of the drafts at each position, all before it accepted, that were accepted.
    column : int, optional
        The evidence column that holds the matched length; None: there is one row for all.
    """

    acceptance: FloatArray
    column: int | None = 0

    @classmethod
    def fit(cls, trace: Trace, max_depth: int, weight: float = 4.0) -> ConfidenceTable:
        """Count acceptance over every position of the texts.

        Parameters
        ----------
        trace : Trace
            The training half.
        max_depth : int
            K.
        weight : float
            Drafts that the average over all matched lengths counts for in each cell.

        Raises
        ------
        ValueError
            If the trace has no draft.
        """
        names = trace.evidence_names
        column = names.index(FEATURE) if FEATURE in names else None
        bin_of = np.zeros(trace.positions, dtype=np.int64) if column is None else _bins(trace.evidence[FEATURE])
        seen = np.zeros((1 if column is None else EVIDENCE[FEATURE].bins, max_depth))
        kept = np.zeros_like(seen)
        for k in range(max_depth):
            reached = (trace.offered > k) & (trace.run >= k)
            seen[:, k] = np.bincount(bin_of[reached], minlength=len(seen))
            kept[:, k] = np.bincount(bin_of[reached & (trace.run > k)], minlength=len(seen))
        total = seen.sum(axis=0)
        if not total[0]:
            raise ValueError("the training half has no draft; there is nothing to fit confidences on")
        average = np.zeros(max_depth)
        for k in range(max_depth):  # a position that no draft reached is taken to be like the one before
            average[k] = kept[:, k].sum() / total[k] if total[k] else average[k - 1]
        acceptance = (kept + weight * average) / (seen + weight)
        return cls(np.clip(acceptance, CERTAIN, 1.0 - CERTAIN), column)

    @property
    def max_depth(self) -> int:
        """K."""
        return int(self.acceptance.shape[1])

    def confidence(self, evidence: FloatArray) -> FloatArray:
        """Chance that each next draft is accepted if all before it are, shape (B, K), from evidence (B, F)."""
        return self.acceptance[self.bins(evidence)]

    def bins(self, evidence: FloatArray) -> IntArray:
        """Row of the table for each sequence, shape (B,), from evidence (B, F)."""
        return np.zeros(len(evidence), dtype=np.int64) if self.column is None else _bins(evidence[:, self.column])

    def check(self, max_depth: int) -> None:
        """ValueError if the table is for fewer drafts than a deployment makes."""
        if self.max_depth < max_depth:
            raise ValueError(
                f"confidence is a table for {self.max_depth} drafts; this deployment makes up to {max_depth}: fit it "
                "for these"
            )

    def __repr__(self) -> str:
        return f"ConfidenceTable(<{self.acceptance.shape[0]} matched lengths, {self.max_depth} drafts>)"


def _bins(matched: NDArray[Any]) -> IntArray:
    values = np.asarray(matched, dtype=np.float64)
    edges = np.array(EVIDENCE[FEATURE].edges)
    return np.searchsorted(edges, np.where(np.isnan(values), -np.inf, values), side="right").astype(np.int64)
