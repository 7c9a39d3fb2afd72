"""SamplingParams: vLLM's names and defaults, and one clear line for what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adaptive_spec.engine.sampling_params import UNSUPPORTED, SamplingParams


def test_the_defaults_are_vllms():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.seed) == (1, 1.0, 1.0, 0, None)
    assert (params.max_tokens, params.min_tokens, params.ignore_eos) == (16, 0, False)
    assert (params.stop, params.stop_token_ids, params.extra_args) == ([], [], {})
    assert (params.include_stop_str_in_output, params.skip_special_tokens, params.detokenize) == (False, True, True)


def test_values_are_normalised():
    params = SamplingParams(stop="END", top_k=-1, seed=-1, temperature=0, stop_token_ids=(3, np.int64(4)))
    assert params.stop == ["END"]
    assert params.top_k == 0
    assert params.seed is None
    assert isinstance(params.temperature, float)
    assert params.stop_token_ids == [3, 4]
    assert type(params.stop_token_ids[1]) is int
    assert SamplingParams(max_tokens=None, min_tokens=10_000).max_tokens is None
    assert SamplingParams(seed=-(2**63)).seed == -(2**63)
    assert SamplingParams(top_p=np.float32(0.5)).top_p == 0.5


def test_params_compare_and_print():
    assert SamplingParams(seed=3) == SamplingParams(seed=3)
    assert SamplingParams(seed=3) != SamplingParams(seed=4)
    assert "seed=3" in repr(SamplingParams(seed=3))


def test_lists_are_not_shared_with_the_caller():
    stop, extra = ["a"], {"adaptive_spec.depth": 1}
    params = SamplingParams(stop=stop, extra_args=extra)
    stop.append("b")
    extra["adaptive_spec.depth"] = 5
    assert params.stop == ["a"]
    assert params.extra_args == {"adaptive_spec.depth": 1}


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("n", 0, "at least 1"),
        ("n", 1.5, "whole number"),
        ("n", True, "whole number"),
        ("temperature", -0.1, "0 (greedy) or more"),
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("temperature", "0.5", "finite"),
        ("temperature", None, "finite"),
        ("top_p", 0.0, "in (0, 1]"),
        ("top_p", 1.01, "in (0, 1]"),
        ("top_p", math.nan, "in (0, 1]"),
        ("top_k", -2, "or 0 to keep every token"),
        ("top_k", 2.0, "or 0 to keep every token"),
        ("top_k", 2**31, "or 0 to keep every token"),
        ("seed", 2**63, "64 bits"),
        ("seed", 1.0, "64 bits"),
        ("stop", "", "non-empty"),
        ("stop", ["a", ""], "non-empty"),
        ("stop", [b"a"], "non-empty"),
        ("stop", 7, "non-empty"),
        ("stop_token_ids", [-1], "token ids"),
        ("stop_token_ids", ["a"], "token ids"),
        ("stop_token_ids", "12", "token ids"),
        ("stop_token_ids", 12, "token ids"),
        ("ignore_eos", 1, "true or false"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", -5, "at least 1"),
        ("max_tokens", 1.0, "at least 1"),
        ("min_tokens", -1, "0 or more"),
        ("min_tokens", 17, "at most max_tokens, 16"),
        ("include_stop_str_in_output", "yes", "true or false"),
        ("skip_special_tokens", None, "true or false"),
        ("detokenize", 0, "true or false"),
        ("extra_args", [("a", 1)], "a dict"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(name, value, right):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        SamplingParams(**{name: value})
    message = str(error.value)
    assert message.startswith(f"SamplingParams: {name} is ")
    assert right in message
    assert "\n" not in message


def test_stop_strings_need_text():
    with pytest.raises(ValueError, match="detokenize is False; it must be true where stop strings"):
        SamplingParams(stop="a", detokenize=False)
    assert not SamplingParams(detokenize=False).detokenize


NOT_NEUTRAL = {
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "min_p": 0.05,
    "logprobs": 0,
    "best_of": 2,
    "use_beam_search": True,
    "flat_logprobs": True,
    "logit_bias": {1: 2.0},
    "spaces_between_special_tokens": False,
    "bad_words": ["a"],
    "allowed_token_ids": [1],
    "structured_outputs": {"json": {}},
    "logits_processors": [print],
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_vllm_has_and_this_engine_has_not(name):
    neutral, remedy = UNSUPPORTED[name]
    for value in neutral:
        assert SamplingParams(**{name: value}) == SamplingParams()
    with pytest.raises(ValueError, match="does not support") as error:
        SamplingParams(**{name: NOT_NEUTRAL.get(name, 5)})
    message = str(error.value)
    assert message.startswith(f"SamplingParams: {name} is ")
    assert message.endswith(remedy)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("topk", "top_k"),
        ("stops", "stop"),
        ("precence_penalty", "presence_penalty"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(TypeError, match=f"{name!r} is unknown; the nearest known parameter is {nearest!r}"):
        SamplingParams(**{name: 1})


def test_parameters_are_named():
    with pytest.raises(TypeError):
        SamplingParams(1)  # type: ignore[misc]


def test_extra_args_of_this_project():
    extra = {"adaptive_spec.max_depth": 4, "adaptive_spec.depth": 2, "adaptive_spec.weight": 2}
    assert SamplingParams(extra_args=extra).extra_args == extra
    off = {"adaptive_spec.off": True, "adaptive_spec.depth": 0}
    assert SamplingParams(extra_args=off).extra_args == off


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"adaptive_spec.max_depth": -1}, "extra_args['adaptive_spec.max_depth'] is -1"),
        ({"adaptive_spec.max_depth": True}, "a whole number of drafts"),
        ({"adaptive_spec.depth": 1.5}, "extra_args['adaptive_spec.depth'] is 1.5"),
        ({"adaptive_spec.depth": "2"}, "a whole number of drafts"),
        ({"adaptive_spec.weight": 0}, "over 0"),
        ({"adaptive_spec.weight": math.nan}, "over 0"),
        ({"adaptive_spec.weight": "1"}, "over 0"),
        ({"adaptive_spec.off": 1}, "true or false"),
        ({"adaptive_spec.depth": 5, "adaptive_spec.max_depth": 4}, "at most adaptive_spec.max_depth, 4"),
        ({"adaptive_spec.depth": 5, "adaptive_spec.off": True}, "where adaptive_spec.off is true"),
        ({"adaptive_spec.maxdepth": 5}, "unknown; the nearest known key is 'adaptive_spec.max_depth'"),
        ({"weight": 5}, "unknown; the nearest known key is 'adaptive_spec.weight'"),
        ({3: 5}, "is unknown"),
    ],
)
def test_wrong_extra_args_are_refused(extra, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        SamplingParams(extra_args=extra)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
