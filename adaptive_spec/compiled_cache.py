"""keep_compiled: numba's cache on disk for one function, without which everything works as well, after a while."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

_warned = False


class ForgivingCache:
    """numba's cache of one function, but what can't be loaded or saved is only compiled anew.

    numba itself raises whatever a full disk or a torn file leads to: OSError, EOFError, or anything that unpickling
    may raise. The function's own errors arise between loading and saving, and aren't touched.

    Parameters
    ----------
    cache : numba.core.caching.FunctionCache
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self.cache_path = cache.cache_path
        self.flush = cache.flush

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was compiled before; None if there is nothing that can be used, and the files are begun anew then."""
        try:
            return self._cache.load_overload(sig, target_context)
        except Exception as error:  # what is torn may raise anything
            _warn(self.cache_path, error)
            try:
                self.flush()
            except OSError:
                self._cache.disable()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, if that can be."""
        try:
            self._cache.save_overload(sig, data)
        except Exception as error:
            _warn(self.cache_path, error)
            self._cache.disable()


def keep_compiled(function: Callable[..., Any], maker: Any) -> None:
    """Let a dispatcher or C callback of numba's, that has compiled nothing yet, keep what it will compile.

    Parameters
    ----------
    function : callable
        What it compiles.
    maker : Dispatcher or CFunc
    """
    try:
        maker.enable_caching()
        maker._cache = ForgivingCache(maker._cache)
    except (OSError, RuntimeError, AttributeError) as error:  # the last: another numba than this was written for
        if isinstance(error, RuntimeError) and "no locator available" not in str(error):
            raise
        _warn(os.environ.get("NUMBA_CACHE_DIR") or os.path.dirname(inspect.getfile(function)), error)


def _warn(folder: str, error: Exception) -> None:
    """Tell of the first thing that is wrong with the cache; it is likely wrong for all functions."""
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "compiled loops can't be loaded from %s, or kept there, and are compiled anew (%s: %s); if that stays so, "
            "free its disk, or name another folder by NUMBA_CACHE_DIR", folder, type(error).__name__, error
        )  # fmt: skip
