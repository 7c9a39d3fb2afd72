"""Many thousand requests through vLLM's real schedulers with the plugin, without a model: memory must stay flat.

    python -m adaptive_spec.experiments.vllm_soak

Requests of all kinds come and go: long and short, with shared and own prefixes, with overrides, aborted on their
way, preempted for want of KV blocks. At each mark the scheduler is run empty, so that what is held then is held for
nobody. A stock scheduler goes through the same, as the measure of what vLLM and Python hold by themselves.
"""

from __future__ import annotations

import gc
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

MARKS = 10
LIVE = 24  # requests at once, of which 16 run
OVERRIDES: list[dict[str, Any] | None] = [
    None, None, {"adaptive_spec.depth": 2}, {"adaptive_spec.max_depth": 1}, {"adaptive_spec.off": True},
    {"adaptive_spec.weight": 2.0},
]  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """What the process held when no request was live.

    Attributes
    ----------
    requests, steps, aborted, preempted : int
        So far.
    blocks : int
        Memory blocks that Python has handed out; one object takes one, or a few.
    resident : int
        Bytes of the process in memory.
    """

    requests: int
    steps: int
    aborted: int
    preempted: int
    blocks: int
    resident: int


def soak(factory: Callable[..., Any], config: Any, requests: int, *, marks: int = MARKS, seed: int = 0) -> list[Mark]:
    """Send requests through a scheduler, and look at its memory at as many marks.

    Parameters
    ----------
    factory : callable
        Makes the scheduler from what vLLM gives it.
    config : VllmConfig
        See :func:`~adaptive_spec.experiments.stepped_vllm.make_config`; its speculation makes 4 drafts at least.
    requests : int
        How many, a multiple of `marks`.
    marks : int
        How often to look.
    seed : int
        Of everything that is drawn.

    Raises
    ------
    RuntimeError
        If the scheduler, or the plugin, holds a request or a KV block when all have ended.
    """
    from adaptive_spec.experiments.stepped_vllm import SteppedScheduler, abort, make_request, make_scheduler

    draw = random.Random(seed)
    scheduler = make_scheduler(factory, config)
    model = SteppedScheduler(scheduler, lambda _, drafts: min(draw.randrange(6), drafts))
    sent = steps = aborted = preempted = 0
    seen: list[Mark] = []
    for mark in range(1, marks + 1):
        while sent < requests * mark // marks or scheduler.has_requests():
            while sent < requests * mark // marks and len(scheduler.requests) < LIVE:
                first = 300 * draw.randrange(2) or 600 + sent % 400  # a family's prefix, or one of its own
                prompt = [(first + j) % 1000 + 3 for j in range(draw.randint(1, 90))]
                extra = draw.choice(OVERRIDES)
                scheduler.add_request(make_request(str(sent), prompt, draw.randint(1, 40), extra_args=extra))
                sent += 1
            output = model.step()
            steps += 1
            preempted += len(output.preempted_req_ids or ())
            if scheduler.requests and draw.random() < 0.05:
                abort(scheduler, draw.choice(list(scheduler.requests)))
                aborted += 1
            model.outputs.clear()
            model.emitted.clear()
        model.drain()
        _check_empty(scheduler)
        gc.collect()
        seen.append(Mark(sent, steps, aborted, preempted, sys.getallocatedblocks(), _resident()))
    scheduler.shutdown()
    return seen


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]  # Linux, as vLLM is
    return int(pages) * resource.getpagesize()


def _check_empty(scheduler: Any) -> None:
    control = getattr(scheduler, "depth_control", None)
    left = len(scheduler.requests)
    if control is not None:
        left += len(control.requests) + len(control.controller)
        if control.faults:
            raise RuntimeError(f"the plugin's hooks failed: {dict(control.faults)}")
    if left or scheduler.kv_cache_manager.usage:
        raise RuntimeError(f"{left} requests and {scheduler.kv_cache_manager.usage:.1%} of the KV blocks are held on")


def main(
    requests: Annotated[int, typer.Option(min=MARKS, help="Requests through each scheduler.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn.")] = 0,
) -> None:
    """Print what each scheduler holds after a tenth of the requests and at the end, and the growth between."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from adaptive_spec.experiments.stepped_vllm import make_config
    from adaptive_spec.vllm_plugin.factory import make_scheduler as adaptive

    table = Table("scheduler", "requests", "steps", "aborted", "preempted", "Python's blocks", "growth", "MB", "growth",
                  "CPU s")  # fmt: skip
    cases = [
        ("stock", Scheduler, "ngram", False), ("adaptive", adaptive, "ngram", False),
        ("stock, asynchronous", AsyncScheduler, "draft_model", True),
        ("adaptive, asynchronous", adaptive, "draft_model", True),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        (tuning := Path(folder) / "tuning.yaml").write_text("max_depth: 4\n")
        for name, factory, method, asynchronous in cases:
            config = make_config(
                Path(folder), method=method, asynchronous=asynchronous, max_num_batched_tokens=96, num_blocks=48,
                max_model_len=160, tuning_file=tuning,
            )  # fmt: skip
            began = time.process_time()
            seen = soak(factory, config, requests, seed=seed)
            first, last = seen[0], seen[-1]
            table.add_row(
                name, f"{last.requests:,}", f"{last.steps:,}", f"{last.aborted:,}", f"{last.preempted:,}",
                f"{last.blocks:,}", f"{last.blocks - first.blocks:+,}", f"{last.resident / 1e6:.1f}",
                f"{(last.resident - first.resident) / 1e6:+.1f}", f"{time.process_time() - began:.0f}",
            )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
