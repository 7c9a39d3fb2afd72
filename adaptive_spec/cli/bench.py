"""`adaptive-spec bench`: compare policies on a prompt file, over a sweep of concurrency."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adaptive_spec.cli.bench_table import comparison_table, means_table, table_console
from adaptive_spec.cli.comparison import MAX_AUTO_ROUNDS, Comparison, geometric_means
from adaptive_spec.cli.engine_options import (
    Allocate,
    Device,
    DrafterArguments,
    DrafterName,
    Dtype,
    EngineOptions,
    KvBlocks,
    MaxModelLen,
    Model,
    Sampling,
    chat_prompt,
    drafter_arguments,
    load_tuning,
)
from adaptive_spec.cli.failure import CommandError, UsageError, failing
from adaptive_spec.cli.generate import sampling_params
from adaptive_spec.cli.policy_argument import SYNTAX, fixed_depth, split_list, tuning_for, unique
from adaptive_spec.cli.policy_run import play_policy, run_policy
from adaptive_spec.cli.prompts import Prompt, mix, read_prompts, settling
from adaptive_spec.cli.turns import TurnClock, take_turns
from adaptive_spec.config import TuningConfig
from adaptive_spec.upkeep_config import LearnedConfig, MetricsConfig

if TYPE_CHECKING:
    from adaptive_spec.engine.llm import LLM
    from adaptive_spec.engine.sampling_params import SamplingParams

POLICIES = "none,fixed:1,fixed:2,fixed:4,fixed:8,batch-threshold,acceptance-bandit,roofline-budget"
BUSY_CPUS = 0.1  # that others may use before timings are doubted
WARM_UP_TOKENS = 8

EXAMPLES = """
Examples:

  adaptive-spec bench --file prompts.jsonl

  adaptive-spec bench --file chat.jsonl --file code.jsonl --concurrency 1,16 --rounds 3

  adaptive-spec bench --file prompts.jsonl --policies none,fixed:4,roofline-budget:horizon=run --json > bench.json

  adaptive-spec bench --file prompts.jsonl --settle 64 --drafter corpus_ngram --drafter-arg table=table.npz

  adaptive-spec bench --file prompts.jsonl --drafter draft_model --drafter-arg model=SMALL --temperature 0.8
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", epilog=EXAMPLES)(bench)


def bench(
    file: Annotated[list[Path], typer.Option(help="File of prompts (JSONL or text); repeatable.")],
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts, taken evenly from the files by seed.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of every answer; its end is ignored.")] = 128,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, several after commas.")] = "1,4,16,32",
    policies: Annotated[
        str | None,
        typer.Option(
            help=f"Policies after commas: {SYNTAX}. A bare name has the arguments that the tuning file gives it. "
            f"If not given: {POLICIES}, as far as max_depth allows."
        ),
    ] = None,
    rounds: Annotated[
        str, typer.Option(help=f"Number, or auto: until every ratio is within 3 %, {MAX_AUTO_ROUNDS} at most.")
    ] = "auto",
    settle: Annotated[
        int,
        typer.Option(min=0, help="Other prompts of the files, which a policy learns from beforehand; 0: a cold start."),
    ] = 0,
    by_category: Annotated[bool, typer.Option("--by-category", help="Run each category of prompts apart.")] = False,
    model: Model = "smollm2",
    drafter: DrafterName = "prompt_lookup",
    drafter_arg: DrafterArguments = None,
    sampling: Sampling = None,
    tuning: Annotated[
        Path | None,
        typer.Option(
            help="Tuning file (YAML); its sections learned and metrics are left out, so that no policy has what "
            "another learned, and the deployment's state and port are left alone."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Chooses the prompts and seeds all else; policies have seed + i in round i.")
    ] = 0,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Use the model's chat template.")] = True,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    allocate: Allocate = "host",
    max_model_len: MaxModelLen = None,
    num_kv_blocks: KvBlocks = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Compare policies on one loaded model, in rounds in which they take turns of a second each."""
    levels = _levels(concurrency)
    fixed_rounds = _rounds(rounds)
    base = _without_deployment(load_tuning(tuning))
    named = _default_policies(base) if policies is None else unique(split_list(policies))
    if not named:
        raise UsageError("--policies is empty; name at least one")
    tunings = {policy: tuning_for(policy, base) for policy in named}
    files = [read_prompts(path) for path in file]
    sets = _prompt_sets(files, num_prompts, seed, by_category)
    others = settling(files, [prompt for prompts in sets.values() for prompt in prompts], settle, seed)
    if settle and not others:
        raise UsageError(f"--settle {settle}: every prompt is measured; give more prompts, or a lower --num-prompts")
    params = sampling_params(max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=True)
    # Prompts recur in every run: with a prefix cache, whoever runs first would pay for all.
    options = EngineOptions(
        model,
        drafter,
        drafter_arguments(drafter_arg),
        dtype,
        max(levels),
        {
            "max_model_len": max_model_len,
            "num_kv_blocks": num_kv_blocks,
            "enable_prefix_caching": False,
            "sampling": sampling,
            "device": device,
            "allocate": allocate,
        },
        engines=1 + len(named),
    )
    warnings = _busy_machine()
    out, console = table_console(), Console(stderr=True)
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)
    llm = options.load(base, seed)
    threads = _torch_threads()
    engines = {policy: options.beside(llm, seed, TurnClock()) for policy in named}
    comparisons: list[Comparison] = []
    depths = {policy: fixed_depth(policy, base) for policy in named}
    asked = {
        category: [chat_prompt(llm, prompt.text, chat) for prompt in prompts] for category, prompts in sets.items()
    }
    settling_texts = [chat_prompt(llm, prompt.text, chat) for prompt in others]
    _check_prompts(engines, {**asked, "settling": settling_texts}, params)
    try:
        with tempfile.TemporaryDirectory(prefix="adaptive-spec-") as folder, _progress(console) as progress:
            for category, texts in asked.items():
                for level in levels:
                    comparison = Comparison(level, category, depths)
                    comparisons.append(comparison)
                    bench_one = _Level(engines, tunings, texts, settling_texts, params, Path(folder), seed)
                    with failing(f"category {category}" if by_category else "bench"):
                        bench_one.play(comparison, fixed_rounds, progress)
                    if not as_json:
                        out.print(comparison_table(comparison, out.width))
    except KeyboardInterrupt:
        cut_short = comparisons[-1] if comparisons else None
        comparisons = [comparison for comparison in comparisons if comparison.rounds]
        if cut_short is None or not comparisons:
            raise
        warnings.append(
            f"interrupted after round {cut_short.rounds} of {cut_short.category}, {cut_short.concurrency} in flight: "
            "what was done by then is reported"
        )
        console.print(f"warning: {warnings[-1]}", style="yellow", soft_wrap=True)
        if cut_short.rounds and not as_json:
            out.print(comparison_table(cut_short, out.width))
    if _torch_threads() != threads:
        raise CommandError(
            f"torch's threads changed from {threads} to {_torch_threads()} during the run: no timing can be trusted"
        )
    loads = [run.other_load for item in comparisons for runs in item.runs.values() for run in runs]
    if (busiest := max(loads, default=0.0)) > BUSY_CPUS:
        warnings.append(f"other processes kept {busiest:.2f} CPUs busy during a run; ratios may be off")
        console.print(f"warning: {warnings[-1]}", style="yellow", soft_wrap=True)
    for fault in _faults(comparisons):
        warnings.append(fault)
        console.print(f"warning: {fault}", style="yellow", soft_wrap=True)
    _report(comparisons, levels, as_json, warnings, {
        "model": model, "drafter": drafter, "sampling": llm.sampling, "dtype": str(llm.model.dtype),
        "device": str(llm.model.device), "allocate": allocate, "threads": threads, "seed": seed,
        "num_prompts": {category: len(prompts) for category, prompts in sets.items()}, "max_tokens": max_tokens,
        "temperature": temperature, "settled_on": len(others),
    })  # fmt: skip


class _Level:
    """The rounds at one concurrency; the policies take turns on the machine."""

    def __init__(
        self,
        engines: dict[str, LLM],
        tunings: dict[str, TuningConfig],
        prompts: Sequence[str | list[int]],
        settling: Sequence[str | list[int]],
        params: SamplingParams,
        folder: Path,
        seed: int,
    ) -> None:
        self.engines = engines
        self.tunings = tunings
        self.prompts = prompts
        self.settling = settling
        self.params = params
        self.folder = folder
        self.seed = seed
        self.states: dict[str, Path] = {}

    def play(self, comparison: Comparison, rounds: int | None, progress: Progress) -> None:
        """Play the given number of rounds, or until the ratios are settled."""
        most = MAX_AUTO_ROUNDS if rounds is None else rounds
        label = f"{comparison.category}, {comparison.concurrency} in flight"
        task = progress.add_task(f"{label}: warming up", total=most * len(self.tunings))
        self._warm_up(comparison.concurrency)
        self._settle(comparison.concurrency)
        progress.update(task, description=label)
        while comparison.rounds < most and not (rounds is None and comparison.settled):
            plays = {
                policy: play_policy(
                    self.engines[policy],
                    self.tunings[policy].model_copy(update={"seed": self.seed + comparison.rounds}),
                    self.prompts,
                    self.params,
                    comparison.concurrency,
                    state=self.states.get(policy),
                )
                for policy in comparison.order
            }
            clocks = {policy: cast(TurnClock, engine.clock) for policy, engine in self.engines.items()}
            comparison.add_round(take_turns(plays, clocks, finished=lambda _: progress.advance(task)))
            if progress.disable:  # someone may look into the log of a long run
                line = ", ".join(f"{policy} {comparison.goodputs(policy)[-1]:,.1f}" for policy in comparison.depths)
                progress.console.print(f"{label}, round {comparison.rounds}: {line} tokens/s", soft_wrap=True)
        progress.update(task, total=comparison.rounds * len(self.tunings))

    def _warm_up(self, concurrency: int) -> None:
        """Measure the machine, compile what is compiled on first use, and fault the caches in."""
        short = sampling_params(max_tokens=WARM_UP_TOKENS, temperature=self.params.temperature, ignore_eos=True)
        for policy, tuning in self.tunings.items():
            run_policy(self.engines[policy], tuning, self.prompts[:concurrency], short, concurrency)

    def _settle(self, concurrency: int) -> None:
        """Let each policy that learns answer the other prompts."""
        for number, (policy, tuning) in enumerate(self.tunings.items()):
            engine = self.engines[policy]
            tuning = tuning.model_copy(update={"seed": self.seed})
            engine.set_policy(tuning)
            if self.settling and engine.controller.policy.explores:
                self.states[policy] = state = self.folder / f"{number}.npz"
                state.unlink(missing_ok=True)  # of another concurrency
                run_policy(engine, tuning, self.settling, self.params, concurrency, state=state)


def _report(
    comparisons: list[Comparison], levels: list[int], as_json: bool, warnings: list[str], setting: dict[str, Any]
) -> None:
    categories = unique([comparison.category for comparison in comparisons])
    means = {
        category: geometric_means([item for item in comparisons if item.category == category])
        for category in categories
    }
    if as_json:
        results = [item.summary(policy) for item in comparisons for policy in item.depths]
        document = {
            "setting": setting,
            "warnings": warnings,
            "results": results,
            "geometric_mean_decode_tokens_per_second": means,
        }
        typer.echo(json.dumps(document, indent=2))
    elif len(levels) > 1:
        table_console().print(means_table(means))


def _without_deployment(tuning: TuningConfig) -> TuningConfig:
    """The tuning without what ties it to a deployment's own files and ports."""
    return tuning.model_copy(update={"learned": LearnedConfig(), "metrics": MetricsConfig()})


def _default_policies(base: TuningConfig) -> list[str]:
    deepest = base.max_depth
    return [policy for policy in split_list(POLICIES) if (fixed_depth(policy, TuningConfig()) or 0) <= deepest]


def _check_prompts(engines: dict[str, LLM], sets: dict[str, list[str | list[int]]], params: SamplingParams) -> None:
    """CommandError that names the first prompt that can't be served, before anything has run."""
    for category, prompts in sets.items():
        for number, prompt in enumerate(prompts, start=1):
            for engine in engines.values():
                with failing(f"prompt {number} of {category}"):
                    engine.check_request(prompt, params)


def _faults(comparisons: list[Comparison]) -> list[str]:
    """A line for each kind of fault that each policy had, at each level."""
    lines = []
    for item in comparisons:
        for policy, runs in item.runs.items():
            faults = sum((run.faults for run in runs), Counter())
            lines += [
                f"{policy}, {item.category}, {item.concurrency} in flight: {what}: {count} times in {len(runs)} rounds"
                for what, count in faults.items()
            ]
    return lines


def _levels(text: str) -> list[int]:
    try:
        levels = [int(part) for part in split_list(text)]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise UsageError(f"--concurrency {text}: must be numbers of 1 or more, as in 1,4,16")
    return list(dict.fromkeys(levels))


def _rounds(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--rounds {text}: must be auto or a number of 1 or more")
    return int(text)


def _prompt_sets(files: list[list[Prompt]], num_prompts: int, seed: int, by_category: bool) -> dict[str, list[Prompt]]:
    if not by_category:
        return {"all": mix(files, num_prompts, seed)}
    categories = sorted({prompt.category for prompts in files for prompt in prompts})
    return {
        category: mix(
            [[prompt for prompt in prompts if prompt.category == category] for prompts in files], num_prompts, seed
        )
        for category in categories
    }


def _busy_machine() -> list[str]:
    try:
        load = os.getloadavg()[0]
    except OSError:
        return []
    if load < 0.5:
        return []
    return [f"the load average is {load:.1f}: something else runs, and timings will suffer"]


def _torch_threads() -> int:
    import torch  # it is loaded by now

    return torch.get_num_threads()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
