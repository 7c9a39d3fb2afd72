"""SteppedScheduler: the real schedulers of vLLM, stepped by hand: no weights, no worker, no engine."""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

GEOMETRY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1024,
    "max_position_embeddings": 4096, "torch_dtype": "float32",
}  # fmt: skip

init_none_hash(sha256)


def make_config(
    folder: Path,
    *,
    k: int = 4,
    method: str = "ngram",
    asynchronous: bool = False,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 8192,
    num_blocks: int = 10000,
    block_size: int = 16,
    max_model_len: int = 2048,
    prefix_caching: bool = True,
    per_request_metrics: bool = True,
    tuning_file: Path | None = None,
) -> VllmConfig:
    """vLLM's configuration of a model that is only a config.json."""
    model_folder = folder / "model"
    model_folder.mkdir(exist_ok=True)
    (model_folder / "config.json").write_text(json.dumps(GEOMETRY))
    model = ModelConfig(
        model=str(model_folder), skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=max_model_len
    )
    speculative = None
    if k:
        own: dict[str, Any] = {"method": method, "num_speculative_tokens": k}
        if method == "draft_model":
            own["model"] = str(model_folder)
        else:  # the scheduler only wants the name; other methods would want more of vLLM to be installed
            own |= {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4}
        speculative = SpeculativeConfig(**own, target_model_config=model, target_parallel_config=ParallelConfig())
        speculative.method = method
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=block_size, cache_dtype="auto", enable_prefix_caching=prefix_caching),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=True,
            async_scheduling=False,
            is_encoder_decoder=False,
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        speculative_config=speculative,
        observability_config=_observability(per_request_metrics and k > 0),
        additional_config={"adaptive_spec": {"tuning_file": str(tuning_file)}} if tuning_file else {},
    )
    config.scheduler_config.async_scheduling = asynchronous  # the CPU platform has set it to False
    config.cache_config.num_gpu_blocks = num_blocks
    return config


def _observability(per_request_metrics: bool) -> ObservabilityConfig:
    """With acceptance metrics of each request, where this vLLM has them (since 0.30 or so)."""
    if not per_request_metrics or not hasattr(ObservabilityConfig, "per_request_spec_decode_metrics"):
        return ObservabilityConfig()
    return ObservabilityConfig(per_request_spec_decode_metrics="summary")


def make_scheduler(factory: Callable[..., Any], config: VllmConfig) -> Any:
    """A scheduler with KV blocks that exist as numbers only."""
    block_size, num_blocks = config.cache_config.block_size, config.cache_config.num_gpu_blocks
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return factory(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        block_size=block_size,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


def make_request(
    request_id: str,
    prompt: list[int],
    max_tokens: int,
    *,
    block_size: int = 16,
    extra_args: dict[str, Any] | None = None,
    session: bool = False,
) -> Request:
    """A greedy request that ends at `max_tokens`, or at token 0; a session awaits its next prompt then."""
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt.copy(),  # a session's grows
        sampling_params=_params(max_tokens, extra_args),
        pooling_params=None,
        block_hasher=get_request_block_hasher(block_size, sha256),
        **({"resumable": True} if session else {}),
    )


def _params(max_tokens: int, extra_args: dict[str, Any] | None) -> SamplingParams:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, extra_args=extra_args)
    params.stop_token_ids = [0]
    params.update_from_generation_config({}, 0)
    return params


class SteppedScheduler:
    """Drives a scheduler as vLLM's engine core does, with a model that is a function from drafts to acceptances.

    Parameters
    ----------
    scheduler : Scheduler
        Real, stock or adaptive.
    accept : callable
        Takes the request's id and the number of drafts that are verified, returns how many are accepted.
    offer : callable
        Takes the request's id and the number of drafts asked for, returns how many the drafter makes; with
        asynchronous scheduling it always makes all, as placeholders stand for them.

    Attributes
    ----------
    drafted, accepted : int
        Sums of vLLM's own ``SpecDecodingStats``.
    grammar : callable, optional
        Takes a request's id and a number of drafts, and returns how many of them a grammar lets through.
    shuffle : random.Random, optional
        Brings the results in another order than the scheduler's, as a worker's batch may have them.
    outputs : list of EngineCoreOutput
        All that were handed out.
    emitted : dict of str to int
        Tokens that each request produced.
    seconds : float
        Thread CPU time that the scheduler took in the latest step.
    """

    def __init__(
        self, scheduler: Any, accept: Callable[[str, int], int], offer: Callable[[str, int], int] | None = None
    ) -> None:
        self.scheduler = scheduler
        self.accept = accept
        self.offer = offer or (lambda _, asked: asked)
        self.grammar: Callable[[str, int], int] | None = None
        scheduler.structured_output_manager.validate_tokens = self._validate
        self.asynchronous = bool(scheduler.vllm_config.scheduler_config.async_scheduling)
        self.queue: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.stop: Callable[[str], bool] = lambda _: False
        self.shuffle: random.Random | None = None
        self.drafted = self.accepted = 0  # by vLLM's own statistics
        self.outputs: list[Any] = []
        self.emitted: dict[str, int] = {}
        self.token = 7
        self.seconds = 0.0

    def step(self) -> Any:
        """One turn of the engine core's loop; returns what was scheduled."""
        self.seconds = 0.0
        began = time.thread_time()
        output = self.scheduler.schedule()
        self.seconds += time.thread_time() - began
        if self.asynchronous and self.grammar is not None and output.scheduled_spec_decode_tokens:
            drafts = [[9] * len(tokens) for tokens in output.scheduled_spec_decode_tokens.values()]
            ids = list(output.scheduled_spec_decode_tokens)
            self.scheduler.update_draft_token_ids_in_output(DraftTokenIds(ids, drafts), output)
        results = self.run_model(output)
        if self.asynchronous:
            self.queue.append((output, results))
            if len(self.queue) == 2 or not output.num_scheduled_tokens:
                self._update(*self.queue.popleft())
            return output
        self._update(output, results)
        if output.num_scheduled_tokens:
            asked = output.num_spec_tokens_to_schedule
            ids = list(output.num_scheduled_tokens)
            drafts = DraftTokenIds(ids, [[9] * min(self.offer(id, asked), asked) for id in ids])
            began = time.thread_time()
            self.scheduler.update_draft_token_ids(drafts)
            self.seconds += time.thread_time() - began
        return output

    def _validate(self, request: Any, tokens: list[int]) -> list[int]:
        """In the place of the real grammar's: the drafts that it lets through."""
        return tokens if self.grammar is None else tokens[: self.grammar(request.request_id, len(tokens))]

    def drain(self) -> None:
        """Hand out all results that are under way."""
        while self.queue:
            self._update(*self.queue.popleft())

    def run(self, limit: int = 10_000) -> int:
        """Step until no request is left; the number of steps."""
        steps = 0
        while self.scheduler.has_requests() and steps < limit:
            self.step()
            steps += 1
        self.drain()
        assert steps < limit, "the requests don't end"
        return steps

    def run_model(self, output: Any) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        if self.shuffle is not None:
            self.shuffle.shuffle(ids)
        tokens: list[list[int]] = []
        for id in ids:
            request = self.scheduler.requests[id]
            if request.is_prefill_chunk:
                tokens.append([])
                continue
            drafts = len(output.scheduled_spec_decode_tokens.get(id, ()))
            drafts -= (output.num_invalid_spec_tokens or {}).get(id, 0)
            kept = min(self.accept(id, drafts), drafts)
            sampled = [self.token] * (kept + 1)
            if self.stop(id):
                sampled[-1] = 0
            tokens.append(sampled)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id: i for i, id in enumerate(ids)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _update(self, output: Any, results: ModelRunnerOutput) -> None:
        began = time.thread_time()
        outputs = self.scheduler.update_from_output(output, results)
        self.seconds += time.thread_time() - began
        for core in outputs.values():
            self._read(core)

    def _read(self, core: Any) -> None:
        for out in core.outputs:
            self.outputs.append(out)
            self.emitted[out.request_id] = self.emitted.get(out.request_id, 0) + len(out.new_token_ids)
        stats = core.scheduler_stats
        if stats is not None and stats.spec_decoding_stats is not None:
            self.drafted += stats.spec_decoding_stats.num_draft_tokens
            self.accepted += stats.spec_decoding_stats.num_accepted_tokens


def abort(scheduler: Any, *ids: str) -> None:
    """As the engine core does when a client goes away."""
    scheduler.finish_requests(list(ids), RequestStatus.FINISHED_ABORTED)
