"""Measure what the engine's passes take on this machine, and write it as a machine file for replays.

    python -m adaptive_spec.experiments.measure_machine --name "my machine" --output my_machine.json

The model is loaded as ``adaptive-spec generate`` loads it, and its passes are timed as an engine times them when it
starts. Nothing else should run meanwhile. ``adaptive-spec compare --machine my_machine.json`` then replays on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive_spec.cli.engine_options import Dtype, Model
from adaptive_spec.cost import Profile
from adaptive_spec.replay.machine_file import MachineFile

BLOCK_SIZE = 16  # tokens in a KV block
DECIMALS = 6  # of milliseconds


def machine_file(
    profile: Profile, name: str, source: str, parameters: float | None = None, max_num_seqs: int = 256
) -> dict[str, Any]:
    """A machine file's content out of a profile; drafting is free.

    Raises
    ------
    ValueError
        If the profile can't be told in a machine file.
    """
    curve: dict[str, Any] = {
        "kind": "curve",
        "ms_by_positions": {
            str(n): round(seconds * 1e3, DECIMALS)
            for n, seconds in zip(profile.positions.tolist(), profile.seconds.tolist(), strict=True)
        },
        "interpolation": profile.interpolation,
        "ms_per_context_token": round(profile.context_seconds_per_token * 1e3, DECIMALS),
        "ms_per_attention_pair": round(profile.attention_seconds_per_pair * 1e3, DECIMALS),
    }
    if profile.staircase_until is not None:
        curve["staircase_until"] = profile.staircase_until
    content: dict[str, Any] = {"name": name, "source": source, "verify": curve, "max_num_seqs": max_num_seqs}
    if parameters is not None:
        content["parameters"] = parameters
    MachineFile.model_validate(content)
    return content


def main(
    output: Annotated[Path, typer.Option(help="Machine file to write.")],
    name: Annotated[str, typer.Option(help="What reports call the machine.")],
    model: Model = "smollm2",
    dtype: Dtype = "auto",
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most sequences of a pass, in replays too.")] = 256,
) -> None:
    """Time passes of a model, and write them as a machine file."""
    from adaptive_spec.engine.measure import measure_profile  # torch comes with it: only now
    from adaptive_spec.engine.model import load_model
    from adaptive_spec.engine.step_pricing import geometry

    try:
        loaded, _ = load_model(model, dtype=dtype, device="cpu", max_model_len=None)
        profile = measure_profile(loaded, most_positions=max_num_seqs, block_size=BLOCK_SIZE)
        source = (
            f"measured by python -m adaptive_spec.experiments.measure_machine: passes of {model} in "
            f"{str(loaded.dtype).removeprefix('torch.')} by this package's engine"
        )
        content = machine_file(profile, name, source, float(geometry(loaded).multiplied_parameters), max_num_seqs)
        output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        typer.echo(f"measure_machine: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{output}: {profile}")


if __name__ == "__main__":
    typer.run(main)
