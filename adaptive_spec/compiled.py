"""compiled: the decorators for loops that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from adaptive_spec.compiled_cache import keep_compiled

WHOLE, REAL = (f"Array({dtype}, 1, 'C', readonly=True)" for dtype in ("int64", "float64"))  # arrays only read from

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(*signatures: str, **options: Any) -> Callable[[Function], Function]:
    """Compile a function with numba, without changing the type that a checker sees.

    With signatures it is compiled at once, or loaded from numba's cache, which lies beside the module or else in
    the user's own folder (``NUMBA_CACHE_DIR`` names another). Where that can't be written to, or was damaged, it is
    compiled anew, and a line of the log says so.
    """

    def decorate(function: Function) -> Function:
        import numba  # takes long to load, and must not be in every process

        dispatcher: Any = numba.njit(**options)(function)
        if dispatcher is not function:  # which it is with NUMBA_DISABLE_JIT
            keep_compiled(function, dispatcher)
            for signature in signatures:
                dispatcher.compile(signature)
            dispatcher.disable_compile(bool(signatures))  # for other types
        return cast(Function, dispatcher)

    return decorate


def compiled_for_c(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that C calls, by its ``address``; kept as those of :func:`compiled` are."""

    def decorate(function: Callable[..., Any]) -> Any:
        from numba.core.ccallback import CFunc
        from numba.core.sigutils import normalize_signature

        normal = normalize_signature(signature)  # type: ignore[no-untyped-call]
        callback = CFunc(function, normal, locals={}, options={})
        keep_compiled(function, callback)
        callback.compile()
        return callback

    return decorate
