"""Goodput of a real vLLM on this CPU: the plugin beside no speculation, fixed depths and a tuned Dynamic SD table.

    python -m adaptive_spec.experiments.vllm_throughput code.jsonl chat.jsonl maths.jsonl --out throughput

SmolLM2-135M in bfloat16 (or, on a CPU without instructions for that, float32), drafts by n-gram look-up, closed queues
of several lengths. Two engines are loaded once and take turns: one without speculation, and one with, in which fixed
depths and the table are vLLM's own Dynamic SD schedule and the plugin is put in by turns (see ``vllm_engine.py``). The
table is tuned, and the plugin settles, on prompts that are not measured; every measured cell of the plugin begins with
what it had learned there, and no more. Rounds over all concurrencies go on until the 95 % interval of each ratio is
narrow enough; a concurrency where they are has no further ones. Goodput is output tokens over wall seconds, prompts and
the end of the queue included. Each cell is kept when it is done: a command that was broken off goes on.

Run it on an idle machine. Both engines must have the same number of threads, which is checked: variables such as
``NUMBA_NUM_THREADS=1`` silently take them from torch.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.cli.comparison import CLOSE_ENOUGH, Ratio
from adaptive_spec.cli.failure import CommandError
from adaptive_spec.cli.prompts import mix, read_prompts, settling
from adaptive_spec.experiments.measured_cells import MeasuredCells
from adaptive_spec.experiments.vllm_engine import EngineProcess, Schedule

NONE, TABLE, OFF, OURS = "none", "dynamic-sd", "plugin at depth 0", "plugin"
TUNED_DEPTHS = (0, 1, 2, 3, 4, 5, 7)
TUNING = "max_depth: {k}\nlearned: {{file: null}}\nmetrics: {{enabled: false}}\nreload: {{enabled: false}}\n"
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "auto"}


@dataclass
class Turns:
    """Engines, prompts and cells, and how a cell is measured.

    Attributes
    ----------
    plain, speculating : EngineProcess
    cells : MeasuredCells
    fixed : tuple of int
        Depths that are compared.
    max_tokens : int
    threads : set of int
        Threads that torch had, over all cells.
    """

    plain: EngineProcess
    speculating: EngineProcess
    cells: MeasuredCells
    fixed: tuple[int, ...]
    max_tokens: int
    state: Path
    schedule: Schedule = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    @property
    def settings(self) -> list[str]:
        """What is compared."""
        return [NONE, *(f"fixed {depth}" for depth in self.fixed), TABLE, OFF, OURS]

    def measure(self, setting: str, concurrency: int, round: int, prompts: Sequence[Sequence[int]]) -> None:
        """Measure a cell, if it isn't there."""
        if (setting, concurrency, round) in self.cells:
            return
        engine, how = self.speculating, dict[str, Any]()
        if setting == NONE:
            engine = self.plain
        elif setting in (OURS, OFF):
            how = {"mode": "on" if setting == OURS else "off", "load": self.state}
        elif setting == TABLE:
            how = {"schedule": self.schedule}
        else:
            how = {"schedule": [(1, concurrency, int(setting.split()[-1]))]}
        result = engine.run(prompts, concurrency, self.max_tokens, warm=True, **how)
        self.threads.add(result["threads"])
        if len(self.threads) > 1:
            raise RuntimeError(f"the engines run on {sorted(self.threads)} threads; a variable takes some from one")
        self.cells.add(setting, concurrency, round, result)


def tune(turns: Turns, concurrencies: Sequence[int], prompts: Sequence[Sequence[int]]) -> Schedule:
    """The Dynamic SD table of the best measured goodputs: in between two concurrencies, log goodput is interpolated."""
    depths = [depth for depth in TUNED_DEPTHS if depth <= max(turns.fixed)]
    for concurrency in concurrencies:
        for depth in depths:
            turns.measure(f"tuning {depth}", concurrency, 0, prompts)
    goodput = {(d, c): turns.cells.goodput(f"tuning {d}", c) for d in depths for c in concurrencies}
    return schedule_of(goodput, depths, sorted(concurrencies))


def schedule_of(goodput: dict[tuple[int, int], float], depths: Sequence[int], sizes: Sequence[int]) -> Schedule:
    """The best depth for every batch size up to the largest; goodput by (depth, size), the shallower of equals."""
    schedule: Schedule = []
    for size in range(1, sizes[-1] + 1):
        best = max(depths, key=lambda depth: (_between(goodput, depth, sizes, size), -depth))
        if schedule and schedule[-1][2] == best:
            schedule[-1] = (schedule[-1][0], size, best)
        else:
            schedule.append((size, size, best))
    return schedule


def _between(goodput: dict[tuple[int, int], float], depth: int, sizes: Sequence[int], size: int) -> float:
    """Log goodput at a batch size, interpolated over the log of the size."""
    below = max((s for s in sizes if s <= size), default=sizes[0])
    above = min((s for s in sizes if s >= size), default=sizes[-1])
    low, high = math.log(goodput[depth, below]), math.log(goodput[depth, above])
    if above == below:
        return low
    return low + (high - low) * math.log(size / below) / math.log(above / below)


def settle(turns: Turns, concurrencies: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
    """Let the plugin learn at every concurrency, once."""
    if turns.state.exists():
        return
    load: Path | None = None
    unfinished = turns.state.with_suffix(".part")
    for concurrency in concurrencies:
        turns.speculating.run(prompts, concurrency, turns.max_tokens, mode="on", load=load, save=unfinished)
        load = unfinished
    unfinished.replace(turns.state)


def compare(
    turns: Turns, concurrencies: Sequence[int], prompts: Sequence[Sequence[int]], rounds: int, seed: int,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Measure rounds over all concurrencies, in a new order every time; one whose ratios are known well enough ends."""
    going_on = list(concurrencies)
    for round in range(rounds):
        for concurrency in list(going_on):
            order = turns.settings
            random.Random(f"{seed} {concurrency} {round}").shuffle(order)
            for setting in order:
                turns.measure(setting, concurrency, round, prompts)
            widest = widest_interval(turns, concurrency)
            say(f"round {round + 1}, concurrency {concurrency}: the widest interval is +-{100 * widest:.1f} %")
            if widest <= CLOSE_ENOUGH:
                going_on.remove(concurrency)


def widest_interval(turns: Turns, concurrency: int) -> float:
    """Half of the widest 95 % interval of the ratios at a concurrency."""
    pairs = [(OURS, other) for other in turns.settings if other != OURS] + [(OFF, NONE)]
    ratios = [turns.cells.ratio(setting, other, concurrency) for setting, other in pairs]
    return max(ratio.half_width for ratio in ratios if ratio is not None)


def summary(turns: Turns, concurrencies: Sequence[int]) -> dict[str, Any]:
    """Goodputs and ratios of every setting, at each concurrency and over all, as plain data."""
    cells, others = turns.cells, [setting for setting in turns.settings if setting != OURS]
    rows: dict[str, Any] = {}
    logs: dict[str, list[float]] = {other: [] for other in others}
    for c in concurrencies:
        ratios = {other: ratio for other in others if (ratio := cells.ratio(OURS, other, c)) is not None}
        for other, ratio in ratios.items():
            logs[other].append(math.log(ratio.value))
        best = min((other for other in ratios if other != OFF), key=lambda other: ratios[other].value)
        rows[str(c)] = {
            "tokens_per_second": {setting: cells.goodput(setting, c) for setting in turns.settings},
            "rounds": len(cells.rounds(OURS, NONE, c)),
            "ratio": {other: _plain(ratio) for other, ratio in ratios.items()},
            "best": best,
            "over_best": _plain(ratios[best]),
            "off_over_none": _plain(cells.ratio(OFF, NONE, c)),
        }
    return {
        "concurrency": rows,
        "geometric_mean": {other: math.exp(fmean(values)) for other, values in logs.items()},
        "schedule": turns.schedule,
        "threads": max(turns.threads, default=None),
    }


def _plain(ratio: Ratio | None) -> dict[str, float | None]:
    if ratio is None:
        return {"value": None, "half_width": None}
    return {"value": ratio.value, "half_width": None if math.isinf(ratio.half_width) else ratio.half_width}


def table(result: dict[str, Any], settings: Sequence[str]) -> Table:
    """One row a concurrency."""
    shown = Table(title="tokens per second; below it the plugin's ratio to it, with half of its 95 % interval")
    shown.add_column("in flight", justify="right")
    for setting in settings:
        shown.add_column(setting, justify="right")
    shown.add_column("over the best", justify="right")
    shown.add_column("depth 0 / none", justify="right")
    for concurrency, row in result["concurrency"].items():
        line = []
        for setting in settings:
            text = f"{row['tokens_per_second'][setting]:.1f}"
            if setting in row["ratio"]:
                text += "\n" + _said(row["ratio"][setting])
            line.append(text)
        shown.add_row(concurrency, *line, _said(row["over_best"]), _said(row["off_over_none"]))
    means = result["geometric_mean"]
    shown.add_row("geometric mean", *(f"{means[s]:.3f}" if s in means else "" for s in settings), "", "")
    return shown


def _said(ratio: dict[str, float | None]) -> str:
    value, half_width = ratio["value"], ratio["half_width"]
    if value is None:
        return "-"
    return f"{value:.3f}" + ("" if half_width is None else f" +-{100 * half_width:.1f} %")


def tokenised(texts: Sequence[str], folder: Path, dtype: str) -> list[list[int]]:
    """Write the model's folder, if it isn't there whole, and return the prompts as its tokens."""
    from adaptive_spec.experiments.smollm2_folder import chat_tokens, write

    return chat_tokens(write(folder, dtype), texts)


def main(
    file: Annotated[list[Path], typer.Argument(help="Files of prompts, as `adaptive-spec bench` takes them.")],
    out: Annotated[Path, typer.Option(help="Folder for cells, logs and what was learned; a run goes on there.")],
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts that are measured.")] = 64,
    num_tuning: Annotated[int, typer.Option(min=1, help="Other prompts, to tune the table and to settle on.")] = 32,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, with commas.")] = "1,4,16,32",
    fixed: Annotated[str, typer.Option(help="Fixed depths, with commas; the deepest is K.")] = "2,4,7",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, max=8, help="Rounds at most.")] = 8,
    tuning: Annotated[Path | None, typer.Option(help="The plugin's tuning file, instead of its defaults.")] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    compiled: Annotated[bool, typer.Option(help="Let vLLM compile the model; its start takes minutes.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts and of the turns.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the plugin with no speculation, fixed depths and Dynamic SD on a real vLLM."""
    from adaptive_spec.experiments.smollm2_folder import DTYPES

    console = Console(stderr=True)
    try:
        concurrencies, depths = numbers(concurrency, "--concurrency"), numbers(fixed, "--fixed")
        if dtype not in DTYPES:
            raise CommandError(f"--dtype is {dtype}; it must be one of {', '.join(DTYPES)}")
        files = [read_prompts(path) for path in file]
        measured = mix(files, num_prompts, seed)
        other = settling(files, measured, num_tuning, seed)
        if not other:
            raise CommandError("every prompt is measured, and none is left to tune on; give more, or fewer to measure")
        out.mkdir(parents=True, exist_ok=True)
        chosen = out / "tuning.yaml"
        chosen.write_text(tuning.read_text() if tuning is not None else TUNING.format(k=max(depths)))
        tokens = tokenised([prompt.text for prompt in measured + other], out / "model", dtype)
        described = {
            "prompts": [prompt.text[:40] for prompt in measured], "tuned_on": len(other), "max_tokens": max_tokens,
            "fixed": depths, "concurrency": concurrencies, "compiled": compiled, "dtype": dtype, "seed": seed,
            "tuning": chosen.read_text(),
        }  # fmt: skip
        cells = MeasuredCells(out / "cells.jsonl", described)
        engine = {
            "model": str(out / "model"), "dtype": dtype, "skip_tokenizer_init": True, "seed": 0,
            "enforce_eager": not compiled, "enable_prefix_caching": False, "max_num_seqs": max(concurrencies),
            "max_model_len": 4096, "disable_log_stats": False,
        }  # fmt: skip
        ngram = {
            "method": "ngram", "num_speculative_tokens": max(depths), "prompt_lookup_min": 1, "prompt_lookup_max": 4,
        }  # fmt: skip
        with ExitStack() as stack:
            turns = Turns(
                stack.enter_context(EngineProcess(engine, None, log=out / "plain.log", environment=CPU)),
                stack.enter_context(
                    EngineProcess(engine, ngram, log=out / "speculating.log", tuning=chosen, environment=CPU)
                ),
                cells,
                tuple(depths),
                max_tokens,
                out / "learned.npz",
            )
            measured_tokens, other_tokens = tokens[: len(measured)], tokens[len(measured) :]
            turns.schedule = tune(turns, concurrencies, other_tokens)
            settle(turns, concurrencies, other_tokens)
            compare(turns, concurrencies, measured_tokens, rounds, seed, console.print)
            result = summary(turns, concurrencies)
    except (CommandError, OSError, ValueError, RuntimeError) as error:
        typer.echo(f"vllm_throughput: {error}", err=True)
        raise typer.Exit(1) from None
    (out / "result.json").write_text(json.dumps(result, indent=1))
    if as_json:
        print(json.dumps(result))
        return
    Console(width=200).print(table(result, turns.settings))


def numbers(text: str, option: str) -> list[int]:
    """Whole numbers from 1 up, between commas, each once and in order."""
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise CommandError(f"{option} is {text!r}; it must be whole numbers with commas, as 1,4,16") from None
    if values[0] < 1:
        raise CommandError(f"{option} has {values[0]}; the least is 1")
    return values


if __name__ == "__main__":
    typer.run(main)
