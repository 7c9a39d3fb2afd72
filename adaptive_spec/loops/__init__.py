"""The loops over the sequences and positions of one step, compiled by numba when the first of them is used.

A step of 256 sequences has some two thousand slots: too few for numpy, whose calls cost a microsecond or more each
whatever they work on, and too many for Python. Compiling takes a while, and loading what was compiled before takes a
moment. That, and numba, must not be in every process that reads a tuning file, so what is named here is loaded when
it is first asked for: ``from adaptive_spec import loops``, then ``loops.best_prefix(...)``.

What a loop means stands where it is called. Arrays are C-contiguous, whole numbers 64 bits wide.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from adaptive_spec.loops.acceptance import learn_step, mean_survival, posterior, sort_into_cells
    from adaptive_spec.loops.allocation import best_prefix, limits, within
    from adaptive_spec.loops.cost import learn_curve, scaled_along
    from adaptive_spec.loops.outcome import add_depths, add_outcomes, first_drafts, in_order, worth_of

__all__ = [
    "add_depths",
    "add_outcomes",
    "best_prefix",
    "first_drafts",
    "in_order",
    "learn_curve",
    "learn_step",
    "limits",
    "load",
    "mean_survival",
    "posterior",
    "real",
    "scaled_along",
    "sort_into_cells",
    "whole",
    "within",
    "worth_of",
]

_MODULES = ("acceptance", "allocation", "cost", "outcome")


def load() -> None:
    """Load all of them now, rather than in the first step."""
    for name in _MODULES:
        module = import_module(f"{__name__}.{name}")
        globals().update({loop: getattr(module, loop) for loop in __all__ if hasattr(module, loop)})


def whole(numbers: NDArray[np.integer]) -> NDArray[np.int64]:
    """Whole numbers as the loops want them; a copy only where they aren't."""
    return np.ascontiguousarray(numbers, dtype=np.int64)


def real(numbers: NDArray[np.number]) -> NDArray[np.float64]:
    """Real numbers as the loops want them; a copy only where they aren't."""
    return np.ascontiguousarray(numbers, dtype=np.float64)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load()
    return globals()[name]
