"""Checks the Triton kernels on a GPU against float64, then times them beside torch and, if it is there, vLLM.

    python -m adaptive_spec.experiments.gpu.kernels [--quick] [--json FILE]

One command, no network, under four minutes on one H200. Inputs are drawn afresh (``--seed``), outputs are poisoned
before each call, every kernel runs several times and must give the same bits. Times are medians of launches from a
CUDA graph (``captured``; of eager launches where there could be none), with the cache flushed between them; the share
is of the copy bandwidth that is measured at the start. The file is written anew after each time.
Without a GPU, ``--interpret`` runs the checks at tiny sizes in Triton's interpreter, and times nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adaptive_spec.experiments.gpu.kernel_times import FULL, QUICK, Timer, copy_bandwidth
from adaptive_spec.experiments.gpu.problems import batch_of, paged
from adaptive_spec.kernels import backend, ops, reference, reference_attention, reference_rotary

REPEATS = 5  # on a GPU; the interpreter, which is slow, runs one thing after another
ROUNDING = {torch.float32: 1e-5, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # two neighbours' relative distance
TOLERANCE = {torch.float32: 5e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
SECONDS = 220.0


def poisoned(work: Callable[[], Any], device: torch.device) -> Any:
    """Call after filling freed memory with NaN's bits, so that an output left unwritten shows."""
    if device.type == "cuda":
        blocks = [torch.full((1 << size,), -1, dtype=torch.int32, device=device) for size in range(4, 24, 2)]
        del blocks
    return work()


def same_each_time(name: str, work: Callable[[], Any], device: torch.device) -> Any:
    """Run several times; equal inputs must give equal bits (a race would not)."""
    first = poisoned(work, device)
    for _ in range(REPEATS if device.type == "cuda" else 1):
        again = poisoned(work, device)
        pairs = zip(first, again, strict=True) if isinstance(first, tuple) else [(first, again)]
        for a, b in pairs:
            if not torch.equal(a, b):
                raise AssertionError(f"{name}: two runs differ")
    return first


def check_match(problem: tuple[Tensor, Tensor, Tensor, dict[str, Tensor]], depth: int, device: torch.device) -> None:
    """Match mode's tokens are the definition's but for ties within rounding."""
    logits, cu, draft, sampling = problem
    got, _ = same_each_time("match", lambda: ops.verify_match(logits, cu, draft, depth, **sampling), device)
    want, _ = reference.verify_match(
        logits.cpu(), cu.cpu(), draft.cpu(), depth, **{name: value.cpu() for name, value in sampling.items()}
    )
    for b in (got.cpu() != want).any(1).nonzero().flatten().tolist():
        j = int((got[b].cpu() != want[b]).nonzero()[0])
        cut = (float(sampling["temperature"][b]), int(sampling["top_k"][b]), float(sampling["top_p"][b]))
        key = {name: int(sampling[name][b]) for name in ("seed", "sample_index", "position")}
        row = logits[int(cu[b]) + j].cpu()
        best = torch.topk(reference.match_scores(row, *cut, **{**key, "position": key["position"] + j}), 2).values
        if float(best[0] - best[1]) > 1e-4 and not reference.nucleus_edge(row, *cut).near():
            raise AssertionError(f"match: sequence {b} differs at {j}, and it is no tie")


def check(device: torch.device, seed: int, tiny: bool) -> Iterator[str]:
    """Compare every kernel with its definition; raise at the first that differs."""
    vocabulary = 300 if tiny else 131072
    for dtype in TOLERANCE:
        logits, cu, draft, sampling = batch_of(4, 3, vocabulary, dtype, device, seed)
        got = same_each_time("greedy", lambda: ops.verify_greedy(logits, cu, draft, 3), device)  # noqa: B023
        want = reference.verify_greedy(logits.double().float(), cu, draft, 3)
        if not all(torch.equal(a, b) for a, b in zip(got, want, strict=True)):
            raise AssertionError(f"greedy {dtype}: other tokens than the definition's")
        for k, p in ((200, 0.95),) if tiny else ((0, 1.0), (50, 1.0), (0, 0.9), (200, 0.95)):
            cut = {**sampling, "top_k": sampling["top_k"] + k, "top_p": sampling["top_p"] * p}
            check_match((logits, cu, draft, cut), 3, device)
        yield f"greedy, match {dtype}"
    check_ratio(device, seed, 300 if tiny else 32768)
    yield "ratio"
    yield from check_rows(device, seed, tiny)
    yield from check_attention(device, seed, tiny)
    yield from check_depths(device, seed, tiny)


def check_ratio(device: torch.device, seed: int, vocabulary: int) -> None:
    """Ratio mode's tokens are the definition's, but for a tie within rounding."""
    logits, cu, draft, sampling = batch_of(6, 3, vocabulary, torch.float32, device, seed + 1)
    g = torch.Generator(device=device).manual_seed(seed)
    draft_logits = torch.randn(len(draft), vocabulary, generator=g, device=device)
    got = same_each_time(
        "ratio",
        lambda: ops.verify_ratio(logits, cu, draft, 3, draft_logits=draft_logits, **sampling),
        device,
    )
    want = reference.verify_ratio(logits, cu, draft, 3, draft_logits=draft_logits, **sampling)
    differ = int((got[0] != want[0]).any(1).sum())
    if differ > 1:
        raise AssertionError(f"ratio: {differ} of 6 sequences differ from the definition")


def check_rows(device: torch.device, seed: int, tiny: bool) -> Iterator[str]:
    """Rotation against its definition, and keys and values in their slots to the bit."""
    g = torch.Generator(device=device).manual_seed(seed)
    rows, queries, kv_heads = 5 if tiny else 300, 6, 2
    for dtype in ROUNDING:
        for head_dim in (64,) if tiny else (64, 96, 128):
            shape = (rows, queries + 2 * kv_heads, head_dim)
            heads = torch.randn(shape, generator=g, device=device).to(dtype)
            positions = torch.randint(0, 500, (rows,), generator=g, device=device)
            angles = torch.rand(500, head_dim // 2, generator=g, device=device) * 6.3
            weight = torch.rand(head_dim, generator=g, device=device) + 0.5
            for norm in (None, weight):
                check_rotation((heads, positions, angles.cos(), angles.sin()), queries, norm)
            check_writing(heads[:, queries:-kv_heads], heads[:, -kv_heads:], g)
    yield "rotation, writing of keys and values"


def check_rotation(call: tuple[Tensor, ...], queries: int, norm: Tensor | None) -> None:
    """Turned heads are the definition's; the rows' values, which no head is, stay as they are."""
    heads, *place = call
    turned = heads.shape[1] - 2  # the last heads are values

    def turn(rotate: Callable[..., None]) -> Tensor:
        copy = heads.clone()
        rotate(copy[:, :turned], *place, queries=queries, q_norm=norm, k_norm=norm, eps=1e-6)
        return copy

    got, want = same_each_time("rotation", lambda: turn(ops.rotate), heads.device), turn(reference_rotary.rotate)
    error = (got.float() - want.float()).abs()
    if not bool((error <= 1e-5 + ROUNDING[heads.dtype] * want.float().abs()).all()):
        raise AssertionError(f"rotation {heads.dtype} head size {heads.shape[2]}: off by up to {float(error.max())}")
    if not torch.equal(got[:, turned:], heads[:, turned:]):
        raise AssertionError(f"rotation {heads.dtype} head size {heads.shape[2]}: values were written to")


def check_writing(k: Tensor, v: Tensor, g: torch.Generator) -> None:
    """Keys and values lie in their slots, those without one nowhere, and all else is untouched."""
    rows, kv_heads, head_dim = k.shape
    slots = torch.randperm(4 * rows, generator=g, device=k.device)[:rows]
    slots[1::4] = -1
    before = torch.full((rows, 4, kv_heads, head_dim), 7.0, dtype=k.dtype, device=k.device)

    def written(write: Callable[..., None]) -> tuple[Tensor, Tensor]:
        caches = before.clone(), before.clone()
        write(k, v, *caches, slots)
        return caches

    got = same_each_time("write_kv", lambda: written(ops.write_kv), k.device)
    if not all(torch.equal(a, b) for a, b in zip(got, written(reference_attention.write_kv), strict=True)):
        raise AssertionError(f"write_kv {k.dtype} head size {head_dim}: other bits than were given")


def check_attention(device: torch.device, seed: int, tiny: bool) -> Iterator[str]:
    """All widths to 17 with a prefill chunk among them, against float64."""
    widths = torch.tensor([1, 17, 2, 40] if tiny else [*range(1, 18), 300], device=device)
    for dtype, tolerance in TOLERANCE.items():
        for head_dim in (64,) if tiny else (64, 96, 128):
            for context in (30,) if tiny else (100, 3000):
                call = paged(len(widths), widths, context, (8, 2, head_dim), dtype, seed)
                got = same_each_time("attention", lambda: ops.verify_attention(*call), device)  # noqa: B023
                want = reference_attention.verify_attention(call[0].double(), *call[1:])
                error = float((got.double() - want).abs().max())
                if not error <= tolerance:
                    raise AssertionError(f"attention {dtype} head size {head_dim}: off by {error}, over {tolerance}")
        yield f"attention {dtype}"


def check_depths(device: torch.device, seed: int, tiny: bool) -> Iterator[str]:
    """Allocation, survival and sums against the host's."""
    g = torch.Generator().manual_seed(seed)
    for batch, depth in ((3, 4),) if tiny else ((1, 8), (64, 8), (256, 16), (1024, 16)):
        survival = (torch.rand(batch, depth, generator=g) * 0.6 + 0.4).cumprod(1)
        n = torch.arange(batch * depth + 1)
        call: tuple[Any, ...] = (
            survival,
            torch.ones(batch),
            torch.randint(0, depth + 1, (batch,), generator=g).int(),
            float(batch),
            (5e-3 + 1e-5 * n + 4e-4 * (n // 32)).float(),
            torch.linspace(0.0, 1e-3, depth + 1),
        )
        moved: list[Any] = [x.to(device) if isinstance(x, Tensor) else x for x in call]
        got = same_each_time("allocation", lambda: tuple(ops.allocate(*moved)), device)  # noqa: B023
        with backend.use("cpu"):
            want = ops.allocate(*call)
        if abs(float(got[3]) / float(want.objective) - 1.0) > 1e-6:
            raise AssertionError(f"allocation {batch} x {depth}: {float(got[3])}, not {float(want.objective)}")
        odds = torch.rand(depth, 12, generator=g)
        cell = torch.randint(0, 12, (batch,), generator=g).int()
        verified = torch.randint(0, depth + 1, (batch,), generator=g).int()
        accepted = (torch.rand(batch, generator=g) * (verified + 1)).int()
        mean, precision = torch.randn(batch, generator=g), torch.rand(batch, generator=g) + 0.5
        arguments: tuple[Any, ...] = (odds, cell, verified, accepted, mean, precision)
        on_device: list[Any] = [x.to(device) for x in arguments]
        sums = same_each_time("sums", lambda: tuple(ops.accept_stats(*on_device)), device)  # noqa: B023
        with backend.use("torch"):
            for a, b in zip(sums, ops.accept_stats(*arguments), strict=True):
                torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
            alive = ops.survival(odds, cell, mean, precision)
        torch.testing.assert_close(
            ops.survival(*(x.to(device) for x in (odds, cell, mean, precision))).cpu(), alive, rtol=1e-4, atol=1e-7
        )
    yield "allocation, sums, survival"


def check_all(device: torch.device, seed: int, tiny: bool) -> bool:
    """Say what is right, and what is wrong."""
    try:
        for name in check(device, seed, tiny):
            print(f"right: {name}", flush=True)
    except AssertionError as error:
        print(f"WRONG (seed {seed}): {error}", file=sys.stderr)
        return False
    return True


def time_all(timer: Timer, file: Path | None) -> None:
    """Print each time, and write all so far to a file: what comes later may fail."""
    device_name = torch.cuda.get_device_name()
    rows = []
    with backend.trusted():
        for row in timer.rows():
            rows.append(row)
            print(", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
            if file is not None:
                text = json.dumps({"device": device_name, "seed": timer.seed, "copy": timer.bandwidth, "rows": rows})
                file.write_text(text + "\n")


def find_device(interpret: bool) -> torch.device:
    """The GPU, or the CPU with Triton's interpreter switched on."""
    if not interpret:
        if not torch.cuda.is_available():
            raise SystemExit("needs a GPU; --interpret checks at tiny sizes without one")
        return torch.device("cuda")
    if "triton" in sys.modules:
        raise SystemExit("--interpret must come before triton is imported: run this as a command of its own")
    os.environ["TRITON_INTERPRET"] = "1"
    return torch.device("cpu")


def main(arguments: list[str] | None = None) -> int:
    """Check, then time; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description="Check and time the Triton kernels on a GPU.")
    parser.add_argument("--seed", type=int, default=None, help="of the inputs; drawn afresh by default")
    parser.add_argument("--quick", action="store_true", help="time one size of each kernel only")
    parser.add_argument("--interpret", action="store_true", help="check at tiny sizes without a GPU; time nothing")
    parser.add_argument("--json", type=Path, help="where to write the times")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    deadline = time.monotonic() + SECONDS
    device = find_device(options.interpret)
    if device.type == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {seed}")
    with backend.use("triton"):
        if not check_all(device, seed, tiny=options.interpret):
            return 1
        if not options.interpret:
            bandwidth = copy_bandwidth()
            print(f"copy: {bandwidth / 1e12:.2f} TB/s\n")
            time_all(Timer(QUICK if options.quick else FULL, device, bandwidth, deadline, seed), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
