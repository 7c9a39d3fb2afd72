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

    together = document["settings"][-1]
    strips = together["strips"]
    steps = max(len(strip["depth"]) for strip in strips)
    depth = np.full((len(strips), steps), np.nan)
    for row, strip in zip(depth, strips, strict=True):
        row[: len(strip["depth"])] = strip["depth"]

    figure, (heat, bars) = pyplot.subplots(1, 2, figsize=(11, 3.8), width_ratios=(2.2, 1), layout="constrained")
    colours = pyplot.get_cmap("viridis").with_extremes(bad="white")
    image = heat.imshow(depth, aspect="auto", interpolation="nearest", cmap=colours, vmin=0)
    heat.set_yticks(range(len(strips)), [strip["category"] for strip in strips])
    heat.set_xlabel("step")
    heat.set_title(f"Depth of every sequence at every step, {together['concurrency']} at once", loc="left")
    figure.colorbar(image, ax=heat, label="draft tokens verified", pad=0.01)

    names = [row["policy"] for row in together["policies"]]
    place = np.arange(len(names))
    for i, (setting, colour) in enumerate(zip(document["settings"], ("tab:green", "tab:gray"), strict=True)):
        ratios = [row["ratio_to_reference"]["value"] for row in setting["policies"]]
        label = "one at a time" if setting["concurrency"] == 1 else f"{setting['concurrency']} at once"
        bars.barh(place + 0.4 * i - 0.2, ratios, height=0.38, color=colour, label=label)
    bars.axvline(1.0, color="black", linewidth=0.8)
    bars.set_yticks(place, names)
    bars.invert_yaxis()
    bars.set_xlabel("decode speed, times no speculation")
    bars.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2)
    for side in ("top", "right"):
        bars.spines[side].set_visible(False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if picture.suffix == ".svg" else None
    figure.savefig(picture, dpi=150, metadata=metadata)
    pyplot.close(figure)


if __name__ == "__main__":
    typer.run(main)
