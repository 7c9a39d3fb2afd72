"""How often a draft model's drafts are accepted in each sampling mode: match, coupled and ratio, side by side.

    python -m adaptive_spec.experiments.sampled_modes
    python -m adaptive_spec.experiments.sampled_modes --model BIG --draft SMALL --temperatures 0.5,1.0

Without ``--draft`` the draft is the model itself without some of its middle layers, so that one model is enough to try
it. Every text is drafted to the same depth in every step; in match and coupled mode the texts are the same, in ratio
mode they have the same distribution.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.cli.engine_options import Dtype, Model, chat_prompt
from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.drafters.draft_checkpoint import DraftCheckpoint
from adaptive_spec.engine.drafters.draft_model import DraftModel
from adaptive_spec.engine.llm import LLM
from adaptive_spec.engine.model import Model as LanguageModel
from adaptive_spec.engine.sampling_mode import SAMPLING_MODES, SamplingMode
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.engine.weights import read_checkpoint
from adaptive_spec.experiments.demo import demo_prompts
from adaptive_spec.serving.loop import StepReport
from adaptive_spec.step import IntArray

KV_CACHE_BYTES = 1 << 30  # of each engine


def without_layers(source: str, like: LanguageModel, left_out: int) -> DraftCheckpoint:
    """A model without `left_out` of its layers, those before the last four; of the type of `like`."""
    checkpoint = read_checkpoint(source, max_model_len=like.config.max_model_len)
    layers = checkpoint.config.num_layers
    last = max(layers - 4, left_out)
    kept = [i for i in range(layers) if not last - left_out <= i < last]
    place = {old: new for new, old in enumerate(kept)}
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        if found := re.match(r"model\.layers\.(\d+)\.", name):
            if int(found[1]) not in place:
                continue
            name = f"model.layers.{place[int(found[1])]}.{name[found.end() :]}"
        tensors[name] = tensor
    config = replace(checkpoint.config, num_layers=len(kept))
    model = LanguageModel(config, tensors, dtype=like.dtype, device=str(like.device))
    return DraftCheckpoint(f"{source} without {left_out} layers", model, checkpoint.tokenizer)


def make_engine(llm: LLM, draft: DraftCheckpoint, sampling: SamplingMode, depth: int) -> LLM:
    """An engine beside another that drafts to a fixed depth, with room for the demo's prompts."""
    tuning = TuningConfig.model_validate(
        {
            "max_depth": depth,
            "policy": {"name": "fixed", "depth": depth},
            "fallback": {"time_budget_ms": 1e6},  # a busy machine must not change the depths
        }
    )
    return LLM(
        llm, drafter=DraftModel(draft), sampling=sampling, tuning=tuning, max_num_seqs=12,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
    )  # fmt: skip


def acceptance(engine: LLM, temperature: float, depth: int, max_tokens: int, seed: int) -> dict[str, Any]:
    """Answer the demo's prompts, and count what was accepted at each position."""
    reached: IntArray = np.zeros(depth, dtype=np.int64)
    kept: IntArray = np.zeros(depth, dtype=np.int64)

    def count(report: StepReport) -> None:
        at = np.arange(depth)[:, None]
        kept[:] += (at < report.accepted).sum(1)
        reached[:] += ((at <= report.accepted) & (at < report.verified)).sum(1)

    engine.observer = count
    prompts = [chat_prompt(engine, prompt.text, chat=True) for prompt in demo_prompts()]
    params = [
        SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True, seed=seed + i)
        for i in range(len(prompts))
    ]
    stats = [output.stats for output in engine.generate(prompts, params)]
    steps = sum(each.steps for each in stats)
    return {
        "temperature": temperature,
        "sampling": engine.sampling,
        "drafts": int(reached[0]),
        "acceptance": [round(float(share), 4) for share in kept / np.maximum(reached, 1)],
        "tokens_per_step": round(1 + sum(each.accepted for each in stats) / max(steps, 1), 4),
    }


def main(
    model: Model = "smollm2",
    draft: Annotated[str | None, typer.Option(help="Draft model; the model without some layers if left out.")] = None,
    left_out: Annotated[
        int, typer.Option(min=1, help="Layers that the draft does without, where it is the model.")
    ] = 4,
    temperatures: Annotated[str, typer.Option(help="Several after commas.")] = "0,0.5,0.8,1.0,1.3",
    depth: Annotated[int, typer.Option(min=1, max=16, help="Drafts of every text in every step.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=2, help="Of every answer.")] = 64,
    dtype: Dtype = "float32",
    max_model_len: Annotated[int, typer.Option(min=64, help="Tokens of a text.")] = 2048,
    seed: Annotated[int, typer.Option(min=0, help="Of the first text; each has the next.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure acceptance in each sampling mode."""
    llm = LLM(model, drafter=None, dtype=dtype, tuning=TuningConfig(mode="off"), max_model_len=max_model_len)
    if draft is None:
        checkpoint = without_layers(model, llm.model, left_out)
    else:
        checkpoint = DraftCheckpoint.load(draft, dtype, str(llm.model.device))
    rows = []
    for sampling in SAMPLING_MODES:
        engine = make_engine(llm, checkpoint, sampling, depth)
        rows += [acceptance(engine, float(heat), depth, max_tokens, seed) for heat in temperatures.split(",")]
    rows.sort(key=lambda row: float(row["temperature"]))
    if as_json:
        typer.echo(json.dumps({"model": model, "draft": checkpoint.name, "dtype": dtype, "results": rows}, indent=1))
        return
    table = Table(
        "temperature", "sampling", "tokens a step", "drafts", *(f"accepted, {k}" for k in range(1, depth + 1))
    )
    for row in rows:
        shares = (f"{share:.1%}" for share in row["acceptance"])
        figures = (row["temperature"], row["sampling"], f"{row['tokens_per_step']:.2f}", row["drafts"])
        table.add_row(*map(str, figures), *shares)
    Console().print(f"{model}, drafts by {checkpoint.name}, {dtype}", table)


if __name__ == "__main__":
    typer.run(main)
