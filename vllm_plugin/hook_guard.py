"""HookGuard: whatever goes wrong in the plugin, vLLM goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)

GIVE_UP_AFTER = 100  # faults in a row
LAST = "close"  # is called after giving up too: what was learned is saved there


class HookGuard:
    """Calls the plugin's hooks; a fault is logged once for each place, and many in a row end the adapting.

    Parameters
    ----------
    recover : callable
        Told where and what after each fault.
    give_up : callable
        Told once that the hooks are called no more, but for the last one of all.

    Attributes
    ----------
    given_up : bool
        Whether the hooks are called no more.
    """

    def __init__(self, recover: Callable[[str, Exception], None], give_up: Callable[[], None]) -> None:
        self._recover = recover
        self._give_up = give_up
        self._logged: set[str] = set()
        self._in_a_row = 0
        self._in_this_step = False
        self.given_up = False

    def call(self, where: str, hook: Callable[..., T], *args: object) -> T | None:
        """What the hook returns; None after a fault."""
        if self.given_up and where != LAST:
            return None
        try:
            result = hook(*args)
        except Exception as error:  # anything at all: the server must go on
            self._fault(where, error)
            return None
        if where == "observe":  # every step comes by here once
            if not self._in_this_step:
                self._in_a_row = 0
            self._in_this_step = False
        return result

    def _fault(self, where: str, error: Exception) -> None:
        self._in_a_row += 1
        self._in_this_step = True
        if where not in self._logged:
            self._logged.add(where)
            logger.exception("adaptive depth failed in %r; this step goes on as stock vLLM (logged once)", where)
        try:
            self._recover(where, error)
        except Exception:
            logger.exception("adaptive depth could not recover in %r", where)
            self._in_a_row = GIVE_UP_AFTER
        if self._in_a_row >= GIVE_UP_AFTER and not self.given_up:
            self.given_up = True
            logger.error("adaptive depth has failed %d times in a row; stock depths from now on", self._in_a_row)
            self._retire()

    def _retire(self) -> None:
        try:
            self._give_up()
        except Exception:
            logger.exception("adaptive depth could not retire in good order")
