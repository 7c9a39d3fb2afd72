"""Drafters: what proposes the tokens that the target model verifies."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from adaptive_spec.engine.drafters.base import Drafter, ModelDrafter, Offer

__all__ = ["Drafter", "ModelDrafter", "Offer", "drafter_class", "drafter_names", "make_drafter"]

# Module and class of each; imported on demand, so that a drafter's requirements are only its users'.
_DRAFTERS = {
    "corpus_ngram": ("adaptive_spec.engine.drafters.corpus_ngram", "CorpusNgram"),
    "draft_model": ("adaptive_spec.engine.drafters.draft_model", "DraftModel"),
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
    """Construct a drafter by name; TypeError names a parameter that is unknown, or missing."""
    cls = drafter_class(name)
    known = inspect.signature(cls).parameters
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise TypeError(f"drafter {name!r} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    missing = [each for each in known.values() if each.default is each.empty and each.name not in params]
    if missing:
        raise TypeError(f"drafter {name!r} needs its parameter {missing[0].name!r}")
    return cls(**params)
