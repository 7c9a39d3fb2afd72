"""DraftCheckpoint: a draft model and its tokenizer, loaded once for all engines of a process that draft with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

from adaptive_spec.engine.model import Model, load_model
from adaptive_spec.engine.tokenizer import Tokenizer


@dataclass(eq=False)
class DraftCheckpoint:
    """A loaded draft model; its weights are only read.

    Attributes
    ----------
    name : str
        Where it was loaded from, for messages.
    model : Model
    tokenizer : Tokenizer
    """

    name: str
    model: Model
    tokenizer: Tokenizer
    _loaded: ClassVar[WeakValueDictionary[tuple[str, str, str], DraftCheckpoint]] = WeakValueDictionary()

    @classmethod
    def load(cls, source: str | Path, dtype: str, device: str) -> DraftCheckpoint:
        """Load a model as :func:`adaptive_spec.engine.model.load_model` does, or find it among those in use."""
        key = (str(source), dtype, device)
        found = cls._loaded.get(key)
        if found is None:
            found = cls._loaded[key] = cls(str(source), *load_model(source, dtype=dtype, device=device))
        return found
