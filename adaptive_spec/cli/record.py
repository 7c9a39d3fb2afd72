"""`adaptive-spec record`: write the acceptance traces of a model and a drafter, or read another engine's log as one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from adaptive_spec.cli.engine_options import (
    Device,
    DrafterArguments,
    DrafterName,
    EngineOptions,
    KvBlocks,
    MaxModelLen,
    Model,
    chat_prompt,
    drafter_arguments,
)
from adaptive_spec.cli.failure import CommandError, UsageError, failing
from adaptive_spec.cli.generate import sampling_params
from adaptive_spec.cli.prompts import mix, read_prompts
from adaptive_spec.config import TuningConfig

if TYPE_CHECKING:
    from adaptive_spec.replay.trace import Trace

EXAMPLES = """
Examples:

  adaptive-spec record traces.parquet --file prompts.jsonl

  adaptive-spec record traces.parquet --file chat.jsonl --drafter corpus_ngram --drafter-arg table=table.npz

  adaptive-spec record sampled.parquet --file prompts.jsonl --temperature 0.8 --seed 7

  adaptive-spec record eagle.parquet --from eagle_log.csv
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("record", epilog=EXAMPLES)(record)


def record(
    output: Annotated[Path, typer.Argument(help="Trace file to write (Parquet).")],
    file: Annotated[list[Path] | None, typer.Option(help="File of prompts (JSONL or text); repeatable.")] = None,
    foreign: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Rows of another engine: sequence, position, offered, accepted (Parquet, or CSV with a header).",
        ),
    ] = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts, taken evenly from the files by seed.")] = 128,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 128,
    depth: Annotated[int, typer.Option(min=1, max=255, help="K: drafts asked for at every position.")] = 16,
    model: Model = "smollm2",
    drafter: DrafterName = "prompt_lookup",
    drafter_arg: DrafterArguments = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy; above, match mode with the seed.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the tokens that hold this share.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Sample from this many tokens; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Chooses the prompts; prompt i is sampled with seed + i.")] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end of text.")] = False,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Use the model's chat template.")] = True,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 32,
    dtype: Annotated[
        str, typer.Option(help="Of weights and arithmetic; only of float32 a replay equals a live run.")
    ] = "float32",
    device: Device = "cpu",
    max_model_len: MaxModelLen = None,
    num_kv_blocks: KvBlocks = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Record at every output position how many drafts would be accepted."""
    if bool(file) == (foreign is not None):
        raise UsageError("give either --file with prompts to record, or --from with rows of another engine")
    if not output.parent.is_dir():
        raise UsageError(f"{output}: there is no folder {output.parent}; make it first")
    try:
        import adaptive_spec.replay.trace_file  # noqa: F401 - say before the work that pyarrow is missing
    except ModuleNotFoundError as error:
        raise CommandError(
            f"needs the module {error.name}; install it with: pip install 'adaptive-spec[replay]'"
        ) from error
    if foreign is not None:
        from adaptive_spec.replay.foreign_rows import read_foreign_rows

        with failing(""):
            trace = read_foreign_rows(foreign)
        _write(trace, output, as_json)
        return
    assert file is not None
    sets = [read_prompts(path) for path in file]
    task = {p.text: f"{path.stem}/{i}" for path, own in zip(file, sets, strict=True) for i, p in enumerate(own)}
    prompts = mix(sets, num_prompts, seed)
    params = sampling_params(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, ignore_eos=ignore_eos
    )
    own = drafter_arguments(drafter_arg)
    more = {
        "max_model_len": max_model_len,
        "num_kv_blocks": num_kv_blocks,
        "enable_prefix_caching": False,
        "device": device,
    }
    llm = EngineOptions(model, drafter, own, dtype, concurrency, more).load(TuningConfig(mode="off"), seed)
    with failing(""):
        from adaptive_spec.replay.recorder import RecordedPrompt
        from adaptive_spec.replay.recorder import record as record_trace
    items = [
        RecordedPrompt(chat_prompt(llm, prompt.text, chat), prompt.category, task[prompt.text]) for prompt in prompts
    ]
    words = ["adaptive-spec", "record", output.name]
    for path in file:
        words += ["--file", path.name]
    words += ["--num-prompts", str(num_prompts), "--max-tokens", str(max_tokens), "--depth", str(depth)]
    words += ["--model", Path(model).name, "--drafter", drafter]
    for pair in drafter_arg or []:
        key, _, value = pair.partition("=")
        words += ["--drafter-arg", f"{key}={Path(value).name}"]
    words += ["--temperature", str(temperature), "--top-p", str(top_p), "--top-k", str(top_k), "--seed", str(seed)]
    words += [*(["--ignore-eos"] if ignore_eos else []), "--chat" if chat else "--no-chat", "--dtype", dtype]
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress, failing("record"):
        bar = progress.add_task("texts", total=len(items))
        trace = record_trace(
            llm, items, params, max_depth=depth, command=shlex.join(words),
            progress=lambda finished: progress.advance(bar, finished),
        )  # fmt: skip
    _write(trace, output, as_json)


def _write(trace: Trace, output: Path, as_json: bool) -> None:
    with failing(str(output)):
        trace.save(output)
    size = output.stat().st_size
    if as_json:
        told = {
            "file": str(output),
            "bytes": size,
            "sequences": len(trace),
            "texts": len(trace.texts),
            "positions": trace.positions,
            "max_depth": trace.max_depth,
            "survival": [round(float(share), 4) for share in trace.survival()],
            "derived_share": 0.0 if trace.derived is None else round(float(trace.derived.mean()), 4),
            "notes": list(trace.info.notes),
        }
        typer.echo(json.dumps(told, indent=2))
        return
    typer.echo(f"{output}: {trace.describe()}, {size / 1e3:,.0f} kB")
    for note in trace.info.notes:
        typer.echo(f"note: {note}")
