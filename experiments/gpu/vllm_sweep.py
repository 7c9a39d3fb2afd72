"""vLLM on a GPU within ten minutes: no speculation, fixed depths, Dynamic SD, Adaptive Verification and the plugin.

    python -m adaptive_spec.experiments.gpu.vllm_sweep MODEL \\
        --speculative '{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 7}'

MODEL and DRAFT are folders, or names that vLLM can load. Prints one table of tokens per second over concurrency, and
what was left out and why. Up to three engines share the GPU: one without speculation; one with, in which fixed depths
and the table are vLLM's own Dynamic SD schedule and the plugin is put in by turns (see ``vllm_engine.py``); and one
with vLLM's Adaptive Verification, where this vLLM and this drafter have it. The table is tuned, and the plugin
settles, on prompts that are not measured. Cells are measured in rounds, every round in a new order, until the time is
over; a cell that would not fit any more is left out, and said to be.

Without a GPU the same runs on vLLM's CPU build, with a small model.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.cli.failure import CommandError
from adaptive_spec.cli.prompts import mix, read_prompts, settling
from adaptive_spec.experiments.measured_cells import MeasuredCells
from adaptive_spec.experiments.vllm_engine import EngineProcess, Schedule
from adaptive_spec.experiments.vllm_throughput import TUNING, numbers, schedule_of

NONE, TABLE, VERIFICATION, OURS = "none", "dynamic-sd", "adaptive verification", "plugin"
LEARNING_SHARE = 0.35  # of the time after the start, for tuning the table and settling
OUT_OF_TIME = "no time was left"


@dataclass
class Sweep:
    """Engines, prompts and cells, and the time that is left.

    Attributes
    ----------
    engines : dict of str to EngineProcess
        By setting; all fixed depths, the table and the plugin share one.
    cells : MeasuredCells
    fixed : list of int
    deadline : float
        ``time.monotonic()`` at which no cell may be under way.
    left_out : dict
        Why, by setting and concurrency (0: all of them).
    """

    engines: dict[str, EngineProcess]
    cells: MeasuredCells
    fixed: list[int]
    max_tokens: int
    deadline: float
    state: Path
    schedule: Schedule = field(default_factory=list)
    left_out: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def settings(self) -> list[str]:
        """What is compared."""
        return [NONE, *(f"fixed {depth}" for depth in self.fixed), TABLE, VERIFICATION, OURS]

    def fits(self, concurrency: int, by: float) -> bool:
        """Whether a cell is likely to end by then: as long as the longest one so far at this concurrency."""
        taken = [cell["seconds"] for (_, c, _), cell in self.cells.cells.items() if c == concurrency]
        return time.monotonic() + 1.2 * max(taken, default=0.0) < by

    def measure(self, setting: str, concurrency: int, round: int, prompts: Sequence[Sequence[int]]) -> None:
        """Measure one cell; `setting` may be a depth to tune on."""
        engine = self.engines.get(setting, self.engines[OURS])
        how: dict[str, Any] = {}
        if setting == OURS:
            how = {"mode": "on", "load": self.state if self.state.exists() else None}
        elif setting == TABLE:
            how = {"schedule": self.schedule}
        elif setting not in (NONE, VERIFICATION):
            how = {"schedule": [(1, concurrency, int(setting.split()[-1]))]}
        result = engine.run(prompts, concurrency, self.max_tokens, warm=True, **how)
        self.cells.add(setting, concurrency, round, result)

    def learn(self, concurrencies: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """Tune the table and let the plugin settle, from the largest concurrency down, while there is time."""
        by = time.monotonic() + LEARNING_SHARE * (self.deadline - time.monotonic())
        depths, tuned = [0, *self.fixed], []
        for concurrency in sorted(concurrencies, reverse=True):
            some = _so_many(prompts, concurrency)
            load = self.state if self.state.exists() else None
            if self.fits(concurrency, by):
                self.engines[OURS].run(
                    some, concurrency, self.max_tokens, mode="on", load=load, save=self.state, warm=True
                )
            for depth in depths:
                if not self.fits(concurrency, by):
                    break
                self.measure(f"tuning {depth}", concurrency, 0, some)
            else:
                tuned.append(concurrency)
        if tuned:
            goodput = {(d, c): self.cells.goodput(f"tuning {d}", c) for d in depths for c in tuned}
            self.schedule = schedule_of(goodput, depths, sorted(tuned))
        else:
            self.left_out[TABLE, 0] = "no time was left to tune it"

    def compare(self, concurrencies: Sequence[int], prompts: Sequence[Sequence[int]], rounds: int, seed: int) -> None:
        """Measure rounds of all settings until the time is over."""
        for round in range(rounds):
            for concurrency in concurrencies:
                order = [setting for setting in self.settings if (setting, 0) not in self.left_out]
                random.Random(f"{seed} {concurrency} {round}").shuffle(order)
                for setting in order:
                    if self.fits(concurrency, self.deadline):
                        self.measure(setting, concurrency, round, _so_many(prompts, 2 * concurrency))
                    elif not round:
                        self.left_out[setting, concurrency] = OUT_OF_TIME

    def table(self, concurrencies: Sequence[int]) -> Table:
        """Tokens per second over all rounds, and the plugin's ratio to each with its 95 % interval."""
        shown = Table(title="tokens per second; below it the plugin's ratio to it, with half of its 95 % interval")
        shown.add_column("in flight", justify="right")
        for setting in self.settings:
            shown.add_column(setting, justify="right")
        for c in concurrencies:
            shown.add_row(str(c), *(self._cell(setting, c) for setting in self.settings))
        return shown

    def _cell(self, setting: str, concurrency: int) -> str:
        goodput = self.cells.goodput(setting, concurrency)
        if goodput != goodput:
            return "-"
        ratio = None if setting == OURS else self.cells.ratio(OURS, setting, concurrency)
        if ratio is None:
            return f"{goodput:,.0f}"
        spread = "" if ratio.half_width == float("inf") else f" +-{100 * ratio.half_width:.0f} %"
        return f"{goodput:,.0f}\n{ratio.value:.3f}{spread}"

    def report(self, concurrencies: Sequence[int]) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "tokens_per_second": {
                str(c): {s: self.cells.goodput(s, c) for s in self.settings if self.cells.rounds(s, s, c)}
                for c in concurrencies
            },
            "cells": list(self.cells.cells.values()),
            "schedule": self.schedule,
            "left_out": [{"setting": s, "concurrency": c, "why": why} for (s, c), why in self.left_out.items()],
        }


def _so_many(prompts: Sequence[Sequence[int]], count: int) -> list[Sequence[int]]:
    """So many prompts, each as often as need be."""
    return [prompts[i % len(prompts)] for i in range(count)]


def tokenised(model: str, texts: Sequence[str]) -> list[list[int]]:
    """Tokens of prompts, by the model's own tokenizer and, if it has one, its chat template."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    if not tokenizer.chat_template:
        return [list(tokenizer(text)["input_ids"]) for text in texts]
    conversations = [[{"role": "user", "content": text}] for text in texts]
    return [
        list(tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=True)["input_ids"])
        for c in conversations
    ]


def start(
    stack: ExitStack, folder: Path, engine: dict[str, Any], speculative: dict[str, Any], tuning: Path
) -> tuple[dict[str, EngineProcess], dict[tuple[str, int], str]]:
    """The engines by setting, and what can't be had and why."""

    def one(name: str, *args: Any, **kwargs: Any) -> EngineProcess:
        return stack.enter_context(EngineProcess(engine, *args, log=folder / f"{name}.log", **kwargs))

    engines = {OURS: one("plugin", speculative, tuning=tuning), NONE: one("none", None)}
    try:
        engines[VERIFICATION] = one("verification", speculative | {"enable_adaptive_verification": True})
    except RuntimeError as error:
        return engines, {(VERIFICATION, 0): f"this vLLM doesn't have it for this drafter ({_last_line(error)})"}
    return engines, {}


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def main(
    model: Annotated[str, typer.Argument(help="Folder or name of the model.")],
    speculative: Annotated[str, typer.Option(help="vLLM's speculative config, as JSON.")] = (
        '{"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_min": 1, "prompt_lookup_max": 4}'
    ),
    file: Annotated[list[Path] | None, typer.Option(help="Files of prompts; a dozen come with the package.")] = None,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, with commas.")] = "1,8,32,128",
    fixed: Annotated[str, typer.Option(help="Fixed depths, with commas; none over num_speculative_tokens.")] = "1,3,7",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 128,
    minutes: Annotated[float, typer.Option(min=0.5, help="Time for everything, the engines' start included.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds at most.")] = 8,
    tuning: Annotated[Path | None, typer.Option(help="The plugin's tuning file, instead of its defaults.")] = None,
    engine: Annotated[str, typer.Option(help="More arguments of vllm.LLM, as JSON.")] = "{}",
    out: Annotated[Path | None, typer.Option(help="Folder to keep the cells and logs in.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts and of the turns.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare all of vLLM's ways to choose a depth, and the plugin, on one machine."""
    began = time.monotonic()
    console = Console(width=180)
    try:
        drafting, given = _object(speculative, "--speculative"), _object(engine, "--engine")
        concurrencies, depths = numbers(concurrency, "--concurrency"), numbers(fixed, "--fixed")
        most = int(drafting.get("num_speculative_tokens", 0))
        if depths[-1] > most:
            raise CommandError(f"--fixed has {depths[-1]}, over num_speculative_tokens {most}")
        folder = Path(tempfile.mkdtemp(prefix="vllm-sweep-")) if out is None else out
        folder.mkdir(parents=True, exist_ok=True)
        own = Path(str(resources.files("adaptive_spec.experiments") / "demo_prompts.jsonl"))
        files = [read_prompts(path) for path in file or [own]]
        count = sum(map(len, files))
        measured = mix(files, max(1, count * 2 // 3), seed)
        other = settling(files, measured, count, seed) or measured[:1]
        tokens = tokenised(model, [prompt.text for prompt in measured + other])
        chosen = folder / "tuning.yaml"
        chosen.write_text(tuning.read_text() if tuning is not None else TUNING.format(k=most))
        settings = {
            "model": model, "seed": 0, "enable_prefix_caching": False, "max_num_seqs": concurrencies[-1],
            "disable_log_stats": False, "gpu_memory_utilization": 0.3, **given,
        }  # fmt: skip
        with ExitStack() as stack:
            engines, left_out = start(stack, folder, settings, drafting, chosen)
            started = time.monotonic() - began
            described = {"began": time.time()}
            cells = MeasuredCells(folder / f"cells-{int(described['began'])}.jsonl", described)
            deadline = began + 60 * minutes
            sweep = Sweep(engines, cells, depths, max_tokens, deadline, folder / "learned.state", left_out=left_out)
            sweep.state.unlink(missing_ok=True)
            sweep.learn(concurrencies, tokens[len(measured) :])
            sweep.compare(concurrencies, tokens[: len(measured)], rounds, seed)
    except (CommandError, OSError, ValueError, RuntimeError) as error:
        typer.echo(f"vllm_sweep: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(sweep.report(concurrencies)))
        return
    console.print(sweep.table(concurrencies))
    console.print(f"Dynamic SD's table, (first, last, depth): {sweep.schedule or 'none'}")
    for (setting, c), why in sweep.left_out.items():
        console.print(f"left out: {setting}{f' at {c}' if c else ''}: {why}")
    console.print(f"{time.monotonic() - began:.0f} s in all, {started:.0f} s of them until the engines ran; {folder}")


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(f"{option} is no JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(value, dict):
        raise CommandError(f"{option} must be a JSON object")
    return value


if __name__ == "__main__":
    typer.run(main)
