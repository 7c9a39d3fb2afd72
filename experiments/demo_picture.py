"""Draws the demo's result: a heat-strip of depths over steps for every sequence, and bars of the speeds.

    python -m adaptive_spec.experiments.demo --json > demo.json
    python -m adaptive_spec.experiments.demo_picture demo.json docs/demo.svg

The picture's format is that of its ending: svg, png or pdf.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer


def main(
    result: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What the demo printed with --json.")],
    picture: Annotated[Path, typer.Argument(help="File to write.")],
) -> None:
    """Draw the demo's result."""
    document = json.loads(result.read_text(encoding="utf-8"))
    draw(document, picture)
    typer.echo(f"wrote {picture}")


def draw(document: dict[str, Any], picture: Path) -> None:
    """Draw a demo's result into a file."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "adaptive-spec"  # the same result gives the same file
    from matplotlib import pyplot

    strips = document["strips"]
    policies = document["policies"]
    steps = max(len(strip["depth"]) for strip in strips)
    depth = np.full((len(strips), steps), np.nan)
    for row, strip in zip(depth, strips, strict=True):
        row[: len(strip["depth"])] = strip["depth"]

    figure, (heat, bars) = pyplot.subplots(1, 2, figsize=(11, 3.8), width_ratios=(2.6, 1), layout="constrained")
    colours = pyplot.get_cmap("viridis").with_extremes(bad="white")
    image = heat.imshow(depth, aspect="auto", interpolation="nearest", cmap=colours, vmin=0)
    heat.set_yticks(range(len(strips)), [strip["category"] for strip in strips])
    heat.set_xlabel("step")
    heat.set_title("Depth of every sequence at every step", loc="left")
    figure.colorbar(image, ax=heat, label="draft tokens verified", pad=0.01)

    names = [row["policy"] for row in policies]
    speeds = [row["decode_tokens_per_second"] for row in policies]
    low = [row["decode_tokens_per_second"] - row["decode_tokens_per_second_min"] for row in policies]
    high = [row["decode_tokens_per_second_max"] - row["decode_tokens_per_second"] for row in policies]
    adaptive = ["tab:green" if row["policy"] == names[-1] else "tab:gray" for row in policies]
    bars.barh(names, speeds, xerr=(low, high), color=adaptive, error_kw={"elinewidth": 1})
    bars.invert_yaxis()
    bars.set_xlabel("decode tokens/s (median; lines: slowest and fastest round)", fontsize=8)
    bars.set_title(f"{len(strips)} sequences at once", loc="left")
    for side in ("top", "right"):
        bars.spines[side].set_visible(False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if picture.suffix == ".svg" else None
    figure.savefig(picture, dpi=150, metadata=metadata)
    pyplot.close(figure)


if __name__ == "__main__":
    typer.run(main)
