"""Recorder: runs the engine once over prompts, and asks its drafter at every position of the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.drafters.base import Drafter, TextDrafter
from adaptive_spec.engine.llm import LLM
from adaptive_spec.engine.request_maker import Prompt
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.replay.trace import MAX_DEPTH, Trace, TraceInfo
from adaptive_spec.step import FloatArray

_TOGETHER = 64  # texts whose offers are asked for at once

Progress = Callable[[int], None]


@dataclass(frozen=True)
class RecordedPrompt:
    """One prompt to record.

    Attributes
    ----------
    prompt : str or list of int
        Text or tokens, as :meth:`LLM.generate` takes them.
    category : str
        What kind of prompt it is.
    task : str
        Template or task that it was made from.
    """

    prompt: Prompt
    category: str = ""
    task: str = ""


@dataclass(slots=True)
class _Text:
    """One text, and what would follow where the model had not ended it."""

    prompt: list[int]
    output: list[int]  # the text's tokens, and up to K beyond its end
    length: int  # tokens up to its end
    max_tokens: int
    stopped: bool
    seed: int


def why_not_recordable(drafter: Drafter | None) -> str | None:
    """Say why a drafter's drafts are no property of the text, so that no trace can hold them; None if they are."""
    if drafter is None:
        return "there is no drafter; give one whose drafts are a function of the text"
    if not isinstance(drafter, TextDrafter):
        return f"drafter {drafter.name!r} isn't known to draft as a function of the text alone"
    if getattr(drafter, "online", None) is not None:
        return (
            f"drafter {drafter.name!r} learns online: its drafts depend on what was served before, so they are no "
            "property of the text; freeze its table (table=..., without online)"
        )
    return None


def record(
    llm: LLM,
    prompts: Sequence[RecordedPrompt],
    sampling_params: SamplingParams | None = None,
    *,
    max_depth: int = 16,
    command: str = "",
    progress: Progress | None = None,
) -> Trace:
    """Record acceptance traces.

    The texts are generated without speculation, on which they don't depend: greedy, or in match mode with a
    seed. Then the drafter is asked at every output position p for its offer, its evidence and its drafts, of which
    L[p] are those that the text goes on with. Where the model ends a text, up to K tokens are generated beyond
    the end, since drafts that reach over it are judged there too.

    In float32 a replay of the trace equals the engine step by step; in other types the texts depend on how
    passes were batched, and the trace is exact for the texts that it holds.

    Parameters
    ----------
    llm : LLM
        The engine with the drafter. Its tuning is set to ``mode: off`` meanwhile, and put back.
    prompts : sequence of RecordedPrompt
    sampling_params : SamplingParams, optional
        Greedy and 128 tokens if None. In match mode, prompt i has the seed ``seed + i``.
    max_depth : int
        K, 1..255.
    command : str
        To be kept in the trace.
    progress : callable, optional
        Receives the number of texts that were finished.

    Raises
    ------
    ValueError
        If the drafter can't be recorded, or the parameters ask for what a trace can't hold.
    """
    if reason := why_not_recordable(llm.drafter):
        raise ValueError(f"can't record: {reason}")
    if not 1 <= max_depth <= MAX_DEPTH:
        raise ValueError(f"can't record to max_depth {max_depth}; it must lie in 1..{MAX_DEPTH}")
    if not prompts:
        raise ValueError("can't record: there is no prompt")
    params = sampling_params or SamplingParams(temperature=0.0, max_tokens=128)
    _check_params(params)
    assert llm.drafter is not None
    tuning, drafter = llm.tuning, llm.drafter
    llm.set_policy(TuningConfig(mode="off"))
    try:
        texts = _generate(llm, prompts, params, max_depth, progress)
    finally:
        llm.set_policy(tuning)
    drafts = [_Drafts.empty(text.length - 1, len(drafter.evidence)) for text in texts]
    for first in range(0, len(texts), _TOGETHER):
        part = slice(first, first + _TOGETHER)
        _ask(drafter, texts[part], drafts[part], max_depth)
    number: dict[tuple[int, ...], int] = {}
    numbers = [number.setdefault(tuple(text.prompt), len(number)) for text in texts]
    sampling: dict[str, object] = {"mode": "greedy"}
    if not params.greedy:
        sampling = {
            "mode": "match", "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k,
        }  # fmt: skip
    evidence = np.concatenate([d.evidence for d in drafts])
    return Trace(
        info=TraceInfo(
            max_depth=max_depth,
            model=llm.model.fingerprint,
            drafter=drafter.fingerprint,
            dtype=str(llm.model.dtype).removeprefix("torch."),
            sampling=sampling,
            command=command,
        ),
        start=np.cumsum([0] + [len(d.run) for d in drafts]),
        text=np.array(numbers, dtype=np.int64),
        category=np.array([p.category for p in prompts], dtype=np.str_),
        task=np.array([p.task for p in prompts], dtype=np.str_),
        prompt_tokens=np.array([len(text.prompt) for text in texts], dtype=np.int64),
        max_tokens=np.array([text.max_tokens for text in texts], dtype=np.int64),
        stopped=np.array([text.stopped for text in texts], dtype=bool),
        seed=np.array([text.seed for text in texts], dtype=np.int64),
        run=np.concatenate([np.array(d.run, dtype=np.uint8) for d in drafts]),
        offered=np.concatenate([np.array(d.offered, dtype=np.uint8) for d in drafts]),
        evidence={name: evidence[:, f].copy() for f, name in enumerate(drafter.evidence)},
    )


def _check_params(params: SamplingParams) -> None:
    if not params.greedy and params.seed is None:
        raise ValueError(
            "can't record a sampled text without a seed; set one, so that a live run can have the same text"
        )
    if params.n != 1 or params.stop or params.min_tokens:
        raise ValueError("can't record with n over 1, stop strings or min_tokens; leave them out")


def _generate(
    llm: LLM,
    prompts: Sequence[RecordedPrompt],
    params: SamplingParams,
    beyond: int,
    progress: Progress | None,
) -> list[_Text]:
    ends = frozenset(params.stop_token_ids) | (
        frozenset() if params.ignore_eos else frozenset(llm.tokenizer.eos_token_ids)
    )
    outputs: dict[str, list[int]] = {}
    asked: dict[str, tuple[list[int], int]] = {}  # tokens of the prompt, and the seed
    length: dict[str, int] = {}
    try:
        for i, item in enumerate(prompts):
            # The texts run on beyond their end, and are cut by this module.
            seed = 0 if params.greedy else int(params.seed or 0) + i
            own = SamplingParams(
                temperature=params.temperature, top_p=params.top_p, top_k=params.top_k, seed=seed,
                max_tokens=params.max_tokens, ignore_eos=True,
            )  # fmt: skip
            name = f"recording-{i}"
            try:
                llm.add_request(name, item.prompt, own)
            except ValueError as error:
                raise ValueError(f"prompt {i}: {error}") from None
            tokens = item.prompt if isinstance(item.prompt, list) else llm.tokenizer.encode(item.prompt)
            outputs[name], asked[name] = [], (list(tokens), seed)
        limit = {
            name: llm.scheduler.check(
                len(tokens), llm.model.config.max_model_len if params.max_tokens is None else params.max_tokens
            )
            for name, (tokens, _) in asked.items()
        }
        while llm.has_unfinished:
            for news in llm.step():
                name, output = news.request_id, outputs[news.request_id]
                new = news.outputs[0]
                if new.finish_reason == "error":
                    raise ValueError(f"can't record prompt {name.removeprefix('recording-')}: {new.stop_reason}")
                for token in new.token_ids:
                    output.append(token)
                    if token in ends and name not in length:
                        length[name] = len(output)
                ended = name in length and len(output) >= length[name] + beyond
                if ended:
                    llm.abort_request(name)
                if progress is not None and (ended or news.finished):
                    progress(1)
    finally:
        for name in outputs:
            llm.abort_request(name)
    return [
        _Text(tokens, outputs[name], length.get(name, len(outputs[name])), limit[name], name in length, seed)
        for name, (tokens, seed) in asked.items()
    ]


@dataclass(slots=True)
class _Drafts:
    """What the drafter said at each position of one text."""

    run: list[int]
    offered: list[int]
    evidence: FloatArray

    @classmethod
    def empty(cls, positions: int, features: int) -> _Drafts:
        return cls([], [], np.zeros((positions, features)))


def _ask(drafter: Drafter, texts: Sequence[_Text], drafts: Sequence[_Drafts], max_depth: int) -> None:
    """Ask for the drafts at every position, of several texts at a time."""
    ids = [("recording", i) for i in range(len(texts))]
    added: list[tuple[str, int]] = []
    try:
        for id, text in zip(ids, texts, strict=True):
            drafter.add(id, text.prompt)
            added.append(id)
        for position, live in _positions(texts):
            asked = [ids[i] for i in live]
            for i in live:
                drafter.extend(ids[i], texts[i].output[position - 1 : position])
            offer = drafter.offer(asked, np.full(len(live), max_depth, dtype=np.int64))
            cu, tokens = drafter.draft(asked, offer.count)
            drafted = tokens.tolist()
            for row, i in enumerate(live):
                draft = drafted[cu[row] : cu[row + 1]]
                following = texts[i].output[position : position + len(draft)]
                run = 0
                while run < len(following) and draft[run] == following[run]:
                    run += 1
                drafts[i].run.append(run)
                drafts[i].offered.append(len(draft))
                drafts[i].evidence[position - 1] = offer.evidence[row]
    finally:
        for id in added:
            drafter.remove(id)


def _positions(texts: Sequence[_Text]) -> Iterator[tuple[int, list[int]]]:
    """Each position p >= 1, and the texts that have a token to come there."""
    for position in range(1, max(text.length for text in texts)):
        yield position, [i for i, text in enumerate(texts) if position < text.length]
