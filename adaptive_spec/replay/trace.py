"""Trace: at every position of recorded texts, how many drafts would have been accepted, and what was known of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adaptive_spec.step import BoolArray, FloatArray, IntArray

SMALL = np.uint8
MAX_DEPTH = 255  # what the small type holds

StringArray: TypeAlias = NDArray[np.str_]


class TraceError(ValueError):
    """A trace, or a file of one, that can't be used; the message names the file, the fault and the remedy."""


@dataclass(frozen=True)
class TraceInfo:
    """What holds for all of a trace.

    Attributes
    ----------
    max_depth : int
        K, the deepest that drafts were asked for, 1..255.
    model, drafter, dtype : str
        Fingerprints, or names, of what made the texts and the drafts.
    sampling : mapping
        ``{"mode": "greedy"}``, or ``{"mode": "match", "temperature": ..., "top_p": ..., "top_k": ...}``; the seed
        of each text stands with its sequence. In both the text doesn't depend on the drafts, so a replay is exact.
    command : str
        What made the trace.
    synthetic : str
        What the figures were generated from, where they weren't recorded; empty for a recording. Whoever prints
        figures of a trace says so.
    notes : tuple of str
        What a reader must know, such as that runs were derived.
    """

    max_depth: int
    model: str = ""
    drafter: str = ""
    dtype: str = ""
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"mode": "greedy"})
    command: str = ""
    synthetic: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TraceSequence:
    """One text of a trace; its arrays run over output positions p = 1..n - 1 and are views.

    Attributes
    ----------
    text : int
        Which text it is; recordings of one text share the number.
    category, task : str
    prompt_tokens, output_tokens, max_tokens : int
        Tokens of the prompt; n, the tokens of the output; those that the request allowed.
    stopped : bool
        Whether the model ended the text, and not `max_tokens`.
    seed : int
        Of the text's noise in match mode; 0 if greedy.
    run : uint8 array, shape (n - 1,)
        L[p]: drafts that would be accepted when p output tokens exist.
    offered : uint8 array, shape (n - 1,)
        Drafts on offer.
    evidence : float array, shape (n - 1, F)
    """

    text: int
    category: str
    task: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    stopped: bool
    seed: int
    run: NDArray[np.uint8]
    offered: NDArray[np.uint8]
    evidence: FloatArray

    @property
    def context(self) -> IntArray:
        """Tokens in the KV cache at each position, shape (n - 1,)."""
        return self.prompt_tokens + np.arange(len(self.run), dtype=np.int64)

    def seen_runs(self, position: int) -> IntArray:
        """What is known of the earlier runs L[1], ..., L[p - 1] when `position` = p output tokens exist.

        L[j] says which tokens come after p wherever it reaches beyond p, and no live engine has these: a
        feature at p may use min(L[j], p - j) and nothing more. A predictor that used L[p - 1] itself looked
        twice as good as it was.
        """
        if not 1 <= position <= self.output_tokens:
            raise ValueError(f"position is {position}; it must lie in 1..{self.output_tokens}")
        distance = np.arange(position - 1, 0, -1, dtype=np.int64)
        return np.minimum(self.run[: position - 1], distance)


@dataclass(frozen=True, eq=False)
class Trace:
    """Acceptance traces of texts that don't depend on their drafts, in columns.

    At output position p (p tokens were produced already; p >= 1, since the prefill yields the first) a policy
    that chooses depth d has min(d, L[p]) drafts accepted and goes on at p + min(d, L[p]) + 1. So one recording
    replays every policy exactly.

    Attributes
    ----------
    info : TraceInfo
    start : int64 array, shape (N + 1,)
        Sequence i has the positions ``start[i] .. start[i + 1] - 1`` of the flat arrays; its position p is at
        ``start[i] + p - 1``.
    text, prompt_tokens, max_tokens : int array, shape (N,)
    seed : int64 array, shape (N,)
    stopped : bool array, shape (N,)
    category, task : str array, shape (N,)
        See :class:`TraceSequence`.
    run, offered : uint8 array, shape (P,)
        L[p] and the drafts on offer; run <= offered <= K.
    evidence : mapping of str to array, shape (P,)
        What the drafter reported, by the names of :data:`adaptive_spec.evidence.EVIDENCE`, without ``age``, which
        the position says.
    derived : bool array, shape (P,), optional
        Positions whose run was not observed but worked out from a neighbour's; None where all were observed.
    """

    info: TraceInfo
    start: IntArray
    text: IntArray
    category: StringArray
    task: StringArray
    prompt_tokens: IntArray
    max_tokens: IntArray
    stopped: BoolArray
    seed: IntArray
    run: NDArray[np.uint8]
    offered: NDArray[np.uint8]
    evidence: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    derived: BoolArray | None = None

    def __post_init__(self) -> None:
        depth, count, positions = self.info.max_depth, len(self.text), len(self.run)
        if not 1 <= depth <= MAX_DEPTH:
            raise TraceError(f"max_depth is {depth}; it must lie in 1..{MAX_DEPTH}")
        if self.start.shape != (count + 1,) or count == 0 or self.start[0] != 0 or self.start[-1] != positions:
            raise TraceError(
                f"start must run from 0 to {positions} in {count + 1} values, and there must be a sequence"
            )
        if (np.diff(self.start) < 0).any():
            raise TraceError("start must not fall")
        for column in ("category", "task", "prompt_tokens", "max_tokens", "stopped", "seed"):
            if getattr(self, column).shape != (count,):
                raise TraceError(f"{column} has shape {getattr(self, column).shape}; there are {count} sequences")
        flat = {"offered": self.offered, **{f"evidence {name!r}": column for name, column in self.evidence.items()}}
        if self.derived is not None:
            flat["derived"] = self.derived
        for column, values in flat.items():
            if values.shape != (positions,):
                raise TraceError(f"{column} has shape {values.shape}; there are {positions} positions")
        if "age" in self.evidence:
            raise TraceError("evidence 'age' must not be in a trace; the position says it")
        if (self.run > self.offered).any() or (self.offered > depth).any():
            at = int(np.argmax((self.run > self.offered) | (self.offered > depth)))
            raise TraceError(
                f"position {at} has {self.run[at]} accepted of {self.offered[at]} drafts on offer; accepted <= offered "
                f"<= {depth} (max_depth) must hold"
            )
        if (self.prompt_tokens < 1).any():
            raise TraceError(
                f"sequence {int(np.argmax(self.prompt_tokens < 1))} has no prompt; it needs a token at least"
            )
        if (self.max_tokens < self.output_tokens).any():
            at = int(np.argmax(self.max_tokens < self.output_tokens))
            raise TraceError(
                f"sequence {at} has {self.output_tokens[at]} output tokens; its max_tokens is {self.max_tokens[at]}"
            )

    # ---------------------------------------------------------------- reading

    def __len__(self) -> int:
        return len(self.text)

    def __iter__(self) -> Iterator[TraceSequence]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> TraceSequence:
        if not -len(self) <= i < len(self):
            raise IndexError(f"sequence {i} of a trace of {len(self)}")
        i %= len(self)
        part = slice(int(self.start[i]), int(self.start[i + 1]))
        evidence = np.zeros((part.stop - part.start, len(self.evidence)))
        for f, column in enumerate(self.evidence.values()):
            evidence[:, f] = column[part]
        return TraceSequence(
            int(self.text[i]),
            str(self.category[i]),
            str(self.task[i]),
            int(self.prompt_tokens[i]),
            part.stop - part.start + 1,
            int(self.max_tokens[i]),
            bool(self.stopped[i]),
            int(self.seed[i]),
            self.run[part],
            self.offered[part],
            evidence,
        )

    @property
    def max_depth(self) -> int:
        """K."""
        return self.info.max_depth

    @property
    def evidence_names(self) -> tuple[str, ...]:
        """Names of the evidence columns, in the drafter's order."""
        return tuple(self.evidence)

    @property
    def output_tokens(self) -> IntArray:
        """Tokens of each output, shape (N,)."""
        return np.diff(self.start) + 1

    @property
    def allowed_tokens(self) -> IntArray:
        """Output tokens that an engine must reckon with: it can't know where a text will stop; shape (N,)."""
        return np.where(self.stopped, self.max_tokens, self.output_tokens)

    @property
    def positions(self) -> int:
        """Output positions in all."""
        return len(self.run)

    @property
    def texts(self) -> IntArray:
        """The different texts, rising."""
        return np.unique(self.text)

    def survival(self) -> FloatArray:
        """Share of all positions at which at least k drafts would be accepted, for k = 1..K, shape (K,)."""
        counts = np.bincount(self.run, minlength=self.max_depth + 1)
        return np.cumsum(counts[::-1])[::-1][1:] / max(1, self.positions)

    def acceptance_length(self, depth: int | None = None) -> float:
        """Tokens per decoding step of a fixed depth (K if None) on every sequence, from its beginning; NaN without one.

        Not the mean of 1 + L[p] over all positions: a long run has many positions, of which a deep draft visits one.
        """
        steps = len(self.visited(self.max_depth if depth is None else depth))
        return float((self.output_tokens - 1).sum() / steps) if steps else float("nan")

    def visited(self, depth: int) -> IntArray:
        """The positions at which a fixed depth has its steps, as indices of `run` and `offered`."""
        position, output = np.ones(len(self), dtype=np.int64), self.output_tokens
        seen: list[IntArray] = []
        while len(live := np.flatnonzero(position < output)):
            here = self.start[live] + position[live] - 1
            seen.append(here)
            most = np.minimum(depth, output[live] - position[live] - 1)
            position[live] += np.minimum(self.run[here], most) + 1
        return np.concatenate(seen) if seen else np.zeros(0, dtype=np.int64)

    def describe(self) -> str:
        """Say in one line what the trace is; a synthetic one is called so."""
        kind = f"synthetic ({self.info.synthetic})" if self.info.synthetic else "recorded"
        said = (
            f"{kind} trace: {len(self)} sequences of {len(self.texts)} texts, {self.positions:,} positions, "
            f"K = {self.max_depth}, {self.acceptance_length():.2f} tokens a step at depth K"
        )
        if self.derived is not None:
            said += f", {self.derived.mean():.0%} of the runs derived from a neighbour's"
        return said

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    # ---------------------------------------------------------------- parts and sums

    def select(self, sequences: Sequence[int] | IntArray | BoolArray) -> Trace:
        """The trace of some of the sequences, by number or by mask, in the order given."""
        chosen = np.asarray(sequences)
        if chosen.dtype == bool:
            if chosen.shape != self.text.shape:
                raise ValueError(f"the mask has shape {chosen.shape}; there are {len(self)} sequences")
            chosen = np.flatnonzero(chosen)
        if not len(chosen):
            raise TraceError("no sequence is selected")
        length = np.diff(self.start)[chosen]
        start = np.concatenate(([0], np.cumsum(length)))
        # The flat index of each kept position: where its sequence began, plus how far into it.
        flat = np.repeat(self.start[chosen] - start[:-1], length) + np.arange(start[-1])
        return replace(
            self,
            start=start,
            **{name: getattr(self, name)[chosen] for name in _PER_SEQUENCE},
            run=self.run[flat],
            offered=self.offered[flat],
            evidence={name: column[flat] for name, column in self.evidence.items()},
            derived=None if self.derived is None else self.derived[flat],
        )

    def split(self, share: float = 0.5, seed: int = 0) -> tuple[Trace, Trace]:
        """Split by text: all recordings of a text are on one side.

        Parameters
        ----------
        share : float
            Of the texts that the first trace has, over 0 and below 1.
        seed : int
            Chooses them.
        """
        if not 0.0 < share < 1.0:
            raise ValueError(f"share is {share}; it must lie over 0 and below 1")
        texts = self.texts
        if len(texts) < 2:
            raise TraceError("a trace of one text can't be split by text; record more")
        first = min(max(1, round(share * len(texts))), len(texts) - 1)
        chosen = np.random.default_rng(seed).permutation(texts)[:first]
        mask = np.isin(self.text, chosen)
        return self.select(mask), self.select(~mask)

    @staticmethod
    def concat(traces: Sequence[Trace]) -> Trace:
        """Lay traces end to end; their texts get numbers of their own.

        Raises
        ------
        TraceError
            If K, model, drafter, dtype, sampling or evidence differ: such traces don't belong together.
        """
        if not traces:
            raise TraceError("there is no trace to concatenate")
        first = traces[0]
        for number, other in enumerate(traces[1:], start=1):
            for name in ("max_depth", "model", "drafter", "dtype", "sampling", "synthetic"):
                a, b = getattr(first.info, name), getattr(other.info, name)
                if a != b:
                    raise TraceError(f"trace {number} has {name} {b!r}, the first has {a!r}; compare them apart")
            if other.evidence_names != first.evidence_names:
                raise TraceError(
                    f"trace {number} has the evidence {other.evidence_names}, the first has {first.evidence_names}"
                )
        text, above = [], 0
        for trace in traces:
            _, numbers = np.unique(trace.text, return_inverse=True)
            text.append(numbers + above)
            above += int(numbers.max()) + 1
        derived = [np.zeros(t.positions, dtype=bool) if t.derived is None else t.derived for t in traces]
        ends = np.cumsum([0] + [t.positions for t in traces])
        info = replace(
            first.info,
            command="; ".join(dict.fromkeys(t.info.command for t in traces if t.info.command)),
            notes=tuple(dict.fromkeys(note for t in traces for note in t.info.notes)),
        )
        return Trace(
            info=info,
            start=np.concatenate([[0]] + [t.start[1:] + end for t, end in zip(traces, ends, strict=False)]),
            text=np.concatenate(text),
            **{name: np.concatenate([getattr(t, name) for t in traces]) for name in _PER_SEQUENCE if name != "text"},
            run=np.concatenate([t.run for t in traces]),
            offered=np.concatenate([t.offered for t in traces]),
            evidence={name: np.concatenate([t.evidence[name] for t in traces]) for name in first.evidence},
            derived=None if all(t.derived is None for t in traces) else np.concatenate(derived),
        )

    # ---------------------------------------------------------------- files

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace file (:mod:`adaptive_spec.replay.trace_file`); TraceError if it isn't a good one."""
        from adaptive_spec.replay.trace_file import read_trace  # brings pyarrow

        return read_trace(path)

    def save(self, path: str | Path) -> None:
        """Write a trace file, whole or not at all."""
        from adaptive_spec.replay.trace_file import write_trace

        write_trace(self, path)


_PER_SEQUENCE = ("text", "category", "task", "prompt_tokens", "max_tokens", "stopped", "seed")
INFO_FIELDS = tuple(item.name for item in fields(TraceInfo))
