"""The text comes in whole characters, equals the full decode, and ends at stop strings wherever tokens are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.engine.detokenizer import Detokenizer
from adaptive_spec.engine.sampling_params import SamplingParams

SPECIAL = 10_000


class ByteTokens:
    """A byte-level tokenizer: every token is any bytes, registered on the way; SPECIAL has no text of its own."""

    def __init__(self) -> None:
        self.pieces: dict[int, bytes] = {}
        self.decoded = 0

    def encode(self, pieces) -> list[int]:
        start = len(self.pieces)
        self.pieces.update(enumerate(pieces, start))
        return list(range(start, len(self.pieces)))

    def decode(self, token_ids, /, *, skip_special_tokens: bool) -> str:
        self.decoded += len(token_ids)
        pieces = self.pieces | {SPECIAL: b"" if skip_special_tokens else b"<eos>"}
        return b"".join(pieces[token] for token in token_ids).decode(errors="replace")


class WordTokens:
    """A tokenizer of SentencePiece's kind: it drops the space before the first word that it sees."""

    words = ("▁a", "▁b", "c", "▁")

    def decode(self, token_ids, /, *, skip_special_tokens: bool) -> str:
        text = "".join(self.words[token] for token in token_ids).replace("▁", " ")
        return text.removeprefix(" ")


def cut(data: bytes, at) -> list[bytes]:
    """Split bytes at the places that `at` names (modulo the length)."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def run(detokenizer, tokens):
    """Push one token at a time; return the increments and the stop."""
    increments, shown = [], ""
    for token in tokens:
        stop = detokenizer.push(token)
        assert detokenizer.text.startswith(shown)  # what was shown is never taken back
        increments.append(detokenizer.text[len(shown) :])
        shown = detokenizer.text
        if stop is not None:
            return increments, stop
    detokenizer.finish()
    assert detokenizer.text.startswith(shown)
    return [*increments, detokenizer.text[len(shown) :]], None


TEXT = st.text(st.sampled_from("ab \n<é漢😀\ufffd"), max_size=30)
CUTS = st.lists(st.integers(0, 200), max_size=60)


@given(text=TEXT, at=CUTS, stops=st.lists(st.text("abx", min_size=1, max_size=3), max_size=2), prompt=TEXT)
@settings(max_examples=200, deadline=None)
def test_increments_join_to_the_full_decode(text, at, stops, prompt):
    tokenizer = ByteTokens()
    before = tokenizer.encode(cut(prompt.encode(), at))
    tokens = tokenizer.encode(cut(text.encode(), at))
    stops = [stop for stop in stops if stop not in text]
    increments, stop = run(Detokenizer(tokenizer, SamplingParams(stop=stops), before), tokens)
    assert stop is None
    assert "".join(increments) == text == tokenizer.decode(tokens, skip_special_tokens=True)
    if "\ufffd" not in text:
        assert all("\ufffd" not in increment for increment in increments)


@given(data=st.binary(max_size=24), at=CUTS)
@settings(max_examples=200, deadline=None)
def test_bytes_that_are_no_text_come_out_as_in_the_full_decode(data, at):
    tokenizer = ByteTokens()
    tokens = tokenizer.encode(cut(data, at))
    increments, _ = run(Detokenizer(tokenizer, SamplingParams()), tokens)
    assert "".join(increments) == data.decode(errors="replace")


def test_a_character_waits_for_its_last_byte():
    tokenizer = ByteTokens()
    tokens = tokenizer.encode([b"a\xf0", b"\x9f", b"\x98", b"\x80b"])
    increments, _ = run(Detokenizer(tokenizer, SamplingParams()), tokens)
    assert increments == ["a", "", "", "😀b", ""]


def test_half_a_character_at_the_end_is_shown_as_the_full_decode_shows_it():
    tokenizer = ByteTokens()
    tokens = tokenizer.encode([b"a", b"\xf0\x9f"])
    assert run(Detokenizer(tokenizer, SamplingParams()), tokens)[0] == ["a", "", "\ufffd"]


def test_a_character_that_began_in_the_prompt_is_finished():
    tokenizer = ByteTokens()
    prompt = tokenizer.encode([b"x", b"\xc3"])
    detokenizer = Detokenizer(tokenizer, SamplingParams(), prompt)
    run(detokenizer, tokenizer.encode([b"\xa9", b"!"]))
    assert detokenizer.text == "é!"


def test_the_prompt_lends_the_first_token_its_space():
    assert "".join(run(Detokenizer(WordTokens(), SamplingParams()), [0, 3, 1, 2])[0]) == "a  bc"
    assert "".join(run(Detokenizer(WordTokens(), SamplingParams(), [1]), [0, 3, 1, 2])[0]) == " a  bc"
    assert "".join(run(Detokenizer(WordTokens(), SamplingParams()), [3, 0])[0]) == " a"


def test_a_replacement_character_of_the_prompt_is_not_shown_again():
    tokenizer = ByteTokens()
    for end in ("\ufffd".encode(), b"\xff", b"\xc3"):
        prompt = tokenizer.encode([b"x", end])
        for output in (b"!", b"\xf0"):
            detokenizer = Detokenizer(tokenizer, SamplingParams(), prompt)
            run(detokenizer, tokenizer.encode([output]))
            assert detokenizer.text == output.decode(errors="replace")


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens(skip):
    tokenizer = ByteTokens()
    a, b = tokenizer.encode([b"\xc3", b"\xa9b"])
    tokens = [SPECIAL, SPECIAL, a, SPECIAL, b, SPECIAL, SPECIAL]
    detokenizer = Detokenizer(tokenizer, SamplingParams(skip_special_tokens=skip))
    assert "".join(run(detokenizer, tokens)[0]) == tokenizer.decode(tokens, skip_special_tokens=skip)


@pytest.mark.parametrize("token", [0, SPECIAL])
def test_the_cost_of_a_token_does_not_grow_with_the_text(token):
    tokenizer = ByteTokens()
    tokenizer.encode([b"word "])
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop="never"))
    detokenizer.push(0)
    detokenizer.push(0)
    for _ in range(1000):
        detokenizer.push(token)
    assert tokenizer.decoded < 4 * 1002


def expected(text: str, stops: list[str], keep: bool) -> tuple[str, str | None]:
    """By the definition: the stop that is complete first ends the text; of several, the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if keep else end - len(stop)], stop
    return text, None


@given(
    text=st.text("abé", max_size=30),
    at=CUTS,
    stops=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
    keep=st.booleans(),
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_a_stop_string_ends_the_text_however_it_is_cut_into_tokens_and_steps(text, at, stops, keep, widths):
    params = SamplingParams(stop=stops, include_stop_str_in_output=keep)
    tokenizer = ByteTokens()
    pieces = cut(text.encode(), at)
    tokens = tokenizer.encode(pieces)
    want, want_stop = expected(text, stops, keep)

    single = Detokenizer(tokenizer, params)
    increments, stop = run(single, tokens)
    assert (single.text, stop) == (want, want_stop)
    assert "".join(increments) == want

    # Several tokens a step: those after the stop are dropped, and the count of kept ones says so.
    detokenizer, at_token, kept_all, stop, i = Detokenizer(tokenizer, params), 0, 0, None, 0
    while at_token < len(tokens) and stop is None:
        step = tokens[at_token : at_token + widths[i % len(widths)]]
        kept, stop = detokenizer.extend(step)
        assert (kept == len(step)) or stop is not None
        kept_all += kept
        at_token += len(step)
        i += 1
    detokenizer.finish()
    assert (detokenizer.text, stop) == (want, want_stop)
    if want_stop is None:
        assert kept_all == len(tokens)
    else:  # the fewest tokens whose text holds the stop string
        end = len(want) if keep else len(want) + len(want_stop)
        needed = len(text[:end].encode())
        assert len(b"".join(pieces[:kept_all])) >= needed > len(b"".join(pieces[: kept_all - 1]))


def test_what_may_begin_a_stop_string_is_held_back_and_no_more():
    tokenizer = ByteTokens()
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=["</end>", "##"]))
    shown = []
    for token in tokenizer.encode([b"a<", b"/en", b"x", b"<", b"#", b"#"]):
        stop = detokenizer.push(token)
        shown.append(detokenizer.text)
    assert shown == ["a", "a", "a</enx", "a</enx", "a</enx<", "a</enx<"]
    assert stop == "##"


def test_nothing_is_held_back_where_the_stop_string_is_kept():
    tokenizer = ByteTokens()
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop="END", include_stop_str_in_output=True))
    a, b = tokenizer.encode([b"xEN", b"D yz"])
    assert detokenizer.push(a) is None
    assert detokenizer.text == "xEN"
    assert detokenizer.push(b) == "END"
    assert detokenizer.text == "xEND"


def test_no_stop_before_min_tokens():
    tokenizer = ByteTokens()
    tokens = tokenizer.encode([b"a.", b"b.", b"c", b".d"])
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=".", min_tokens=3))
    assert detokenizer.extend(tokens) == (4, ".")
    assert detokenizer.text == "a.b.c"
    # A stop string may begin before, if it is completed after.
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop="c.", min_tokens=3))
    assert detokenizer.extend(tokens) == (4, "c.")
    assert detokenizer.text == "a.b."


def test_an_ended_text_takes_no_token_and_stays():
    tokenizer = ByteTokens()
    a, b = tokenizer.encode([b"stop", b"more"])
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop="to"))
    assert detokenizer.extend([a, b]) == (1, "to")
    with pytest.raises(RuntimeError, match="has ended"):
        detokenizer.push(b)
    detokenizer.finish()
    assert detokenizer.text == "s"


def test_no_text_where_none_is_asked_for():
    tokenizer = ByteTokens()
    detokenizer = Detokenizer(tokenizer, SamplingParams(detokenize=False))
    assert detokenizer.extend(tokenizer.encode([b"a", b"b"])) == (2, None)
    detokenizer.finish()
    assert detokenizer.text == ""
    assert tokenizer.decoded == 0
