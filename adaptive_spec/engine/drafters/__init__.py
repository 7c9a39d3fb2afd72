"""Drafters: what proposes the tokens that the target model verifies."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from adaptive_spec.engine.drafters.base import Drafter, Offer

__all__ = ["Drafter", "Offer", "drafter_class", "drafter_names", "make_drafter"]

# Module and class of each; imported on demand, so that a drafter's requirements are only its users'.
_DRAFTERS = {
    "corpus_ngram": ("adaptive_spec.engine.drafters.corpus_ngram", "CorpusNgram"),
    "none": ("adaptive_spec.engine.drafters.none", "NoDrafter"),
    "prompt_lookup": ("adaptive_spec.engine.drafters.prompt_lookup", "PromptLookup"),
}


def drafter_names() -> list[str]:
    """Names of every drafter, sorted."""
    return sorted(_DRAFTERS)


def drafter_class(name: str) -> type[Drafter]:
    """Find a drafter by name; KeyError lists those there are."""
    if name not in _DRAFTERS:
        raise KeyError(f"no drafter is called {name!r}; there are {', '.join(drafter_names())}")
    module, cls = _DRAFTERS[name]
    found: type[Drafter] = getattr(importlib.import_module(module), cls)
    return found


def make_drafter(name: str, **params: Any) -> Drafter:
    """Construct a drafter by name; TypeError names the parameters it knows if one is unknown."""
    cls = drafter_class(name)
    known = [parameter for parameter in inspect.signature(cls.__init__).parameters if parameter != "self"]
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise TypeError(f"drafter {name!r} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return cls(**params)
