"""Times of the kernels on a GPU, beside torch and vLLM."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from adaptive_spec.experiments.gpu.problems import batch_of, paged
from adaptive_spec.kernels import ops

Row = dict[str, Any]


def microseconds(work: Callable[[], Any]) -> float:
    """Median time of a call, from a CUDA graph where it can be captured, with the cache flushed before each."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    replay = work
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        replay = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
    times = []
    for _ in range(12):
        flush.zero_()
        begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return float(sorted(times)[len(times) // 2])


def copy_bandwidth() -> float:
    """Bytes a second of a large copy, reads and writes counted."""
    source = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / microseconds(lambda: target.copy_(source)) * 1e6


def vllm_samplers() -> tuple[Any, Any] | None:
    """vLLM's rejection kernels for greedy and for sampled drafts, or None without vLLM."""
    try:
        from vllm.v1.sample import rejection_sampler
    except ImportError:
        return None
    return rejection_sampler.rejection_sample, rejection_sampler


def timed(quick: bool, deadline: float, bandwidth: float) -> Iterator[Row]:
    """Times of every kernel beside torch."""
    device = torch.device("cuda")

    def row(name: str, sizes: Row, work: Callable[[], Any], moved: float, torch_work: Callable[[], Any] | None) -> Row:
        mine = microseconds(work)
        result: Row = {"kernel": name, **sizes, "us": mine, "share": moved / mine * 1e6 / bandwidth}
        if torch_work is not None:
            result["torch"] = microseconds(torch_work) / mine
        return result

    batches = (64,) if quick else (1, 16, 64, 256)
    for batch in batches:
        for depth in (8,) if quick else (4, 8, 16):
            for vocabulary in (131072,) if quick else (32768, 131072, 152064):
                if time.monotonic() > deadline:
                    return
                logits, cu, draft, sampling = batch_of(batch, depth, vocabulary, torch.bfloat16, device, 0)
                moved = logits.numel() * logits.element_size()
                sizes = {"B": batch, "K": depth, "V": vocabulary}
                yield row(
                    "greedy",
                    sizes,
                    lambda: ops.verify_greedy(logits, cu, draft, depth),  # noqa: B023
                    moved,
                    lambda: logits.argmax(-1),  # noqa: B023
                )
                usual = None
                if moved < 4 << 30:

                    def usual() -> Tensor:
                        p = logits.float().softmax(-1)  # noqa: B023
                        return p.div_(torch.empty_like(p).exponential_()).argmax(-1)

                yield row(
                    "match",
                    sizes,
                    lambda: ops.verify_match(logits, cu, draft, depth, **sampling),  # noqa: B023
                    moved,
                    usual,
                )
                cut = {**sampling, "top_k": sampling["top_k"] + 50, "top_p": sampling["top_p"] * 0.9}
                yield row(
                    "match, top-k 50, top-p .9",
                    sizes,
                    lambda: ops.verify_match(logits, cu, draft, depth, **cut),  # noqa: B023
                    moved,
                    None,
                )
                yield from vllm_row(sizes, logits, cu, draft, depth)
    for batch, depth in ((64, 8), (256, 16)):
        survival = torch.rand(batch, depth, device=device).cumprod(1)
        ones, limit = torch.ones(batch, device=device), torch.full((batch,), depth, dtype=torch.int32, device=device)
        costs = torch.linspace(1.0, 2.0, batch * depth + 1, device=device)
        zeros = torch.zeros(depth + 1, device=device)
        yield row(
            "allocation",
            {"B": batch, "K": depth},
            lambda: ops.allocate(survival, ones, limit, 1.0, costs, zeros),  # noqa: B023
            survival.numel() * 4,
            lambda: survival.flatten().sort(descending=True),  # noqa: B023
        )
    for batch in batches:
        for context in (8192,) if quick else (1024, 8192, 32768):
            if time.monotonic() > deadline or batch * context > 4 << 20:
                continue
            for uniform in (True, False):
                widths = torch.full((batch,), 8, device=device)
                if not uniform:
                    widths = torch.randint(1, 18, (batch,), device=device)
                call = paged(batch, widths, context, (32, 8, 128), torch.bfloat16, 0)
                moved = int(call[5].sum()) * 8 * 128 * 2 * 2
                yield row(
                    "attention, width 8" if uniform else "attention, widths 1-17",
                    {"B": batch, "context": context},
                    lambda: ops.verify_attention(*call, max_width=17),  # noqa: B023
                    moved,
                    padded(call) if batch * context <= 1 << 20 else None,
                )


def padded(call: tuple[Any, ...]) -> Callable[[], Tensor]:
    """Torch's fused attention over keys gathered beforehand and rows padded to the widest: its best case."""
    q, k, v, table, cu, length, scale = call
    width = (cu[1:] - cu[:-1]).long()
    widest, longest = int(width.max()), int(length.max())
    keys, values = (x[table.long()].flatten(1, 2)[:, :longest].transpose(1, 2).nan_to_num(0.0) for x in (k, v))
    j, t = torch.arange(widest, device=q.device), torch.arange(longest, device=q.device)
    row = torch.minimum(cu[:-1, None].long() + j, cu[1:, None].long() - 1)
    last = length[:, None] - width[:, None] + torch.minimum(j, width[:, None] - 1)
    mask = (t <= last[:, :, None])[:, None]
    queries = q[row].transpose(1, 2)
    return lambda: torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=True
    )


def vllm_row(sizes: Row, logits: Tensor, cu: Tensor, draft: Tensor, depth: int) -> Iterator[Row]:
    """vLLM's rejection sampler on the same drafts, random sampling without draft probabilities."""
    found = vllm_samplers()
    if found is None or not len(draft):
        return
    rejection_sample, module = found
    counts = (cu[1:] - cu[:-1] - 1).tolist()
    rows = torch.cat([torch.arange(int(cu[b]), int(cu[b + 1]) - 1, device=cu.device) for b in range(len(counts))])
    bonus = logits[(cu[1:] - 1).long()].argmax(-1, keepdim=True).int()
    target = logits[rows]
    try:
        metadata = _vllm_metadata(len(counts), logits.device)
        ends = torch.tensor(counts, device=cu.device).cumsum(0).int()

        def work() -> Any:
            p = target.float().softmax(-1)
            return rejection_sample(draft, counts, depth, ends, None, p, bonus, metadata)

        yield {"kernel": "vLLM rejection sampler", **sizes, "us": microseconds(work)}
    except Exception as error:  # vLLM's internals move: say so, and go on
        print(f"vLLM's {module.__name__} could not be called: {type(error).__name__}: {error}", file=sys.stderr)


def _vllm_metadata(batch: int, device: torch.device) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(
        all_greedy=False,
        all_random=True,
        temperature=torch.ones(batch, device=device),
        generators={},
        top_k=None,
        top_p=None,
    )
