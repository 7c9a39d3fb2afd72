"""What the plugin costs vLLM's scheduler: thread CPU time per request and step above stock, without a model.

    python -m adaptive_spec.experiments.vllm_overhead

Real schedulers of vLLM are stepped by hand with 256 running requests: a stock one, one with the plugin's hooks
around a controller that does nothing, one whose hooks keep the requests' texts besides, as they do where the
controller asks for matched lengths (drafts by look-up, synchronous), and one with the whole of it. All schedule the
same work: stock drafts 4 tokens for every request; the others are offered 6 and cut every one of them to 4. They take
turns step by step.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.step import Decision, Outcome, StepTime, StepView

DEPTH, OFFERED = 4, 6
# Verification and drafting are all but free, so that every request gets its full depth.
PROFILE = {"verify_ms_by_tokens": {"1": 30.0, "65536": 30.1}, "draft_ms_per_depth_by_requests": {"1": 0.0001}}


class IdleController:
    """Stands in for the controller: hands out one depth and learns nothing."""

    cost = None

    def __init__(self, evidence: tuple[str, ...]) -> None:
        self.evidence = evidence
        self._step = 0
        self._rows: dict[str, int] = {}

    def add(self, id: str, **_: object) -> int:
        return self._rows.setdefault(id, len(self._rows))

    def remove(self, id: str) -> None:
        self._rows.pop(id, None)

    def plan(self, view: StepView) -> Decision:
        self._step += 1
        return Decision(self._step, view.row, np.minimum(view.limit, DEPTH), DEPTH)

    def observe(self, outcome: Outcome) -> None:
        pass

    def observe_time(self, time: StepTime) -> None:
        pass


def measure(folder: Path, *, requests: int, steps: int, method: str, asynchronous: bool, seed: int) -> dict[str, float]:
    """Microseconds per request and step of each scheduler, medians."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from adaptive_spec.experiments.stepped_vllm import SteppedScheduler, make_config, make_request, make_scheduler
    from adaptive_spec.vllm_plugin.factory import make_scheduler as adaptive

    profile = folder / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    tuning, textless = folder / "tuning.yaml", folder / "textless.yaml"
    # No pass is run: a guard would see that speculation brings nothing, and would do less work than stock.
    tuning.write_text(
        f"max_depth: {DEPTH}\ncost:\n  source: file\n  file: {profile}\n"
        "exploration: {enabled: false}\nguard: {enabled: false}\n"
    )
    textless.write_text(tuning.read_text() + "acceptance: {evidence: [last_accepted, age]}\n")
    stock = AsyncScheduler if asynchronous else Scheduler
    # With asynchronous or stepwise drafting the drafter makes no more than it is asked for; so is it stock.
    looks_up = method == "ngram" and not asynchronous
    offered = OFFERED if looks_up else DEPTH
    runs: dict[str, SteppedScheduler] = {}
    for name in ("stock", "hooks", *(("hooks and texts",) if looks_up else ()), "plugin"):
        config = make_config(
            folder,
            k=DEPTH if name == "stock" else offered,
            method=method,
            asynchronous=asynchronous,
            max_num_seqs=requests,
            max_num_batched_tokens=max(8192, 8 * requests),
            num_blocks=400 * requests,
            max_model_len=4096,
            tuning_file=textless if name == "hooks" else tuning,
            per_request_metrics=False,
        )
        scheduler: Any = make_scheduler(stock if name == "stock" else adaptive, config)
        if name.startswith("hooks"):
            planner = scheduler.depth_control.planner
            planner.controller = IdleController(planner.controller.evidence)
        runs[name] = SteppedScheduler(scheduler, _accepts(random.Random(seed)))
        for i in range(requests):
            prompt = [(i * 7 + j) % 1000 + 3 for j in range(32)]
            scheduler.add_request(make_request(f"request-{i}", prompt, 4000))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for step in range(steps):
        for name, run in runs.items():
            run.step()
            if step >= steps // 5:
                times[name].append(run.seconds * 1e6 / requests)
    for name, run in runs.items():
        control = getattr(run.scheduler, "depth_control", None)
        if control is not None and control.faults:
            raise RuntimeError(f"hooks of {name} failed: {dict(control.faults)}")
    drafts = {name: run.drafted for name, run in runs.items()}
    if max(drafts.values()) > 1.02 * min(drafts.values()):
        raise RuntimeError(f"the schedulers did not do the same work: {drafts} drafts")
    medians = {name: statistics.median(values) for name, values in times.items()}
    pairs = {
        name: [a - b for a, b in zip(times[name], times["stock"], strict=True)] for name in runs if name != "stock"
    }
    return medians | {f"{name} above stock": statistics.median(values) for name, values in pairs.items()}


def _accepts(draw: random.Random) -> Callable[[str, int], int]:
    return lambda _, drafts: draw.randint(0, drafts)


def main(
    requests: Annotated[int, typer.Option(min=1, help="Running requests.")] = 256,
    steps: Annotated[int, typer.Option(min=20, help="Steps; the first fifth only warms up.")] = 400,
    seed: Annotated[int, typer.Option(help="Of the acceptances.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time the plugin's hooks beside stock vLLM."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in ("ngram", "draft_model"):
            for asynchronous in (False, True) if method == "draft_model" else (False,):
                name = f"{method}, {'asynchronous' if asynchronous else 'synchronous'}"
                rows[name] = measure(
                    Path(folder), requests=requests, steps=steps, method=method, asynchronous=asynchronous, seed=seed
                )
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(title=f"CPU time per request and step, µs, {requests} requests (medians)")
    table.add_column("drafter, scheduling")
    columns = list(next(iter(rows.values())))  # of look-up, which has all of them
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(f"{row[column]:.2f}" if column in row else "-" for column in columns))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
