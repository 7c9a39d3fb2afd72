"""EvidenceGrid: sorts what is known before a step's first draw into buckets, the cells of the acceptance model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_spec import loops
from adaptive_spec.step import FloatArray, IntArray


@dataclass(frozen=True)
class EvidenceFeature:
    """One fact that is known before the first draft of a step is drawn, and the bins that it is sorted into.

    Attributes
    ----------
    name : str
        Name of the evidence column.
    edges : tuple of float
        Increasing; a value falls into the bin numbered by how many edges it reaches, so there are
        ``len(edges) + 1`` bins. NaN (unknown) reaches none: bin 0.
    """

    name: str
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        edges = np.asarray(self.edges, dtype=np.float64)
        if edges.ndim != 1 or not np.all(np.isfinite(edges)) or np.any(np.diff(edges) <= 0):
            raise ValueError(f"edges of evidence {self.name!r} must be finite and increasing, not {self.edges}")

    @property
    def bins(self) -> int:
        """Number of bins."""
        return len(self.edges) + 1


EVIDENCE: dict[str, EvidenceFeature] = {
    feature.name: feature
    for feature in (
        # Tokens of the longest suffix that occurred before: 0 | 1 | 2 | 3-4 | 5-8 | 9-16 | 17+.
        EvidenceFeature("matched_length", (1.0, 2.0, 3.0, 5.0, 9.0, 17.0)),
        # Who drafts: 0 lookup, 1 table, 2 model.
        EvidenceFeature("source", (1.0, 2.0)),
        # Output tokens so far, the one that the prefill yields included: 0-1 | 2-7 | 8+. The first ones after a
        # prompt are hard to guess.
        EvidenceFeature("age", (2.0, 8.0)),
        # Share of the matched places that continue with the same token.
        EvidenceFeature("agreement", (0.4, 0.7, 0.95)),
        # Drafts of the sequence's latest verification that were accepted: none was verified yet | 0 | 1 | 2-3 | 4+.
        EvidenceFeature("last_accepted", (0.0, 1.0, 2.0, 4.0)),
        # Log-odds of the likeliest token of the draft distribution at position 1.
        EvidenceFeature("log_odds", (-1.0, 0.0, 1.0, 2.5)),
    )
}


class EvidenceGrid:
    """The cells into which the bins of all features cross, the first feature varying slowest.

    Parameters
    ----------
    evidence : sequence of EvidenceFeature or str
        One per evidence column, in order, the most telling first (a cell without data leans on the
        marginal of the first). Names are looked up in :data:`EVIDENCE`. May be empty: one cell.

    Attributes
    ----------
    features : tuple of EvidenceFeature
    size : int
        Number of cells, C.
    """

    def __init__(self, evidence: Sequence[EvidenceFeature | str] = ()) -> None:
        self.features = tuple(_standard(item) if isinstance(item, str) else item for item in evidence)
        names = [feature.name for feature in self.features]
        if len(set(names)) < len(names):
            raise ValueError(f"evidence features must have different names, not {', '.join(names)}")
        self.size = math.prod(feature.bins for feature in self.features)
        stride = self.size // (self.features[0].bins if self.features else 1)
        column: list[int] = []
        threshold: list[float] = []
        strides: list[int] = []
        for i, feature in enumerate(self.features):
            column += [i] * len(feature.edges)
            threshold += feature.edges
            strides += [stride] * len(feature.edges)
            if i + 1 < len(self.features):
                stride //= self.features[i + 1].bins
        self._column = np.array(column, dtype=np.int64)
        self._threshold = np.array(threshold, dtype=np.float64)
        self._stride = np.array(strides, dtype=np.int64)

    def cells(self, evidence: FloatArray) -> IntArray:
        """Return the cell of each sequence, shape (B,), from `evidence`, shape (B, F).

        Every edge that a value reaches moves the cell on by the stride of its feature.
        """
        if evidence.ndim != 2 or evidence.shape[1] != len(self.features):
            raise ValueError(
                f"evidence has shape {evidence.shape}; this model needs (sequences, {len(self.features)}): "
                f"{', '.join(f.name for f in self.features) or 'no columns'}"
            )
        if not len(self._column):
            return np.zeros(len(evidence), dtype=np.int64)
        return loops.sort_into_cells(loops.real(evidence.T), self._column, self._threshold, self._stride)

    def describe(self) -> list[list[object]]:
        """Names and edges of the features, as plain lists: what a saved state is compared by."""
        return [[feature.name, [float(edge) for edge in feature.edges]] for feature in self.features]


def _standard(name: str) -> EvidenceFeature:
    """Look a standard feature up; ValueError lists those there are."""
    if name not in EVIDENCE:
        raise ValueError(f"no standard evidence is called {name!r}; there are {', '.join(EVIDENCE)}")
    return EVIDENCE[name]
