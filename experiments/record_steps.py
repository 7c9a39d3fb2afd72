"""Record the steps of a real run, for `acceptance_quality`: what was known of every draft, and what came of it.

    python -m adaptive_spec.experiments.record_steps prompts.jsonl --steps steps.npz
    python -m adaptive_spec.experiments.acceptance_quality steps.npz

Every sequence is drafted to depth K in every step, so that no estimator under test chose what was seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from adaptive_spec.cli.engine_options import (
    DrafterArguments,
    DrafterName,
    Dtype,
    EngineOptions,
    Model,
    chat_prompt,
    drafter_arguments,
)
from adaptive_spec.cli.failure import CommandError
from adaptive_spec.cli.policy_argument import tuning_for
from adaptive_spec.cli.policy_run import run_policy
from adaptive_spec.cli.prompts import mix, read_prompts
from adaptive_spec.config import TuningConfig

if TYPE_CHECKING:
    from adaptive_spec.serving.loop import StepReport


class StepRecorder:
    """Collects one row for every sequence and step that verified a draft."""

    def __init__(self) -> None:
        self.rows: dict[str, list[np.ndarray]] = {"step": [], "sequence": [], "verified": [], "accepted": []}
        self.evidence: list[np.ndarray] = []

    def __call__(self, report: StepReport) -> None:
        if report.decision is None:
            return
        kept = report.verified > 0
        ids = np.array([sequence.id for sequence in report.sequences], dtype=np.int64)
        columns = {
            "step": np.full(len(ids), report.decision.step),
            "sequence": ids,
            "verified": report.verified,
            "accepted": report.accepted,
        }
        for name, column in columns.items():
            self.rows[name].append(column[kept])
        self.evidence.append(np.array(report.evidence)[kept])

    def save(self, path: Path, names: tuple[str, ...]) -> int:
        """Write the recording; return its rows."""
        arrays = {name: np.concatenate(parts) for name, parts in self.rows.items()}
        with path.open("wb") as file:
            np.savez_compressed(
                file,
                allow_pickle=False,
                evidence=np.concatenate(self.evidence),
                evidence_names=np.array(names),
                **arrays,
            )
        return len(arrays["step"])


def main(
    file: Annotated[list[Path], typer.Argument(help="Files of prompts, as `adaptive-spec bench` takes them.")],
    steps: Annotated[Path, typer.Option(help="The recording to write.")],
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts, taken evenly from the files by seed.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of every answer.")] = 128,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 16,
    depth: Annotated[int, typer.Option(min=1, help="Drafts of every sequence in every step.")] = 8,
    model: Model = "smollm2",
    drafter: DrafterName = "prompt_lookup",
    drafter_arg: DrafterArguments = None,
    dtype: Dtype = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Chooses the prompts.")] = 0,
) -> None:
    """Answer prompts greedily and record every step."""
    try:
        from adaptive_spec.engine.sampling_params import SamplingParams

        prompts = mix([read_prompts(path) for path in file], num_prompts, seed)
        tuning = tuning_for(f"fixed:{depth}", TuningConfig(max_depth=depth))
        more = {"enable_prefix_caching": False}
        llm = EngineOptions(model, drafter, drafter_arguments(drafter_arg), dtype, concurrency, more).load(tuning, seed)
        texts = [chat_prompt(llm, prompt.text, chat=True) for prompt in prompts]
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        recorder = StepRecorder()
        run_policy(llm, tuning, texts, params, concurrency, observer=recorder)
        rows = recorder.save(steps, llm.controller.evidence)
    except (CommandError, OSError, ValueError) as error:
        typer.echo(f"record_steps: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{steps}: {rows:,} rows of {len(prompts)} prompts")


if __name__ == "__main__":
    typer.run(main)
