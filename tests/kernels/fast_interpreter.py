"""Makes Triton's interpreter some ten times faster, for tests.

The interpreter patches ``triton.language`` anew, and looks through all of its members, at every call of a function
within a kernel. In a process that only interprets, patching each kernel's modules once is enough. On a Triton whose
interpreter is built otherwise nothing is changed.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any


class _NothingToRestore:
    def restore(self) -> None:
        pass


def install() -> None:
    """Patch the interpreter of this process, once."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = getattr(interpreter, "_patch_lang", None)
    if original is None or getattr(original, "patches_once", False):
        return
    patched: set[str] = set()
    modules: dict[Any, tuple[str, ...]] = {}

    def patch_once(function: Any) -> _NothingToRestore:
        names = modules.get(function)
        if names is None:
            used = (value for value in function.__globals__.values() if inspect.ismodule(value))
            names = modules[function] = tuple(module.__name__ for module in used if module in (tl, tl.core))
        if any(name not in patched for name in names):
            original(function)
            patched.update(names)
        return _NothingToRestore()

    patch_once.patches_once = True  # type: ignore[attr-defined]
    interpreter._patch_lang = patch_once
    # Integer overflow is meant in hashes; the check costs two operations for each.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
