"""`adaptive-spec generate`: answer prompts, and show the depth of every sequence at every step."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaptive_spec.cli.engine_options import (
    Allocate,
    Device,
    DrafterArguments,
    DrafterName,
    Dtype,
    EngineOptions,
    KvBlocks,
    MaxModelLen,
    MetricsPort,
    Model,
    Sampling,
    Tuning,
    chat_prompt,
    drafter_arguments,
    load_tuning,
    with_metrics_port,
)
from adaptive_spec.cli.failure import CommandError, UsageError, failing
from adaptive_spec.cli.policy_argument import SYNTAX, tuning_for
from adaptive_spec.cli.prompts import Prompt, is_text, read_prompts
from adaptive_spec.cli.strip import Strip

if TYPE_CHECKING:
    from adaptive_spec.engine.llm import LLM
    from adaptive_spec.engine.sampling_params import SamplingParams
    from adaptive_spec.serving.loop import StepReport

EXAMPLES = """
Examples:

  adaptive-spec generate "Write a function that merges two sorted lists."

  adaptive-spec generate --file prompts.jsonl --policy fixed:4 --max-tokens 256

  adaptive-spec generate "Once upon a time" --no-chat --temperature 0.8 --seed 7

  adaptive-spec generate "Once upon a time" --model BIG --drafter draft_model --drafter-arg model=SMALL

  adaptive-spec generate --file prompts.txt --tuning tuning.yaml --json
"""


@dataclass(slots=True)
class Answer:
    """What one prompt has brought so far."""

    prompt: str
    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None
    strip: Strip = field(default_factory=Strip)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "prompt": self.prompt,
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            **asdict(self.strip),
            "acceptance": _number(self.strip.acceptance),
            "acceptance_length": _number(self.strip.acceptance_length),
        }


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("generate", epilog=EXAMPLES)(generate)


def generate(
    prompt: Annotated[str | None, typer.Argument(help="What to ask.")] = None,
    file: Annotated[Path | None, typer.Option(help="File of prompts: JSONL, or text with one a line.")] = None,
    model: Model = "smollm2",
    drafter: DrafterName = "prompt_lookup",
    drafter_arg: DrafterArguments = None,
    sampling: Sampling = None,
    tuning: Tuning = None,
    policy: Annotated[str | None, typer.Option(help=f"Policy, over the tuning file's: {SYNTAX}.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus; 1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Most likely tokens to draw from; 0 is off.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the sampling and of the policy; the tuning's if not given.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Use the model's chat template.")] = True,
    dtype: Dtype = "auto",
    device: Device = "cpu",
    allocate: Allocate = "host",
    concurrency: Annotated[int, typer.Option(min=1, help="Prompts that are answered at once, at most.")] = 16,
    max_model_len: MaxModelLen = None,
    num_kv_blocks: KvBlocks = None,
    metrics_port: MetricsPort = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Answer a prompt or a file of prompts, each sequence at its own depth at every step."""
    if (prompt is None) == (file is None):
        raise UsageError("give either a PROMPT or --file; see adaptive-spec generate --help")
    if prompt is not None and not prompt.strip():
        raise UsageError("the prompt is empty; write something")
    if prompt is not None and not is_text(prompt):
        raise UsageError("the prompt is no UTF-8 text; write whole characters")
    prompts = read_prompts(file) if file is not None else [Prompt(str(prompt), "command line")]
    settings = load_tuning(tuning)
    if policy is not None:
        settings = tuning_for(policy, settings)
    settings = with_metrics_port(settings, metrics_port)
    if seed is not None:
        settings = settings.model_copy(update={"seed": seed})
    options = EngineOptions(
        model,
        drafter,
        drafter_arguments(drafter_arg),
        dtype,
        concurrency,
        {
            "max_model_len": max_model_len,
            "num_kv_blocks": num_kv_blocks,
            "sampling": sampling,
            "device": device,
            "allocate": allocate,
        },
    )
    params = sampling_params(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=settings.seed
    )
    llm = options.load(settings, settings.seed)
    answers = [Answer(entry.text) for entry in prompts]
    requests = _queue(llm, answers, params, chat)
    live = sys.stdout.isatty() and not as_json
    began = time.perf_counter()
    _run(llm, requests, live)
    seconds = time.perf_counter() - began
    llm.close()
    _report(llm, answers, seconds, live, as_json)
    _check_finished(answers)


def sampling_params(**arguments: Any) -> SamplingParams:
    """SamplingParams; UsageError in one line if an argument is out of its range."""
    with failing(""):
        from adaptive_spec.engine.sampling_params import SamplingParams  # torch comes with it: only now
    with failing("", usage=True):
        return SamplingParams(**arguments)


def _queue(llm: LLM, answers: list[Answer], params: SamplingParams, chat: bool) -> dict[str, Answer]:
    """Queue all prompts, or none if one of them can't be served."""
    requests = {}
    for number, answer in enumerate(answers):
        with failing(f"prompt {number + 1}" if len(answers) > 1 else "the prompt"):
            llm.add_request(str(number), chat_prompt(llm, answer.prompt, chat), params)
        requests[str(number)] = answer
    return requests


def _run(llm: LLM, requests: dict[str, Answer], live: bool) -> None:
    def observe(report: StepReport) -> None:
        for sequence, depth, accepted in zip(
            report.sequences, report.verified.tolist(), report.kept.tolist(), strict=True
        ):
            requests[sequence.request.request_id].strip.add(depth, accepted)

    llm.observer = observe
    if live:
        from adaptive_spec.cli.live_view import LiveView

        with LiveView(list(requests.values()), llm.tuning.max_depth) as view:
            _serve(llm, requests, view.update)
    else:
        _serve(llm, requests, None)


def _check_finished(answers: list[Answer]) -> None:
    """CommandError that names the first answer that failed, if one did."""
    failed = [answer for answer in answers if answer.finish_reason in ("error", None)]
    if failed:
        first = failed[0]
        why = f" ({first.error})" if first.error else ""
        others = f"; {len(failed)} of {len(answers)} failed" if len(failed) > 1 else ""
        raise CommandError(f"{first.prompt[:40]!r}: the answer failed after {first.tokens} tokens{why}{others}")


def _serve(llm: LLM, requests: dict[str, Answer], update: Any) -> None:
    while llm.has_unfinished:
        for news in llm.step():
            answer, output = requests[news.request_id], news.outputs[0]
            answer.text += output.text
            answer.tokens += len(output.token_ids)
            answer.finish_reason = output.finish_reason
            answer.error = str(output.stop_reason) if output.finish_reason == "error" else None
        if update is not None:
            update()


def _report(llm: LLM, answers: list[Answer], seconds: float, live: bool, as_json: bool) -> None:
    tokens = sum(answer.tokens for answer in answers)
    steps = sum(len(answer.strip.depth) for answer in answers)
    accepted = sum(sum(answer.strip.accepted) for answer in answers)
    length = 1 + accepted / steps if steps else float("nan")
    drafting = llm.tuning.mode == "on" and llm.drafter is not None and llm.drafter.name != "none"
    policy = llm.tuning.policy.name if drafting else "none"
    if as_json:
        total = {
            "policy": policy,
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "acceptance_length": _number(length),
            "answers": [answer.record() for answer in answers],
        }
        typer.echo(json.dumps(total, indent=2, ensure_ascii=False))
        return
    if not live:
        for number, answer in enumerate(answers):
            if len(answers) > 1:
                typer.echo(f"--- {number + 1}: {_headline(answer.prompt)}")
            typer.echo(answer.text)
            typer.echo(f"[{answer.strip.plain(llm.tuning.max_depth)}]")
    typer.echo(
        f"{policy}: {tokens} tokens in {seconds:.1f} s, {tokens / seconds:.1f} tokens/s, acceptance length {length:.2f}"
    )


def _headline(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:69] + "…"


def _number(value: float) -> float | None:
    return None if value != value else value
