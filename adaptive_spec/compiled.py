"""compiled: the decorators for loops that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

WHOLE, REAL = (f"Array({dtype}, 1, 'C', readonly=True)" for dtype in ("int64", "float64"))  # arrays only read from

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(*signature: str, **options: Any) -> Callable[[Function], Function]:
    """Compile a function with numba, without changing the type that a checker sees.

    With signatures it is compiled at once, or loaded from numba's cache, which lies beside the module or else in
    the user's own folder. Where neither can be written to (``NUMBA_CACHE_DIR`` names another), every process
    compiles anew.
    """

    def decorate(function: Function) -> Function:
        import numba  # takes long to load, and must not be in every process

        return cast(Function, _cached(numba.njit, signature, options, function))

    return decorate


def compiled_for_c(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that C calls, by its ``address``; kept as those of :func:`compiled` are."""

    def decorate(function: Callable[..., Any]) -> Any:
        import numba

        return _cached(numba.cfunc, (signature,), {}, function)

    return decorate


def _cached(maker: Any, signature: tuple[Any, ...], options: dict[str, Any], function: Callable[..., Any]) -> Any:
    try:
        return maker(*signature, cache=True, **options)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return maker(*signature, **options)(function)
