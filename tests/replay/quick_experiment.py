"""A small experiment for the tests of comparisons."""

from __future__ import annotations

import copy
from typing import Any

DATA: dict[str, Any] = {
    "title": "Small",
    "policies": ["roofline-budget", "turbospec", "dynamic-sd", "best-by-load", "clairvoyant", "without-exploration"],
    "fixed_depths": [1, 4],
    "max_depth": 4,
    "seeds": [0, 1],
    "traces": [{"name": "made", "synthetic": {"acceptance": 0.6, "sequences": 8, "output_tokens": 24}}],
    "arrivals": [{"closed": [1, 6]}],
    "machines": [
        {
            "name": "small",
            "verify": {"kind": "curve", "ms_by_positions": {"1": 5.0, "8": 5.5, "16": 8.0, "64": 30.0}},
            "draft": {"kind": "sequential", "ms": 0.2},
            "noise": 0.05,
        }
    ],
    "run": {"steps": 40},
    "bootstrap": {"draws": 200},
}


def data(**changes: Any) -> dict[str, Any]:
    """The small experiment with some keys set otherwise."""
    return {**copy.deepcopy(DATA), **changes}
