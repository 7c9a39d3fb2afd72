"""The n-gram tables, frozen and online, against plain counting; and the frozen one's file."""

from __future__ import annotations

import json
import zipfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.engine.drafters.ngram_table import NgramTable
from adaptive_spec.engine.drafters.online_table import OnlineNgramTable

CORPUS = [[1, 2, 3, 4, 5, 6], [9, 2, 3, 7, 8], [2, 3, 4, 5, 1], [6, 1, 2, 3, 4]]


def sequences(longest: int = 25) -> st.SearchStrategy[list[list[int]]]:
    return st.integers(1, 6).flatmap(
        lambda top: st.lists(st.lists(st.integers(0, top), max_size=longest), min_size=1, max_size=4)
    )


# -- the frozen table --------------------------------------------------------------------------------------


def counted(texts: list[list[int]], order: int) -> dict[tuple[int, ...], Counter[int]]:
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for text in texts:
        for at in range(1, len(text)):
            for g in range(min(order, at) + 1):
                counts[tuple(text[at - g : at])][text[at]] += 1
    return counts


def locate(table: NgramTable, context: tuple[int, ...]) -> tuple[int, int]:
    """The node of a context's longest known suffix, and that suffix's length."""
    recent = np.full((table.order, 1), -1, dtype=np.int64)
    for j, token in enumerate(context[::-1][: table.order]):
        recent[j, 0] = token
    node = table.locate(recent)
    return int(node[0]), int(table.level(node)[0])


@given(texts=sequences(), order=st.integers(1, 4), most=st.sampled_from([5, 20, 10**6]), least=st.integers(1, 2))
@settings(deadline=None, max_examples=150)
def test_table_equals_plain_counting_and_its_successors_equal_lookups(
    texts: list[list[int]], order: int, most: int, least: int
) -> None:
    if all(len(text) < 2 for text in texts):
        with pytest.raises(ValueError, match="nothing to learn"):
            NgramTable.learn(texts, vocab_size=7, order=order)
        return
    table = NgramTable.learn(texts, vocab_size=7, order=order, max_entries=most, min_count=least)
    counts = counted(texts, order)
    known = {context for context in counts if locate(table, context)[1] == len(context)}
    assert len(known) == len(table) <= most
    wanted = {c for c in counts if counts[c].total() >= least or not c}
    assert known <= wanted
    if len(wanted) <= most:
        assert known == wanted
    else:  # those seen most were kept
        kept = min(counts[c].total() for c in known)
        assert all(counts[c].total() <= kept for c in wanted - known)
    for context in known:
        node, _ = locate(table, context)
        best = min(counts[context], key=lambda token: (-counts[context][token], token))
        assert table.token[node] == best
        assert table.hits[node] == counts[context][best]
        assert table.count[node] == counts[context].total()
        assert table.successor[node] == locate(table, (*context, best))[0]


def test_tokens_outside_the_table_s_vocabulary_are_unknown_to_it() -> None:
    table = NgramTable.learn([[0, 1, 2, 0, 1, 2, 1, 0]], vocab_size=3, order=2)
    for token in range(3, 12):
        assert locate(table, (token,)) == (0, 0)
        assert locate(table, (token, 1))[1] == 1


def test_table_survives_saving(tmp_path: Path) -> None:
    table = NgramTable.learn(CORPUS, vocab_size=10, vocab_fingerprint="abc", order=3)
    path = tmp_path / "table.npz"
    table.save(path)
    again = NgramTable.load(path)
    assert again.fingerprint == table.fingerprint
    assert (again.order, again.vocab_size, again.vocab_fingerprint) == (3, 10, "abc")
    assert again.successor.tolist() == table.successor.tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["table.npz"]


def rewritten(path: Path, **change: Any) -> None:
    """Save the file's arrays anew, some of them changed."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **{**arrays, **change})


def test_damaged_foreign_and_newer_files_are_told_apart_in_one_line(tmp_path: Path) -> None:
    good = NgramTable.learn(CORPUS, vocab_size=10)

    def refused(path: Path, match: str) -> None:
        with pytest.raises(ValueError, match=match) as caught:
            NgramTable.load(path)
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)

    with pytest.raises(FileNotFoundError, match="no such n-gram table"):
        NgramTable.load(tmp_path / "missing.npz")

    text = tmp_path / "text.npz"
    text.write_text("not a table")
    refused(text, "not an n-gram table")

    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, weights=np.ones(3))
    refused(foreign, "not an n-gram table")
    np.savez(foreign, meta=np.array("[1]"))
    refused(foreign, "another format")

    cut = tmp_path / "cut.npz"
    good.save(cut)
    cut.write_bytes(cut.read_bytes()[:-200])
    refused(cut, "not an n-gram table")

    flipped = tmp_path / "flipped.npz"
    good.save(flipped)
    with zipfile.ZipFile(flipped) as file:
        info = file.getinfo("key.npy")
    data = bytearray(flipped.read_bytes())
    data[info.header_offset + 80] ^= 0xFF
    flipped.write_bytes(data)
    refused(flipped, "damaged")

    other = tmp_path / "other.npz"
    good.save(other)
    rewritten(other, successor=good.successor + 1)
    refused(other, "checksum")
    good.save(other)
    rewritten(other, token=good.token.astype(np.float64))
    refused(other, "damaged")

    newer = tmp_path / "newer.npz"
    good.save(newer)
    with np.load(newer) as file:
        meta = json.loads(str(file["meta"]))
    rewritten(newer, meta=np.array(json.dumps(meta | {"version": 2})))
    refused(newer, "version 2, but this release reads up to 1")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"vocab_size": 5}, "token 9 is outside the vocabulary of 5 tokens"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": 10, "order": 0}, "order is 0"),
        ({"vocab_size": 10, "min_count": 0}, "min_count is 0"),
        ({"vocab_size": 10, "max_entries": 0}, "max_entries is 0"),
    ],
)
def test_learning_refuses_nonsense(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NgramTable.learn(CORPUS, **params)


# -- the online table --------------------------------------------------------------------------------------


@given(texts=sequences(60), most=st.sampled_from([2, 7, 40]))
@settings(deadline=None, max_examples=60)
def test_online_table_is_bounded(texts: list[list[int]], most: int) -> None:
    table = OnlineNgramTable(order=3, max_entries=most)
    for text in texts:
        for size in range(1, len(text) + 1):
            table.learn(text[:size], 1)
            assert len(table) <= most


@given(text=st.lists(st.integers(0, 1), min_size=2, max_size=40), order=st.integers(1, 3))
@settings(deadline=None, max_examples=150)
def test_online_table_counts_exactly_where_two_candidates_suffice(text: list[int], order: int) -> None:
    table = OnlineNgramTable(order=order)
    table.learn(text[:5], min(5, len(text)))
    for at in range(5, len(text)):
        table.learn(text[: at + 1], 1)
    counts = counted([text], order)
    token, matched, share = table.best(text)
    longest = max((g for g in range(1, order + 1) if tuple(text[-g:]) in counts and g <= len(text)), default=0)
    assert matched == longest
    if longest:
        seen = counts[tuple(text[-longest:])]
        assert seen[token] == max(seen.values())
        assert share == pytest.approx(seen[token] / (seen.total() + 1))


def test_online_table_drops_what_it_has_not_met_for_longest() -> None:
    table = OnlineNgramTable(order=1, max_entries=10)
    table.learn([100, 101], 1)
    for token in range(50):
        table.learn([token, token + 1], 1)
        table.learn([100, 101], 1)  # met again and again: stays
    assert table.best([100])[0] == 101
    assert table.best([3]) == (-1, 0, 0.0)
    assert table.best([49])[0] == 50
