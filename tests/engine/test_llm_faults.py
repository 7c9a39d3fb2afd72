"""LLM under fire: bad input, bad settings, drafters and passes that fail. Nobody else is harmed."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_llama import MAX_LENGTH, PLACES, VOCABULARY, make_tiny_llm, write_tiny_llama

from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.drafters import make_drafter
from adaptive_spec.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=PLACES)
def llm(folder, request):
    return make_tiny_llm(folder, device=request.param)


def drain(llm):
    news = []
    while llm.has_unfinished:
        news += llm.step()
    return news


class Faulty(type(make_drafter("prompt_lookup"))):
    """Breaks in the method that it is told to, at the second call."""

    def __init__(self, where):
        super().__init__()
        self.where = where
        self.calls = 0

    def _maybe(self, where):
        if where == self.where:
            self.calls += 1
            if self.calls > 1:
                raise ZeroDivisionError(where)

    def add(self, id, tokens):
        self._maybe("add")
        super().add(id, tokens)

    def extend(self, id, tokens):
        self._maybe("extend")
        super().extend(id, tokens)

    def offer(self, ids, limit):
        self._maybe("offer")
        return super().offer(ids, limit)

    def draft(self, ids, depth):
        self._maybe("draft")
        cu, tokens = super().draft(ids, depth)
        return (cu, tokens[:-1]) if self.where == "short" else (cu, tokens)


@pytest.mark.parametrize("where", ["add", "extend", "offer", "draft", "short"])
def test_a_faulty_drafter_is_dropped_and_harms_no_text(where, folder, llm, caplog):
    right = [output.outputs[0].text for output in llm.generate(["abcabc", "hello"], GREEDY)]
    # A policy that looks at the seconds may find on a busy machine that no draft is worth it.
    fixed = TuningConfig.model_validate({"policy": {"name": "fixed", "depth": 4}})
    faulty = make_tiny_llm(folder, drafter=Faulty(where), tuning=fixed)
    assert [output.outputs[0].text for output in faulty.generate(["abcabc", "hello"], GREEDY)] == right
    assert faulty.runner.fault
    assert "the drafter failed and is dropped" in caplog.text


class Listener(type(make_drafter("corpus_ngram", online=True))):
    """Keeps what it is told of each text."""

    def __init__(self):
        super().__init__(online=True)
        self.told = {}

    def add(self, id, tokens):
        super().add(id, tokens)
        self.told[id] = list(tokens)

    def extend(self, id, tokens):
        super().extend(id, tokens)
        self.told[id] += tokens


def test_a_drafter_is_told_of_every_token_of_a_text_and_of_none_beyond_its_end(folder):
    drafter = Listener()
    fixed = {"policy": {"name": "fixed", "depth": 5}, "guard": {"enabled": False}}
    llm = make_tiny_llm(folder, drafter=drafter, tuning=TuningConfig.model_validate(fixed))
    text = llm.generate("abc", GREEDY)[0].outputs[0].text
    for start in range(2, 30):
        drafter.told.clear()
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=text[start : start + 2])
        output = llm.generate("abc", params)[0]
        assert list(drafter.told.values()) == [output.prompt_token_ids + output.outputs[0].token_ids]


class Scribbler(type(make_drafter("prompt_lookup"))):
    """Drafts tokens that no vocabulary has."""

    def draft(self, ids, depth):
        cu, tokens = super().draft(ids, depth)
        return cu, np.where(np.arange(len(tokens)) % 2, -1, 10**6).astype(np.int32)


def test_tokens_outside_the_vocabulary_are_never_accepted(folder, llm):
    scribbled = make_tiny_llm(folder, drafter=Scribbler()).generate("abcabc", GREEDY)[0]
    assert scribbled.outputs[0].text == llm.generate("abcabc", GREEDY)[0].outputs[0].text
    assert scribbled.stats.verified > 0
    assert scribbled.stats.accepted == 0


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", {}, "prompt is empty"),
        ([[]], {}, "prompt is empty"),
        ("a" * MAX_LENGTH, {}, f"{MAX_LENGTH} tokens; the model's length is {MAX_LENGTH}"),
        ([[0, VOCABULARY]], {}, f"token {VOCABULARY} of the prompt is outside the vocabulary"),
        ([[-1]], {}, "token -1 of the prompt is outside"),
        (["abc", "d", ""], {}, "^prompt 2: the prompt is empty"),
        ("abc", {"min_tokens": 5, "stop_token_ids": [VOCABULARY]}, f"stop_token_ids: token {VOCABULARY} is outside"),
        ("abc", [SamplingParams()] * 2, "1 prompts but 2 sampling_params"),
    ],
)
def test_bad_prompts_are_refused_in_one_line_and_harm_nobody(llm, prompt, params, message):
    llm.add_request("other", "hello", GREEDY)
    with pytest.raises(ValueError, match=message) as error:
        llm.generate(prompt, params if isinstance(params, list) else SamplingParams(**params))
    assert "\n" not in str(error.value)
    news = drain(llm)
    assert {output.request_id for output in news} == {"other"}
    assert sum(len(output.outputs[0].token_ids) for output in news) == 40


def test_a_kv_cache_larger_than_any_memory_is_refused(folder):
    with pytest.raises(MemoryError, match=r"a KV cache of 1000000000000 blocks takes .*; lower num_kv_blocks") as error:
        make_tiny_llm(folder, num_kv_blocks=10**12)
    assert "\n" not in str(error.value)


def test_a_kv_cache_too_small_for_one_sequence_is_refused(folder):
    llm = make_tiny_llm(folder, num_kv_blocks=2, block_size=16)
    with pytest.raises(ValueError, match="need 3 KV blocks of 16 tokens, and there are 2"):
        llm.generate("abc", SamplingParams(max_tokens=40))
    assert llm.generate("abc", SamplingParams(max_tokens=8, ignore_eos=True))[0].finished


def test_text_ends_at_the_models_length(folder):
    llm = make_tiny_llm(folder, max_model_len=20)
    output = llm.generate("abcabc", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0]
    assert len(output.outputs[0].token_ids) == 14
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_num_seqs": 0}, ValueError, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 4}, ValueError, "below max_num_seqs"),
        ({"num_kv_blocks": None, "kv_cache_memory_bytes": 100}, ValueError, "raise kv_cache_memory_bytes"),
        ({"drafter": "oracle"}, KeyError, "no drafter is called 'oracle'"),
        ({"drafter_config": {"depth": 3}}, TypeError, "no parameter 'depth'"),
        ({"drafter": None, "drafter_config": {"depth": 3}}, ValueError, "drafter_config is for a drafter"),
        ({"dtype": "int3"}, ValueError, "int3"),
        ({"tuning": "no/such/file.yaml"}, ValueError, "no/such/file.yaml"),
    ],
)
def test_bad_settings_are_refused(folder, settings, error, message):
    with pytest.raises(error, match=message):
        make_tiny_llm(folder, **settings)


def test_a_pass_that_fails_can_be_tried_again(llm, monkeypatch):
    right = llm.generate("abcabc", GREEDY)[0].outputs[0].text
    forward = llm.runner.passes.forward
    passes = 0

    def failing(*args):
        nonlocal passes
        passes += 1
        if passes % 5 == 0:
            raise MemoryError("out of memory")
        return forward(*args)

    monkeypatch.setattr(llm.runner.passes, "forward", failing)
    llm.add_request("a", "abcabc", GREEDY)
    text = ""
    failures = 0
    while llm.has_unfinished:
        try:
            text += "".join(output.outputs[0].text for output in llm.step())
        except MemoryError:
            failures += 1
    assert failures > 2
    assert text == right


def test_a_pass_that_fails_ends_generate_and_leaves_a_usable_engine(llm, monkeypatch):
    def failing(*_):
        raise MemoryError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(llm.runner.passes, "forward", failing)
        with pytest.raises(MemoryError):
            llm.generate(["abc", "hello"], GREEDY)
    assert not llm.has_unfinished
    assert llm.scheduler.pool.num_free == llm.scheduler.pool.num_blocks
    assert llm.generate("abc", GREEDY)[0].finished
