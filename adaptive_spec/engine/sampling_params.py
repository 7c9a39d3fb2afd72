"""SamplingParams: how a request's tokens are chosen and where its text ends, under vLLM's names and defaults."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adaptive_spec.kernels.noise import GREEDY_TEMPERATURE

# vLLM's parameters that this engine has no use for: name -> (values that ask for nothing, what to do instead).
UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "presence_penalty": ((0, None), "leave it at 0"),
    "frequency_penalty": ((0, None), "leave it at 0"),
    "repetition_penalty": ((1, None), "leave it at 1"),
    "min_p": ((0, None), "leave it at 0 and cut the tail with top_p or top_k"),
    "logprobs": ((None,), "leave it out; the engine returns tokens and text only"),
    "prompt_logprobs": ((None,), "leave it out; the engine returns tokens and text only"),
    "flat_logprobs": ((False, None), "leave it out; the engine returns tokens and text only"),
    "logprob_token_ids": ((None, []), "leave it out; the engine returns tokens and text only"),
    "best_of": ((None, 1), "ask for n samples and choose among them yourself"),
    "use_beam_search": ((False, None), "use temperature=0 for the likeliest token"),
    "logit_bias": ((None, {}), "leave it out; no logits are altered"),
    "allowed_token_ids": ((None, []), "leave it out; no logits are altered"),
    "bad_words": ((None, []), "leave it out; end a text with stop or stop_token_ids"),
    "logits_processors": ((None, []), "leave it out; no logits are altered"),
    "structured_outputs": ((None,), "leave it out; validate the text after it was generated"),
    "guided_decoding": ((None,), "leave it out; validate the text after it was generated"),
    "repetition_detection": ((None,), "leave it out; bound the text with max_tokens"),
    "thinking_token_budget": ((None,), "leave it out; bound the text with max_tokens"),
    "truncate_prompt_tokens": ((None,), "truncate the prompt before it is submitted"),
    "spaces_between_special_tokens": ((True, None), "leave it at true"),
}

INT32_MAX = 2**31 - 1


def _fail(name: str, value: Any, right: str) -> ValueError:
    return ValueError(f"SamplingParams: {name} is {value!r}; it must be {right}")


def _integer(name: str, value: Any, least: int, right: str, most: int = INT32_MAX) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= value <= most:
        raise _fail(name, value, right)
    return int(value)


def _number(name: str, value: Any, right: str) -> float:
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__") or not math.isfinite(value):
        raise _fail(name, value, right)
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(name, value, "true or false")
    return value


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name`, however far it is."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


@dataclass(init=False, slots=True)
class SamplingParams:
    """How a request's tokens are chosen and where its text ends.

    Names and defaults are those of vLLM's class of this name. Its parameters that are not listed here are
    accepted at the value that asks for nothing, and refused by name otherwise.

    Parameters
    ----------
    n : int
        Texts to generate from the prompt, at least 1.
    temperature : float
        0 (anything under 1e-5): the likeliest token.
    top_p : float
        Sample from the fewest likeliest tokens that hold this share of the probability, in (0, 1].
    top_k : int
        Sample from this many likeliest tokens; 0 or -1: from all. Applied before `top_p`.
    seed : int, optional
        Fixes the text: the same seed, prompt and model give the same tokens whatever else is running.
        None or -1: the engine draws one.
    stop : str or list of str, optional
        Strings that end the text.
    stop_token_ids : list of int, optional
        Tokens that end the text, besides the model's own end.
    ignore_eos : bool
        Go on after the model's own end of text.
    max_tokens : int, optional
        Most tokens to generate, at least 1. None: as many as the model's length allows.
    min_tokens : int
        Tokens before which nothing but `max_tokens` ends the text.
    include_stop_str_in_output : bool
        Whether the text keeps the stop string that ended it.
    skip_special_tokens : bool
        Whether special tokens are left out of the text.
    detokenize : bool
        Whether to make text at all; tokens are returned in any case.
    extra_args : dict, optional
        Speculation of this request alone: ``adaptive_spec.max_depth`` (int, the deepest it may be drafted),
        ``adaptive_spec.depth`` (int, exactly this deep), ``adaptive_spec.weight`` (worth of one of its tokens, over 0),
        ``adaptive_spec.off`` (bool, no drafts).

    Raises
    ------
    ValueError
        In one line, with the parameter, its value and what would be right; for parameters of vLLM that are not
        supported, too.
    TypeError
        For a name that is unknown, with the nearest known one.
    """

    n: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    max_tokens: int | None
    min_tokens: int
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    detokenize: bool
    extra_args: dict[str, Any]

    def __init__(
        self,
        *,
        n: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        stop_token_ids: list[int] | None = None,
        ignore_eos: bool = False,
        max_tokens: int | None = 16,
        min_tokens: int = 0,
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        detokenize: bool = True,
        extra_args: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        _refuse(others)
        self.n = _integer("n", n, 1, "a whole number of texts, at least 1")
        self.temperature = _number("temperature", temperature, "a finite number, 0 (greedy) or more")
        if self.temperature < 0:
            raise _fail("temperature", temperature, "a finite number, 0 (greedy) or more")
        self.top_p = _number("top_p", top_p, "in (0, 1]; 1 keeps every token")
        if not 0 < self.top_p <= 1:
            raise _fail("top_p", top_p, "in (0, 1]; 1 keeps every token")
        self.top_k = max(_integer("top_k", top_k, -1, "a whole number, at least 1, or 0 to keep every token"), 0)
        self.seed = None
        if seed is not None and seed != -1:
            self.seed = _integer("seed", seed, -(2**63), "a whole number of 64 bits, or None", 2**63 - 1)
        self.stop = _stop_strings(stop)
        self.stop_token_ids = _token_ids(stop_token_ids)
        self.ignore_eos = _flag("ignore_eos", ignore_eos)
        right = "a whole number, at least 1, or None for as many as the model's length allows"
        self.max_tokens = None if max_tokens is None else _integer("max_tokens", max_tokens, 1, right)
        self.min_tokens = _integer("min_tokens", min_tokens, 0, "a whole number, 0 or more")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _fail("min_tokens", min_tokens, f"at most max_tokens, {self.max_tokens}")
        self.include_stop_str_in_output = _flag("include_stop_str_in_output", include_stop_str_in_output)
        self.skip_special_tokens = _flag("skip_special_tokens", skip_special_tokens)
        self.detokenize = _flag("detokenize", detokenize)
        if self.stop and not self.detokenize:
            raise _fail("detokenize", detokenize, "true where stop strings are given: they are found in the text")
        self.extra_args = _extra_args(extra_args)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < GREEDY_TEMPERATURE


def _refuse(others: Mapping[str, Any]) -> None:
    """Raise for parameters of vLLM that ask for something unsupported, and for unknown ones."""
    for name, value in others.items():
        if name not in UNSUPPORTED:
            known = [known for known in inspect.signature(SamplingParams).parameters if known != "others"]
            raise TypeError(
                f"SamplingParams: {name!r} is unknown; the nearest known parameter is "
                f"{_nearest(name, [*known, *UNSUPPORTED])!r}"
            )
        neutral, remedy = UNSUPPORTED[name]
        if not any(type(value) in (type(good), int, float) and value == good for good in neutral):
            raise ValueError(f"SamplingParams: {name} is {value!r}, which this engine does not support; {remedy}")


def _stop_strings(stop: Any) -> list[str]:
    if stop is None:
        return []
    strings = [stop] if isinstance(stop, str) else stop
    right = "a non-empty string, or a list of them"
    if not isinstance(strings, (list, tuple)) or not all(isinstance(s, str) and s for s in strings):
        raise _fail("stop", stop, right)
    return list(strings)


def _token_ids(token_ids: Any) -> list[int]:
    if token_ids is None:
        return []
    right = "a list of token ids, whole numbers from 0"
    if isinstance(token_ids, (str, bytes, Mapping)) or not isinstance(token_ids, Iterable):
        raise _fail("stop_token_ids", token_ids, right)
    return [_integer("stop_token_ids", token, 0, right) for token in token_ids]


def _extra_args(extra_args: Any) -> dict[str, Any]:
    if extra_args is None:
        return {}
    if not isinstance(extra_args, Mapping):
        raise _fail("extra_args", extra_args, "a dict")
    read: dict[str, Any] = {}
    for key, value in extra_args.items():
        name = f"extra_args[{key!r}]"
        if key in ("adaptive_spec.max_depth", "adaptive_spec.depth"):
            read[key] = _integer(name, value, 0, "a whole number of drafts, 0 or more")
        elif key == "adaptive_spec.weight":
            read[key] = _number(name, value, "a finite number over 0")
            if read[key] <= 0:
                raise _fail(name, value, "a finite number over 0")
        elif key == "adaptive_spec.off":
            read[key] = _flag(name, value)
        else:
            known = [f"adaptive_spec.{known}" for known in ("max_depth", "depth", "weight", "off")]
            raise ValueError(
                f"SamplingParams: {name} is unknown; the nearest known key is {_nearest(str(key), known)!r}"
            )
    depth, most = read.get("adaptive_spec.depth"), read.get("adaptive_spec.max_depth")
    if depth is not None and most is not None and depth > most:
        raise _fail("extra_args['adaptive_spec.depth']", depth, f"at most adaptive_spec.max_depth, {most}")
    if read.get("adaptive_spec.off") and depth:
        raise _fail("extra_args['adaptive_spec.depth']", depth, "0 or left out where adaptive_spec.off is true")
    return read
