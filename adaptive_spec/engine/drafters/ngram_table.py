"""A frozen n-gram table: for each context of up to `order` tokens, the token that most often followed it."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = "adaptive_spec.ngram_table"
VERSION = 1
_ARRAYS = {
    "level_start": np.int64,
    "key": np.int64,
    "token": np.int32,
    "successor": np.int32,
    "hits": np.uint32,
    "count": np.uint32,
}


@dataclass(frozen=True, eq=False)
class NgramTable:
    """Most frequent continuations of the contexts of 0..`order` tokens that a corpus holds.

    The contexts form a trie that is read backwards from the last token. Node 0 is the empty context; the
    nodes of g tokens are ``level_start[g] .. level_start[g + 1] - 1``, sorted by `key`, which is
    ``parent * vocab_size + token`` with the parent the context without its earliest token, `token` that
    token. So a lookup is one binary search per level, exact, for any vocabulary and order. As a context's
    most frequent continuation leads to one other context, a draft of any length is a walk along
    `successor`: no lookups after the first.

    Attributes
    ----------
    order : int
        Tokens in the longest contexts.
    vocab_size : int
        Every token is below it.
    vocab_fingerprint : str
        Of the tokeniser that made the tokens; empty if not known.
    level_start : int64 array, shape (order + 2,)
    key : int64 array, shape (N,)
    token : int32 array, shape (N,)
        The continuation seen most often (the smallest id, if several were).
    successor : int32 array, shape (N,)
        Node of the longest context known after the node's own context and `token`.
    hits, count : uint32 array, shape (N,)
        How often `token` followed, and how often anything did.

    Notes
    -----
    The file (:meth:`save`) is a NumPy ``.npz`` with these six arrays and ``meta``, a JSON text: ``format``,
    ``version``, ``order``, ``vocab_size``, ``vocab_fingerprint``, ``sha256`` of the arrays' bytes.
    """

    order: int
    vocab_size: int
    vocab_fingerprint: str
    level_start: NDArray[np.int64]
    key: NDArray[np.int64]
    token: NDArray[np.int32]
    successor: NDArray[np.int32]
    hits: NDArray[np.uint32]
    count: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.key)

    def level(self, node: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens in each node's context, shape (B,)."""
        return self.level_start.searchsorted(node, side="right") - 1

    def agreement(self, node: NDArray[np.int64]) -> NDArray[np.float64]:
        """Share of the context's occurrences that the continuation followed, shape (B,).

        One imaginary occurrence that disagrees is counted in, so that a context seen once (share 1/2) tells
        less than one seen often: as evidence for acceptance, measured, this is much the better number.
        """
        return self.hits[node] / (self.count[node] + 1.0)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that the table holds, as hexadecimal digits."""
        digest = hashlib.sha256(f"{self.order},{self.vocab_size},{self.vocab_fingerprint}".encode())
        for name in _ARRAYS:
            digest.update(getattr(self, name).tobytes())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"NgramTable(order={self.order}, entries={len(self)}, vocab_size={self.vocab_size})"

    @classmethod
    def learn(
        cls,
        sequences: Iterable[Sequence[int]],
        vocab_size: int,
        vocab_fingerprint: str = "",
        order: int = 4,
        min_count: int = 1,
        max_entries: int = 1_000_000,
    ) -> NgramTable:
        """Count a corpus.

        Parameters
        ----------
        sequences : iterable of sequences of int
            Token ids; contexts don't cross from one to the next.
        vocab_size : int
            Every token must be below it.
        vocab_fingerprint : str
            Of the tokeniser.
        order : int
            Tokens in the longest contexts (>= 1).
        min_count : int
            Contexts that were continued less often are left out.
        max_entries : int
            The most contexts to keep: those seen most, shorter ones first among equals.

        Raises
        ------
        ValueError
            If a parameter is out of range, a token is outside the vocabulary, or no sequence has two tokens.
        """
        for name, value in (("vocab_size", vocab_size), ("order", order), ("min_count", min_count)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if max_entries < 1:
            raise ValueError(f"max_entries is {max_entries}; it must be at least 1")
        parts = [np.asarray(s, dtype=np.int64) for s in sequences if len(s) >= 2]
        if not parts:
            raise ValueError("nothing to learn from: no sequence has two tokens")
        text = np.concatenate(parts)
        if text.min() < 0 or text.max() >= vocab_size:
            bad = int(text.min() if text.min() < 0 else text.max())
            raise ValueError(f"token {bad} is outside the vocabulary of {vocab_size} tokens")
        sizes = np.array([len(p) for p in parts])
        ends = np.cumsum(sizes)
        place = np.arange(len(text)) - np.repeat(ends - sizes, sizes)
        # `at`: the places that something follows; `node`: the context that ends there.
        at = np.delete(np.arange(len(text)), ends - 1)
        node = np.zeros(len(at), dtype=np.int64)
        keys, tokens, hits, counts = [], [], [], []
        start = [0]
        for g in range(order + 1):
            if g:
                long_enough = place[at] >= g - 1
                at, node = at[long_enough], node[long_enough]
                known, node = np.unique(node * vocab_size + text[at - g + 1], return_inverse=True)
            else:
                known = np.array([-1])
            keys.append(known)
            best, hit, count = _most_frequent(node, text[at + 1], len(known), vocab_size)
            tokens.append(best)
            hits.append(hit)
            counts.append(count)
            node = node + start[-1]
            start.append(start[-1] + len(known))
        return cls._prune(
            order,
            vocab_size,
            vocab_fingerprint,
            np.array(start),
            np.concatenate(keys),
            np.concatenate(tokens),
            np.concatenate(hits),
            np.concatenate(counts),
            min_count,
            max_entries,
        )

    @classmethod
    def _prune(
        cls,
        order: int,
        vocab_size: int,
        vocab_fingerprint: str,
        start: NDArray[np.int64],
        key: NDArray[np.int64],
        token: NDArray[np.int64],
        hits: NDArray[np.int64],
        count: NDArray[np.int64],
        min_count: int,
        max_entries: int,
    ) -> NgramTable:
        """Drop the contexts seen least and link each of the others to its successor."""
        level = np.repeat(np.arange(order + 1), np.diff(start))
        keep = count >= min_count
        keep[0] = True
        if keep.sum() > max_entries:
            # A context is never seen more often than any part of it, and is longer. So this order drops no
            # context before those that contain it, and parents and successors stay known.
            ranked = np.lexsort((level, -np.where(keep, count, 0)))
            keep[ranked[max_entries:]] = False
        number = np.cumsum(keep) - 1
        kept = np.flatnonzero(keep)
        parent, added = np.divmod(key[kept], vocab_size)
        parent = number[parent]  # the root's -1 gives a number of no meaning
        key = parent * vocab_size + added
        key[0] = -1
        level_start = np.concatenate([[0], np.cumsum(np.bincount(level[kept], minlength=order + 1))])
        table = cls(
            order,
            vocab_size,
            vocab_fingerprint,
            level_start.astype(np.int64),
            key.astype(np.int64),
            token[kept].astype(np.int32),
            np.zeros(len(kept), dtype=np.int32),
            np.minimum(hits[kept], 2**32 - 1).astype(np.uint32),
            np.minimum(count[kept], 2**32 - 1).astype(np.uint32),
        )
        # recent[j]: the j-th last token of each node's context followed by the node's continuation.
        recent = np.full((order, len(table)), -1, dtype=np.int64)
        recent[0] = table.token
        parent[0] = 0
        level = level[kept]
        ancestor = np.arange(len(table))
        for depth in range(order, 0, -1):
            # A node of `depth` tokens holds its earliest one itself, the later ones in its ancestors.
            here = level[ancestor] == depth
            if depth < order:
                recent[depth, here] = added[ancestor[here]]
            ancestor = np.where(here, parent[ancestor], ancestor)
        table.successor[:] = table.locate(recent)
        return table

    def locate(self, recent: NDArray[np.int64]) -> NDArray[np.int64]:
        """Find the longest known contexts.

        Parameters
        ----------
        recent : int64 array, shape (at most order, B)
            ``recent[j]`` is the token j before the last one of each text; -1 where the text is too short.

        Returns
        -------
        int64 array, shape (B,)
            Nodes; 0 where not even the last token is known.
        """
        node = np.zeros(recent.shape[1], dtype=np.int64)
        found = np.ones(len(node), dtype=bool)
        for g, token in enumerate(recent[: self.order], start=1):
            first, stop = self.level_start[g], self.level_start[g + 1]
            if first == stop:
                break
            wanted = node * self.vocab_size + token
            at = np.minimum(first + self.key[first:stop].searchsorted(wanted), stop - 1)
            # A token outside the vocabulary would read as another context's key.
            found &= (self.key[at] == wanted) & (token >= 0) & (token < self.vocab_size)
            if not found.any():
                break
            node = np.where(found, at, node)
        return node

    def follow(self, node: NDArray[np.int64], depth: int) -> NDArray[np.int32]:
        """Draft `depth` tokens from each of B nodes, shape (depth, B)."""
        draft = np.empty((depth, len(node)), dtype=np.int32)
        for j in range(depth):
            draft[j] = self.token[node]
            node = self.successor[node].astype(np.int64)
        return draft

    def save(self, path: str | Path) -> None:
        """Write the table to a file; an existing one is replaced only once the new one is whole."""
        path = Path(path)
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "order": self.order,
            "vocab_size": self.vocab_size,
            "vocab_fingerprint": self.vocab_fingerprint,
            "sha256": self.fingerprint,
        }
        arrays: dict[str, Any] = {name: getattr(self, name) for name in _ARRAYS}
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise

    @classmethod
    def load(cls, path: str | Path) -> NgramTable:
        """Read a table that :meth:`save` wrote.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is no n-gram table, is damaged, or was written by a newer version; one line says which.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such n-gram table")
        try:
            with np.load(path, allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                if not isinstance(meta, dict) or meta.get("format") != FORMAT:
                    raise ValueError("it has another format")
                if meta["version"] > VERSION:
                    raise _Newer(meta["version"])
                arrays = {name: file[name] for name in _ARRAYS}
            table = cls(int(meta["order"]), int(meta["vocab_size"]), str(meta["vocab_fingerprint"]), **arrays)
        except _Newer as newer:
            raise ValueError(
                f"{path}: n-gram table of version {newer}, but this release reads up to {VERSION}; "
                "upgrade adaptive-spec or learn the table again"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path}: not an n-gram table, or a damaged one ({error})") from None
        if table.fingerprint != meta["sha256"] or any(
            arrays[name].dtype != dtype or arrays[name].ndim != 1 for name, dtype in _ARRAYS.items()
        ):
            raise ValueError(f"{path}: damaged n-gram table (its contents don't match its checksum)")
        return table


class _Newer(Exception):
    """The file's version is above ours."""


def _most_frequent(
    node: NDArray[np.int64], token: NDArray[np.int64], nodes: int, vocab_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each of `nodes`: its most frequent token, how often that one came, how often any did."""
    pair, times = np.unique(node * vocab_size + token, return_counts=True)
    owner, follower = np.divmod(pair, vocab_size)
    ranked = np.lexsort((follower, -times, owner))
    first = ranked[np.searchsorted(owner[ranked], np.arange(nodes))]
    return follower[first], times[first], np.bincount(node, minlength=nodes)
