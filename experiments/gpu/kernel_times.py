"""Times of the kernels on a GPU, beside torch and vLLM."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaptive_spec.experiments.gpu.problems import batch_of, paged
from adaptive_spec.kernels import backend, ops, reference_rotary

Row = dict[str, Any]
Work = Callable[[], Any]

LAST_SECONDS = 60.0  # kept back for attention, which comes last


class Timing(NamedTuple):
    """Median microseconds of a call, and whether it is the time of a graph's replay or of eager launches."""

    us: float
    captured: bool


@dataclass(frozen=True)
class Sizes:
    """What is timed."""

    batches: tuple[int, ...]
    depths: tuple[int, ...]
    vocabularies: tuple[int, ...]
    contexts: tuple[int, ...]
    allocations: tuple[tuple[int, int], ...] = ((64, 8), (256, 16))
    heads: tuple[int, int, int] = (32, 8, 128)  # of queries, of keys, and their width


FULL = Sizes((1, 16, 64, 256), (4, 8, 16), (32768, 131072, 152064), (1024, 8192, 32768))
QUICK = Sizes((64,), (8,), (131072,), (8192,))


def time_call(work: Work) -> Timing:
    """Time a call, from a CUDA graph where it can be captured, with the cache flushed before each."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    replay, captured = work, False
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        replay, captured = graph.replay, True
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
    return Timing(float(sorted(times)[len(times) // 2]), captured)


def copy_bandwidth() -> float:
    """Bytes a second of a large copy, reads and writes counted."""
    source = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / time_call(lambda: target.copy_(source)).us * 1e6


class Timer:
    """Times every kernel beside torch, small problems first.

    Parameters
    ----------
    sizes : Sizes
    device : torch.device
    bandwidth : float
        Bytes a second, of which shares are told.
    deadline : float
        Of :func:`time.monotonic`; sizes that come later are left out, kernel by kernel.
    seed : int
        Of the inputs.
    """

    def __init__(self, sizes: Sizes, device: torch.device, bandwidth: float, deadline: float, seed: int) -> None:
        self.sizes, self.device, self.bandwidth = sizes, device, bandwidth
        self.deadline, self.seed = deadline, seed
        self._random = torch.Generator(device=device).manual_seed(seed)

    def rows(self) -> Iterator[Row]:
        """One row for each kernel and size."""
        yield from self.allocation()
        yield from self.statistics()
        yield from self.rotation()
        yield from self.verification(self.deadline - LAST_SECONDS)
        yield from self.attention()

    def row(self, name: str, sizes: Row, work: Work, moved: float, beside: Work | None) -> Row:
        """Time a kernel, and what torch offers beside it."""
        mine = time_call(work)
        share = moved / mine.us * 1e6 / self.bandwidth
        row: Row = {"kernel": name, **sizes, "us": mine.us, "captured": mine.captured, "share": share}
        if beside is not None:
            other = time_call(beside)
            row |= {"torch": other.us / mine.us, "torch_captured": other.captured}
        return row

    def verification(self, until: float) -> Iterator[Row]:
        """Every mode, on sizes until the time is up."""
        for batch in self.sizes.batches:
            for depth in self.sizes.depths:
                for vocabulary in self.sizes.vocabularies:
                    if time.monotonic() > until:
                        return
                    yield from self.verification_of(batch, depth, vocabulary)

    def verification_of(self, batch: int, depth: int, vocabulary: int) -> Iterator[Row]:
        """Every mode on one size."""
        logits, cu, draft, sampling = batch_of(batch, depth, vocabulary, torch.bfloat16, self.device, self.seed)
        moved = logits.numel() * logits.element_size()
        fits = moved < 4 << 30  # torch keeps float32 copies
        sizes = {"B": batch, "K": depth, "V": vocabulary}
        yield self.row(
            "greedy", sizes, lambda: ops.verify_greedy(logits, cu, draft, depth), moved, lambda: logits.argmax(-1)
        )
        yield self.row(
            "match",
            sizes,
            lambda: ops.verify_match(logits, cu, draft, depth, **sampling),
            moved,
            (lambda: _sample(logits.float().softmax(-1))) if fits else None,
        )
        cut = {**sampling, "top_k": sampling["top_k"] + 50, "top_p": sampling["top_p"] * 0.9}
        yield self.row(
            "match, top-k 50, top-p .9",
            sizes,
            lambda: ops.verify_match(logits, cu, draft, depth, **cut),
            moved,
            None,
        )
        drafted = torch.randn((len(draft), vocabulary), generator=self._random, device=self.device).to(logits.dtype)
        yield self.row(
            "ratio",
            sizes,
            lambda: ops.verify_ratio(logits, cu, draft, depth, draft_logits=drafted, **sampling),
            moved + drafted.numel() * drafted.element_size(),
            residual_draws(logits, drafted, cu) if fits and len(draft) else None,
        )
        yield from vllm_row(sizes, logits, cu, draft, depth)

    def allocation(self) -> Iterator[Row]:
        """The split of a step's budget, beside a sort."""
        for batch, depth in self.sizes.allocations:
            survival = self.uniform(batch, depth).cumprod(1)
            ones = torch.ones(batch, device=self.device)
            limit = torch.full((batch,), depth, dtype=torch.int32, device=self.device)
            costs = torch.linspace(1.0, 2.0, batch * depth + 1, device=self.device)
            zeros = torch.zeros(depth + 1, device=self.device)
            call: Any = (survival, ones, limit, 1.0, costs, zeros)
            yield self.row(
                "allocation",
                {"B": batch, "K": depth},
                lambda: ops.allocate(*call),  # noqa: B023
                survival.numel() * 4,
                lambda: survival.flatten().sort(descending=True),  # noqa: B023
            )

    def statistics(self) -> Iterator[Row]:
        """Survival and sums of acceptance, beside their definitions in torch."""
        for batch, depth in self.sizes.allocations:
            odds, cell = self.uniform(depth, 72), self.integers(72, batch)
            verified = self.integers(depth + 1, batch)
            accepted = (self.uniform(batch) * (verified + 1)).int()
            mean, precision = self.uniform(batch), self.uniform(batch) + 0.5
            sizes = {"B": batch, "K": depth}
            for name, work, moved in (
                ("survival", lambda: ops.survival(odds, cell, mean, precision), 4 * batch * (depth + 3)),  # noqa: B023
                (
                    "sums",
                    lambda: ops.accept_stats(odds, cell, verified, accepted, mean, precision),  # noqa: B023
                    4 * (5 * batch + 4 * depth * 72),
                ),
            ):
                yield self.row(name, sizes, work, moved, in_torch(work))

    def rotation(self) -> Iterator[Row]:
        """Rotary embedding and the writing of keys and values, of one layer."""
        queries, kv_heads, head_dim = self.sizes.heads
        for batch in self.sizes.batches:
            rows = 8 * batch
            heads = self.uniform(rows, queries + 2 * kv_heads, head_dim).to(torch.bfloat16)
            positions = self.integers(4096, rows).long()
            angles = self.uniform(4096, head_dim // 2)
            turned, k, v = heads[:, : queries + kv_heads], heads[:, queries:-kv_heads], heads[:, -kv_heads:]
            call: Any = (turned, positions, angles.cos(), angles.sin())
            yield self.row(
                "rotate",
                {"N": rows},
                lambda: ops.rotate(*call, queries=queries),  # noqa: B023
                2 * turned.numel() * 2,
                lambda: reference_rotary.rotate(*call, queries=queries),  # noqa: B023
            )
            k_cache, v_cache = torch.zeros((2, rows // 4, 16, kv_heads, head_dim), dtype=k.dtype, device=self.device)
            slots = torch.randperm(4 * rows, generator=self._random, device=self.device)[:rows]
            flat = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
            yield self.row(
                "write_kv",
                {"N": rows},
                lambda: ops.write_kv(k, v, k_cache, v_cache, slots),  # noqa: B023
                4 * k.numel() * 2,
                lambda: (flat[0].index_copy_(0, slots, k), flat[1].index_copy_(0, slots, v)),  # noqa: B023
            )

    def attention(self) -> Iterator[Row]:
        """Attention at even and uneven widths."""
        for batch in self.sizes.batches:
            for context in self.sizes.contexts:
                for uniform in (True, False):
                    if time.monotonic() > self.deadline:
                        return
                    if batch * context <= 4 << 20:
                        yield self.attention_of(batch, context, uniform)

    def attention_of(self, batch: int, context: int, uniform: bool) -> Row:
        """Attention on one size."""
        widths = torch.full((batch,), 8, device=self.device) if uniform else self.integers(17, batch).long() + 1
        call = paged(batch, widths, context, self.sizes.heads, torch.bfloat16, self.seed)
        kv_heads, head_dim = self.sizes.heads[1:]
        return self.row(
            "attention, width 8" if uniform else "attention, widths 1-17",
            {"B": batch, "context": context},
            lambda: ops.verify_attention(*call, max_width=17),
            int(call[5].sum()) * kv_heads * head_dim * 2 * 2,
            gathered(call, uniform) if batch * context <= 1 << 20 else None,
        )

    def uniform(self, *shape: int) -> Tensor:
        """Random numbers from 0 to 1."""
        return torch.rand(shape, generator=self._random, device=self.device)

    def integers(self, most: int, size: int) -> Tensor:
        """Random int32 numbers under `most`."""
        return torch.randint(0, most, (size,), generator=self._random, device=self.device, dtype=torch.int32)


def in_torch(work: Work) -> Work:
    """The same call, served by its definition."""

    def call() -> Any:
        with backend.use("torch"):
            return work()

    return call


def _sample(p: Tensor) -> Tensor:
    return p.div_(torch.empty_like(p).exponential_()).argmax(-1)


def residual_draws(logits: Tensor, drafted: Tensor, cu: Tensor) -> Work:
    """What ratio mode takes in plain torch: both softmaxes, and a draw from each row's residual."""
    last = torch.zeros(len(logits), dtype=torch.bool, device=cu.device)
    last[(cu[1:] - 1).long()] = True
    rows = (~last).nonzero().flatten()

    def draw() -> Tensor:
        p = logits.float().softmax(-1)
        p.index_add_(0, rows, drafted.float().softmax(-1), alpha=-1.0)
        return _sample(p.clamp_(min=0.0))

    return draw


def gathered(call: tuple[Any, ...], uniform: bool) -> Work:
    """Torch's fused attention over keys gathered beforehand and rows padded to the widest: its best case.

    Sequences of one width and length have causal masks that FlashAttention knows; others need one that is written out.
    """
    from torch.nn.attention.bias import causal_lower_right  # imports triton

    q, k, v, table, cu, length, scale = call
    width = (cu[1:] - cu[:-1]).long()
    widest, longest = int(width.max()), int(length.max())
    keys, values = (
        x[table.long()].flatten(1, 2)[:, :longest].transpose(1, 2).nan_to_num(0.0).contiguous() for x in (k, v)
    )
    j, t = torch.arange(widest, device=q.device), torch.arange(longest, device=q.device)
    row = torch.minimum(cu[:-1, None].long() + j, cu[1:, None].long() - 1)
    last = length[:, None] - width[:, None] + torch.minimum(j, width[:, None] - 1)
    mask = causal_lower_right(widest, longest) if uniform else (t <= last[:, :, None])[:, None]
    queries = q[row].transpose(1, 2).contiguous()
    return lambda: torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=True
    )


def vllm_samplers() -> tuple[Any, Any] | None:
    """vLLM's rejection kernels for greedy and for sampled drafts, or None without vLLM."""
    try:
        from vllm.v1.sample import rejection_sampler
    except ImportError:
        return None
    return rejection_sampler.rejection_sample, rejection_sampler


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

        yield {"kernel": "vLLM rejection sampler", **sizes, **time_call(work)._asdict()}
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
