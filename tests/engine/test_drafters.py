"""Drafters: what they offer is what they draft, for known sequences, within their limits, of the right vocabulary."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.engine.drafters import Drafter, drafter_class, drafter_names, make_drafter
from adaptive_spec.engine.drafters.corpus_ngram import CorpusNgram
from adaptive_spec.engine.drafters.ngram_table import NgramTable
from adaptive_spec.evidence import EVIDENCE
from adaptive_spec.suffix import SuffixIndex

CORPUS = [[1, 2, 3, 4, 5, 6], [9, 2, 3, 7, 8], [2, 3, 4, 5, 1], [6, 1, 2, 3, 4]]


def every_drafter() -> list[Drafter]:
    return [
        make_drafter("none"),
        make_drafter("prompt_lookup"),
        make_drafter("corpus_ngram", texts=CORPUS),
        make_drafter("corpus_ngram", online=True),
        make_drafter("corpus_ngram", texts=CORPUS, online=True, max_entries=60),
    ]


def limits(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def sequences(longest: int = 25) -> st.SearchStrategy[list[list[int]]]:
    return st.integers(1, 6).flatmap(
        lambda top: st.lists(st.lists(st.integers(0, top), max_size=longest), min_size=1, max_size=4)
    )


# -- the contract ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", every_drafter(), ids=lambda d: d.fingerprint[:40])
def test_unknown_and_duplicate_ids_are_named(drafter: Drafter) -> None:
    drafter.add("a", [1, 2, 3])
    with pytest.raises(ValueError, match=r"'a' was already added to drafter '\w+'"):
        drafter.add("a", [1])
    for call in (
        lambda: drafter.extend("b", [1]),
        lambda: drafter.remove("b"),
        lambda: drafter.offer(["a", "b"], limits(1, 1)),
        lambda: drafter.draft(["b"], limits(0)),
    ):
        with pytest.raises(KeyError, match="knows no sequence 'b'"):
            call()
    drafter.remove("a")
    with pytest.raises(KeyError, match="'a'"):
        drafter.remove("a")
    drafter.add("a", [1, 2, 3])  # as after a preemption


@given(texts=sequences(), emitted=sequences(6), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=80)
def test_drafts_are_what_was_offered_packed_and_repeatable(
    texts: list[list[int]], emitted: list[list[int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    ids = list(range(len(texts)))
    for drafter in every_drafter():
        for id, text in zip(ids, texts, strict=True):
            drafter.add(id, text)
        for step in range(3):
            limit = rng.integers(0, 6, len(ids))
            offer = drafter.offer(ids, limit)
            assert offer.count.dtype == np.int64
            assert offer.count.shape == (len(ids),)
            assert np.all((offer.count >= 0) & (offer.count <= limit))
            assert offer.evidence.dtype == np.float64
            assert offer.evidence.shape == (len(ids), len(drafter.evidence))
            assert np.all(np.isfinite(offer.evidence))
            cu, full = drafter.draft(ids, offer.count)
            assert cu.dtype == full.dtype == np.int32
            assert np.diff(cu).tolist() == offer.count.tolist()
            depth = rng.integers(0, offer.count + 1)
            cut, tokens = drafter.draft(ids, depth)
            assert np.diff(cut).tolist() == depth.tolist()
            for i in ids:
                assert tokens[cut[i] : cut[i + 1]].tolist() == full[cu[i] : cu[i] + depth[i]].tolist()
            for i in ids:
                drafter.extend(i, emitted[(i + step) % len(emitted)])
        for i in ids:
            drafter.remove(i)


@given(texts=sequences())
@settings(deadline=None, max_examples=60)
def test_drafts_depend_on_a_sequence_s_own_text_alone(texts: list[list[int]]) -> None:
    for build in (lambda: make_drafter("prompt_lookup"), lambda: make_drafter("corpus_ngram", texts=CORPUS)):
        together = build()
        for i, text in enumerate(texts):
            together.add(i, text[: len(text) // 2])
            together.extend(i, text[len(text) // 2 :])
        offer = together.offer(range(len(texts)), np.full(len(texts), 5))
        cu, tokens = together.draft(range(len(texts)), offer.count)
        for i, text in enumerate(texts):
            alone = build()
            alone.add("x", text)
            one = alone.offer(["x"], limits(5))
            assert one.count[0] == offer.count[i]
            assert one.evidence[0].tolist() == offer.evidence[i].tolist()
            assert alone.draft(["x"], one.count)[1].tolist() == tokens[cu[i] : cu[i + 1]].tolist()


@pytest.mark.parametrize("drafter", every_drafter()[1:], ids=lambda d: d.fingerprint[:40])
def test_drafting_beyond_the_offer_or_without_one_is_refused(drafter: Drafter) -> None:
    drafter.add("a", [1, 2, 3, 1, 2, 3, 1, 2])
    with pytest.raises(ValueError, match="offer is 0"):
        drafter.draft(["a"], limits(1))
    assert drafter.offer(["a"], limits(3)).count.tolist() == [3]
    with pytest.raises(ValueError, match="4 deep: this step's offer is 3"):
        drafter.draft(["a"], limits(4))
    with pytest.raises(ValueError, match="-1 deep"):
        drafter.draft(["a"], limits(-1))
    drafter.extend("a", [3])
    with pytest.raises(ValueError, match="offer is 0"):
        drafter.draft(["a"], limits(1))


def test_no_sequences_make_an_empty_offer() -> None:
    for drafter in every_drafter():
        offer = drafter.offer([], limits())
        assert offer.count.shape == (0,)
        assert offer.evidence.shape == (0, len(drafter.evidence))
        cu, tokens = drafter.draft([], limits())
        assert cu.tolist() == [0]
        assert tokens.shape == (0,)
        assert drafter.lag([]) == 0


def test_evidence_is_known_to_the_acceptance_model() -> None:
    for drafter in every_drafter():
        assert set(drafter.evidence) <= set(EVIDENCE)


# -- the registry ------------------------------------------------------------------------------------------


def test_registry_finds_each_by_its_own_name_and_explains_mistakes() -> None:
    for name in ("corpus_ngram", "none", "prompt_lookup"):
        assert name in drafter_names()
        assert drafter_class(name).name == name
    with pytest.raises(KeyError, match=r"no drafter is called 'eagle'; there are corpus_ngram"):
        make_drafter("eagle")
    with pytest.raises(TypeError, match=r"'prompt_lookup' has no parameter 'max_match'; it has min_match"):
        make_drafter("prompt_lookup", max_match=3)
    for name, params in (
        ("prompt_lookup", {"min_match": 0}),
        ("corpus_ngram", {}),
        ("corpus_ngram", {"online": True, "order": 0}),
        ("corpus_ngram", {"online": True, "max_entries": 1}),
        ("corpus_ngram", {"texts": CORPUS, "table": "t.npz"}),
    ):
        with pytest.raises(ValueError, match=r"at least|needs a table|not both"):
            make_drafter(name, **params)


def test_fingerprints_tell_what_was_learned_beforehand() -> None:
    prints = [
        make_drafter("prompt_lookup").fingerprint,
        make_drafter("prompt_lookup", min_match=2).fingerprint,
        make_drafter("corpus_ngram", texts=CORPUS).fingerprint,
        make_drafter("corpus_ngram", texts=CORPUS[:3]).fingerprint,
        make_drafter("corpus_ngram", texts=CORPUS, order=3).fingerprint,
        make_drafter("corpus_ngram", texts=CORPUS, online=True).fingerprint,
    ]
    assert len(set(prints)) == len(prints)
    again = make_drafter("corpus_ngram", texts=CORPUS)
    again.add("a", [1, 2, 3])
    assert again.fingerprint == prints[2]


# -- prompt lookup -----------------------------------------------------------------------------------------


def test_prompt_lookup_copies_the_longest_match_and_says_how_long_it_was() -> None:
    drafter = make_drafter("prompt_lookup", min_match=2)
    drafter.add("copy", [1, 2, 3, 4, 5, 9, 2, 3])
    drafter.add("short", [1, 2, 3, 4, 2])
    drafter.add("fresh", [1, 2, 3])
    offer = drafter.offer(["fresh", "copy", "short"], limits(4, 4, 4))
    assert offer.count.tolist() == [0, 4, 0]
    assert offer.evidence[1].tolist() == [2, 1.0]
    cu, tokens = drafter.draft(["copy"], limits(4))
    assert cu.tolist() == [0, 4]
    assert tokens.tolist() == [4, 5, 9, 2]


# -- corpus n-grams ----------------------------------------------------------------------------------------


def test_the_longer_context_decides_and_of_equal_ones_the_text_s_own() -> None:
    drafter = CorpusNgram(texts=CORPUS, order=3)
    texts = {
        "table knows 1 2 3": [7, 1, 2, 3],
        "both know 1 2 3": [7, 1, 2, 3, 8, 8, 1, 2, 3],  # in the corpus it went on with 4
        "text knows 3, table 2 3": [3, 0, 2, 3],
        "neither": [99],
        "text knows 99": [99, 8, 99],
    }
    for id, text in texts.items():
        drafter.add(id, text)
    offer = drafter.offer(list(texts), limits(3, 3, 1, 3, 2))
    assert offer.count.tolist() == [3, 3, 1, 0, 2]
    assert offer.evidence[0].tolist() == [3, 1, 2 / 3]  # twice, always with 4, and one imaginary miss
    assert offer.evidence[1].tolist() == [3, 0, 1.0]
    assert offer.evidence[2].tolist() == [2, 1, 3 / 5]
    assert offer.evidence[4].tolist() == [1, 0, 1.0]
    cu, tokens = drafter.draft(list(texts), offer.count)
    assert cu.tolist() == [0, 3, 6, 7, 7, 9]
    assert tokens.tolist() == [4, 5, 1, 8, 8, 1, 4, 8, 99]


def counted(texts: list[list[int]], order: int) -> dict[tuple[int, ...], Counter[int]]:
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for text in texts:
        for at in range(1, len(text)):
            for g in range(min(order, at) + 1):
                counts[tuple(text[at - g : at])][text[at]] += 1
    return counts


def test_table_drafts_follow_plain_backoff() -> None:
    """A draft along the table's successors equals looking each token up in plain counts, longest context first."""
    counts = counted(CORPUS, 4)
    drafter = CorpusNgram(texts=CORPUS)
    for id, text in enumerate([[1], [9, 2], [1, 2, 3], [7, 8], [0, 3, 4]]):
        drafter.add(id, text)
        offer = drafter.offer([id], limits(6))
        _, tokens = drafter.draft([id], offer.count)
        grown = list(text)
        for token in tokens.tolist():
            context = next(
                tuple(grown[-g:]) if g else ()
                for g in range(4, -1, -1)
                if tuple(grown[len(grown) - g :]) in counts and g <= len(grown)
            )
            assert token == min(counts[context], key=lambda t: (-counts[context][t], t))
            grown.append(token)


def test_online_learns_from_output_of_other_sequences_and_not_from_prompts() -> None:
    drafter = CorpusNgram(online=True)
    drafter.add("a", [1, 2, 3, 4])
    drafter.add("b", [2, 3])
    assert drafter.offer(["b"], limits(4)).count.tolist() == [0]
    drafter.extend("a", [5, 6, 7])
    drafter.add("c", [3, 4, 5])
    offer = drafter.offer(["b", "c"], limits(4, 4))
    assert offer.count.tolist() == [0, 2]  # after 5 came 6, 7; what follows 7 nobody knows
    assert offer.evidence[1].tolist() == [3, 1, 0.5]
    assert drafter.draft(["c"], limits(2))[1].tolist() == [6, 7]
    drafter.remove("a")
    assert drafter.offer(["c"], limits(4)).count.tolist() == [2]


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    NgramTable.learn(CORPUS, vocab_size=10, vocab_fingerprint="abc").save(path)
    drafter = make_drafter("corpus_ngram", table=path)
    drafter.check_vocabulary(10, "abc")
    drafter.check_vocabulary(10, "")
    drafter.check_vocabulary(16, "abc")  # padded
    with pytest.raises(ValueError, match="10 tokens, the model's has 9"):
        drafter.check_vocabulary(9, "abc")
    with pytest.raises(ValueError, match=r"another tokeniser \(fingerprint abc\)"):
        drafter.check_vocabulary(10, "xyz")
    with pytest.raises(ValueError, match="10 tokens, the model's has 12"):
        drafter.check_vocabulary(12, "")
    bare = make_drafter("corpus_ngram", texts=CORPUS)
    bare.check_vocabulary(50, "any")
    with pytest.raises(ValueError, match="learn one with this model's"):
        bare.check_vocabulary(9, "any")


def test_memory_is_that_of_the_live_sequences() -> None:
    drafter = make_drafter("corpus_ngram", texts=CORPUS, online=True, max_entries=50)
    for id in range(300):
        drafter.add(id, [1, 2, 3, id % 10])
        drafter.offer([id], limits(2))
        drafter.extend(id, [id % 7, 2])
        drafter.remove(id)
    assert isinstance(drafter, CorpusNgram)
    assert not drafter._texts
    assert drafter.online is not None
    assert len(drafter.online) <= 50


def test_lookup_offers_follow_the_index() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    drafter = make_drafter("prompt_lookup")
    drafter.add(0, text)
    offer = drafter.offer([0], limits(7))
    index = SuffixIndex(text)
    assert offer.evidence[0].tolist() == [index.matched_length, index.agreement]
    assert drafter.draft([0], offer.count)[1].tolist() == index.continuation(7)
