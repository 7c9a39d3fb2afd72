"""Make the acceptance traces that the repository ships: lookups, and a frozen table that has seen no such task.

    python -m adaptive_spec.experiments.shipped_traces spec_bench.jsonl humaneval.jsonl gsm8k.jsonl

Prompts are taken evenly from families of tasks (code, mathematics, translation, ...). `prompt_lookup` drafts from the
text itself. `corpus_ngram` has a frozen table besides, learned for each family from the prompts of all other families
and the model's answers to them, so that no table has seen a text, a template or a task like those that it is tried on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import MofNCompleteColumn, Progress

from adaptive_spec.cli.engine_options import chat_prompt
from adaptive_spec.cli.failure import CommandError
from adaptive_spec.cli.prompts import Prompt, mix, read_prompts
from adaptive_spec.config import TuningConfig

if TYPE_CHECKING:
    from adaptive_spec.replay.trace import Trace

FOLDER = Path(__file__).parent / "traces"
# Categories of the usual prompt sets that are the same kind of task, or come from the same template.
FAMILIES = {
    "coding": "code",
    "humaneval": "code",
    "gsm8k": "mathematics",
    "math": "mathematics",
    "math_reasoning": "mathematics",
    "writing": "writing",
    "roleplay": "writing",
    "reasoning": "reasoning",
    "extraction": "reasoning",
    "stem": "knowledge",
    "humanities": "knowledge",
}


def by_family(files: Sequence[Sequence[Prompt]]) -> dict[str, list[Prompt]]:
    """The prompts of each family, each text once; a category in no family is one of its own."""
    families: dict[str, dict[str, Prompt]] = {}
    for prompts in files:
        for prompt in prompts:
            family = FAMILIES.get(prompt.category, prompt.category)
            families.setdefault(family, {}).setdefault(prompt.text, prompt)
    return {family: list(prompts.values()) for family, prompts in sorted(families.items())}


def main(
    file: Annotated[list[Path], typer.Argument(help="Files of prompts, as `adaptive-spec bench` takes them.")],
    output: Annotated[Path, typer.Option(help="Folder of the traces.")] = FOLDER,
    prompts_per_family: Annotated[int, typer.Option(min=1, help="Prompts recorded of each family.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 128,
    depth: Annotated[int, typer.Option(min=1, max=255, help="K.")] = 16,
    model: Annotated[str, typer.Option(help="As `adaptive-spec generate` takes it.")] = "smollm2",
    seed: Annotated[int, typer.Option(min=0, help="Chooses the prompts.")] = 0,
) -> None:
    """Record prompt_lookup.parquet and corpus_ngram.parquet."""
    try:
        families = by_family([read_prompts(path) for path in file])
        if len(families) < 2:
            raise CommandError("all prompts are of one family; a table needs others to learn from")
        chosen = {family: mix([prompts], prompts_per_family, seed) for family, prompts in families.items()}
        output.mkdir(parents=True, exist_ok=True)
        for trace, name in _record(families, chosen, max_tokens, depth, model):
            path = output / f"{name}.parquet"
            trace.save(path)
            typer.echo(f"{path.name}: {trace.describe()}, {path.stat().st_size / 1e3:,.0f} kB")
    except (CommandError, OSError, ValueError) as error:
        typer.echo(f"shipped_traces: {error}", err=True)
        raise typer.Exit(1) from None


def _record(
    families: dict[str, list[Prompt]], chosen: dict[str, list[Prompt]], max_tokens: int, depth: int, model: str
) -> list[tuple[Trace, str]]:
    from adaptive_spec.engine.drafters.corpus_ngram import CorpusNgram
    from adaptive_spec.engine.drafters.ngram_table import NgramTable
    from adaptive_spec.engine.drafters.prompt_lookup import PromptLookup
    from adaptive_spec.engine.llm import LLM
    from adaptive_spec.engine.sampling_params import SamplingParams
    from adaptive_spec.replay.recorder import RecordedPrompt, record
    from adaptive_spec.replay.trace import Trace

    off = TuningConfig(mode="off")
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, transient=True) as progress:
        total = sum(map(len, families.values())) + 2 * sum(map(len, chosen.values()))
        bar = progress.add_task("answers to learn tables from", total=total)
        # What a table is learned from may be rounded as it likes; what is recorded is float32, so that a replay
        # equals a live run.
        llm = LLM(model, drafter=None, tuning=off, max_num_seqs=32)
        learned: dict[str, list[list[int]]] = {}
        for family, prompts in families.items():
            asked = [chat_prompt(llm, prompt.text, True) for prompt in prompts]
            answers = llm.generate(asked, params)
            learned[family] = [answer.prompt_token_ids + answer.outputs[0].token_ids for answer in answers]
            progress.advance(bar, len(prompts))
        llm = LLM(model, drafter=PromptLookup(), tuning=off, dtype="float32", max_num_seqs=32)
        command = f"python -m adaptive_spec.experiments.shipped_traces, K = {depth}, {max_tokens} tokens"
        traces: dict[str, list[Trace]] = {"prompt_lookup": [], "corpus_ngram": []}
        for family, prompts in chosen.items():
            texts = [text for other in families if other != family for text in learned[other]]
            table = NgramTable.learn(texts, llm.model.config.vocab_size, llm.tokenizer.fingerprint, 4)
            items = [RecordedPrompt(chat_prompt(llm, prompt.text, True), prompt.category, family) for prompt in prompts]
            for name, drafter in (("prompt_lookup", PromptLookup()), ("corpus_ngram", CorpusNgram(table=table))):
                progress.update(bar, description=f"{family}, {name}")
                llm.set_policy(off, drafter)
                trace = record(
                    llm, items, params, max_depth=depth, command=command, progress=lambda n: progress.advance(bar, n)
                )
                traces[name].append(trace)
    told = "frozen tables, each learned from the other families' prompts and answers"
    traces["corpus_ngram"] = [
        replace(trace, info=replace(trace.info, drafter=f"corpus_ngram, {told}")) for trace in traces["corpus_ngram"]
    ]
    return [(Trace.concat(parts), name) for name, parts in traces.items()]


if __name__ == "__main__":
    typer.run(main)
