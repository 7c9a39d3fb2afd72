"""CPU time of the kernels' CPU backends beside what torch users would write, in one process.

    python -m adaptive_spec.experiments.kernel_cpu_times [--batch 256] [--vocabulary 49152]

Prints the median of several runs' *process* time on one thread, which other load on the machine hardly disturbs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.kernels import cpu_attention, ops, reference, reference_accept_stats, reference_attention

SEED = 0


def milliseconds(work: Callable[[], object], runs: int) -> float:
    """Median process time of a call."""
    work()
    times = []
    for _ in range(runs):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


def verification(batch: int, depth: int, vocabulary: int, runs: int) -> list[tuple[str, str, float, float]]:
    """Greedy, match and ratio mode; drafts are right four times in five."""
    g = torch.Generator().manual_seed(SEED)
    rows = batch * (depth + 1)
    logits = torch.randn(rows, vocabulary, generator=g) * 2.5
    cu = torch.arange(0, rows + 1, depth + 1, dtype=torch.int32)
    draft_rows = torch.arange(rows).view(batch, -1)[:, :-1].flatten()
    zeros = torch.zeros(batch, dtype=torch.int64)
    sampling = {
        "temperature": torch.ones(batch),
        "top_k": zeros.int(),
        "top_p": torch.ones(batch),
        "seed": torch.arange(batch),
        "sample_index": zeros,
        "position": zeros,
    }

    def drafts(right: torch.Tensor) -> torch.Tensor:
        wrong = torch.randint(0, vocabulary, right.shape, generator=g)
        return torch.where(torch.rand(right.shape, generator=g) < 0.8, right, wrong).int()

    def by_argmax(draft: torch.Tensor) -> object:
        return reference.accept_matches(logits.argmax(1), cu, draft, depth)

    def by_softmax(draft: torch.Tensor) -> object:
        probabilities = torch.softmax(logits, 1)
        noise = torch.empty_like(probabilities).exponential_()
        return reference.accept_matches(probabilities.div_(noise).argmax(1), cu, draft, depth)

    greedy = drafts(logits.argmax(1)[draft_rows])
    own, _ = ops.verify_match(
        logits,
        torch.arange(rows + 1, dtype=torch.int32),
        greedy[:0],
        0,
        **{name: value.repeat_interleave(depth + 1) for name, value in sampling.items() if name != "position"},
        position=torch.arange(depth + 1).repeat(batch),
    )
    match = drafts(own[:, 0].long()[draft_rows])
    results = [
        (
            "greedy",
            "argmax of all rows",
            milliseconds(lambda: ops.verify_greedy(logits, cu, greedy, depth), runs),
            milliseconds(lambda: by_argmax(greedy), runs),
        ),
        (
            "match, T 1",
            "softmax, exponential_, divide, argmax",
            milliseconds(lambda: ops.verify_match(logits, cu, match, depth, **sampling), runs),
            milliseconds(lambda: by_softmax(match), runs),
        ),
    ]
    draft_logits = logits[draft_rows] + 0.3 * torch.randn(len(draft_rows), vocabulary, generator=g)
    sampled = torch.multinomial(draft_logits.softmax(1), 1, generator=g).flatten().int()

    def by_probabilities() -> object:
        p, q = torch.softmax(logits, 1), torch.softmax(draft_logits, 1)
        kept = (
            torch.rand(len(sampled)) * q.gather(1, sampled.long()[:, None])[:, 0]
            <= p[draft_rows].gather(1, sampled.long()[:, None])[:, 0]
        )
        accepted = kept.view(batch, depth).long().cumprod(1).sum(1)
        row = torch.arange(batch) * (depth + 1) + accepted
        left = p[row]
        refused = accepted < depth
        left[refused] -= q[(torch.arange(batch) * depth + accepted)[refused]]
        return left.clamp_(min=0.0).div_(torch.empty_like(left).exponential_()).argmax(1)

    results.append(
        (
            "ratio, T 1",
            "softmaxes, gather, residual, argmax",
            milliseconds(
                lambda: ops.verify_ratio(logits, cu, sampled, depth, draft_logits=draft_logits, **sampling), runs
            ),
            milliseconds(by_probabilities, runs),
        )
    )
    return results


def depths(batch: int, depth: int, runs: int) -> list[tuple[str, str, float, float]]:
    """Survival and sums: torch's against the core's numpy, which serves the controller."""
    rng = np.random.default_rng(SEED)
    model = AcceptanceModel(depth, ("matched_length",), capacity=batch)
    for row in range(batch):
        model.add(row)
    rows = np.arange(batch)
    cell = model.cells(rng.integers(0, 20, (batch, 1)).astype(np.float64))
    verified = np.full(batch, depth)
    accepted = np.minimum(rng.geometric(0.3, batch) - 1, depth)
    odds = torch.from_numpy(model.population.odds_against).float()
    cells, judged, kept = (torch.from_numpy(x).int() for x in (cell, verified, accepted))
    zeros, ones = torch.zeros(batch), torch.ones(batch)
    return [
        (
            "survival",
            "the core's numpy",
            milliseconds(lambda: reference_accept_stats.survival(odds, cells, zeros, ones), 20 * runs),
            milliseconds(lambda: model.estimate(rows, cell).mean(), 20 * runs),
        ),
        (
            "sums",
            "the core's numpy, with its Newton steps",
            milliseconds(
                lambda: reference_accept_stats.accept_stats(odds, cells, judged, kept, zeros, ones), 20 * runs
            ),
            milliseconds(lambda: model.observe(rows, cell, verified, accepted), 20 * runs),
        ),
    ]


def attention(batch: int, runs: int) -> list[tuple[str, str, float, float]]:
    """Fused by sequence against the definition; SmolLM2-135M's heads, 300 tokens of context, widths 1 to 9."""
    g = torch.Generator().manual_seed(SEED)
    page, heads, kv_heads, head_dim = 16, 9, 3, 64
    width = torch.randint(1, 10, (batch,), generator=g)
    length = width + torch.randint(200, 400, (batch,), generator=g)
    blocks = -(-int(length.max()) // page)
    table = torch.randperm(batch * blocks, generator=g).view(batch, blocks).int()
    k, v = (torch.randn(batch * blocks, page, kv_heads, head_dim, generator=g) for _ in range(2))
    cu = torch.zeros(batch + 1, dtype=torch.int32)
    cu[1:] = width.cumsum(0)
    q = torch.randn(int(cu[-1]), heads, head_dim, generator=g)
    call = (q, k, v, table, cu, length.int(), head_dim**-0.5)
    return [
        (
            "attention",
            "the definition, sequence by sequence",
            milliseconds(lambda: cpu_attention.verify_attention(*call), runs),
            milliseconds(lambda: reference_attention.verify_attention(*call), runs),
        )
    ]


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="CPU time of the kernels' CPU backends beside plain torch.")
    parser.add_argument("--batch", type=int, default=256, help="sequences")
    parser.add_argument("--depth", type=int, default=8, help="drafts of each")
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = verification(options.batch, options.depth, options.vocabulary, options.runs)
    rows += depths(options.batch, options.depth, options.runs)
    rows += attention(options.batch, options.runs)
    print("| what | ms | beside | ms | ratio |\n| --- | ---: | --- | ---: | ---: |")
    for name, other, mine, theirs in rows:
        print(f"| {name} | {mine:.3g} | {other} | {theirs:.3g} | {mine / theirs:.2f} |")


if __name__ == "__main__":
    main()
