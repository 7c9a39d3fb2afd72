"""Make the frozen table of a benchmark: the model's own answers to all prompts that the benchmark does not use.

    python -m adaptive_spec.experiments.corpus_table code.jsonl chat.jsonl --settle 64 --table table.npz
    adaptive-spec bench --file code.jsonl --file chat.jsonl --settle 64 \\
        --drafter corpus_ngram --drafter-arg table=table.npz

The benchmark's sets, those measured and those to settle on, are the ones that `adaptive-spec bench` takes with the
same files, numbers and seed; neither their prompts nor their answers are in the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adaptive_spec.cli.failure import CommandError
from adaptive_spec.cli.prompts import mix, others, read_prompts, settling


def main(
    file: Annotated[list[Path], typer.Argument(help="Files of prompts, as `adaptive-spec bench` takes them.")],
    table: Annotated[Path, typer.Option(help="The file to write.")],
    num_prompts: Annotated[int, typer.Option(min=1, help="Size of the benchmark's set.")] = 64,
    settle: Annotated[int, typer.Option(min=0, help="The benchmark's.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The benchmark's.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every answer.")] = 128,
    model: Annotated[str, typer.Option(help="As `adaptive-spec generate` takes it.")] = "smollm2",
    order: Annotated[int, typer.Option(min=1, help="Tokens in the table's longest contexts.")] = 4,
) -> None:
    """Answer the other prompts and learn a table from prompts and answers."""
    try:
        files = [read_prompts(path) for path in file]
        measured = mix(files, num_prompts, seed)
        left = others(files, measured, settling(files, measured, settle, seed))
        prompts = [prompt for some in left for prompt in some]
        if not prompts:
            raise CommandError("every prompt is in the benchmark's set; give more of them, or a smaller --num-prompts")
        from adaptive_spec.config import TuningConfig
        from adaptive_spec.engine.drafters.ngram_table import NgramTable
        from adaptive_spec.engine.llm import LLM
        from adaptive_spec.engine.sampling_params import SamplingParams

        llm = LLM(model, drafter=None, tuning=TuningConfig(mode="off"), max_num_seqs=32)
        conversations = [[{"role": "user", "content": prompt.text}] for prompt in prompts]
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        outputs = llm.chat(conversations, params, progress=True)
        learned = NgramTable.learn(
            [output.prompt_token_ids + output.outputs[0].token_ids for output in outputs],
            llm.model.config.vocab_size,
            llm.tokenizer.fingerprint,
            order,
        )
        learned.save(table)
    except (CommandError, OSError, ValueError) as error:
        typer.echo(f"corpus_table: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{table}: {len(learned):,} contexts out of {len(prompts)} prompts and their answers")


if __name__ == "__main__":
    typer.run(main)
