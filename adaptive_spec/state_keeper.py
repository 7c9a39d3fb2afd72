"""StateKeeper: what a controller has learned outlives the process, in a file that is written every so often."""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path

from adaptive_spec.controller import Controller

logger = logging.getLogger(__name__)


class StateKeeper:
    """Loads what was learned at the start, and saves it on a schedule and at the end.

    A file that is missing, damaged, or another model's, drafter's or K's never hinders: the controller starts
    cold and the log says why. Such a file is moved aside before the first saving, not overwritten.

    Parameters
    ----------
    controller : Controller
        Whose knowledge it is.
    path : path
        The file. Engines that run side by side need one each; see :func:`state_path`.
    every_seconds : float
        Seconds between two savings; they may be set anew at any time, and fewer hold at once.

    Attributes
    ----------
    warm : bool
        Whether :meth:`load` found something to go on from.
    saves, failures : int
        Savings that succeeded and failed.
    saved_at : float or None
        Unix time of the last saving.
    """

    def __init__(self, controller: Controller, path: str | Path, every_seconds: float = 300.0) -> None:
        if not every_seconds > 0:
            raise ValueError(f"every_seconds is {every_seconds}; it must be over 0")
        self.controller = controller
        self.path = Path(path)
        self.every_seconds = every_seconds
        self.warm = False
        self.saves = 0
        self.failures = 0
        self.saved_at: float | None = None
        self._next = math.inf
        self._foreign = False  # whether the file at `path` is one that was refused
        self._failing = False

    def load(self) -> bool:
        """Take over what the file holds; whether there was anything that fits. Never raises."""
        try:
            self.controller.load(self.path)
        except FileNotFoundError:
            logger.info("nothing was learned yet in %s; a cold start", self.path)
        except Exception as error:  # whatever is in the file, the engine starts
            self._foreign = True
            logger.warning("what was learned in %s is left alone; a cold start: %s", self.path, error)
        else:
            self.warm = True
            logger.info("what was learned in %s was taken over", self.path)
        self._warn_if_unwritable()
        return self.warm

    def _warn_if_unwritable(self) -> None:
        """Say at the start, not at the first saving, that what is learned will be lost."""
        try:
            # A file is written beside the old one and takes its place, so the folder alone must allow it.
            folder = next(folder for folder in self.path.absolute().parents if folder.exists())
            if not folder.is_dir():
                why = f"{folder} is no folder"
            elif not os.access(folder, os.W_OK | os.X_OK):
                why = f"{folder} can't be written to"
            else:
                return
        except (OSError, StopIteration) as error:
            why = str(error)
        logger.warning("what is learned can't be saved to %s: %s; mend that, or it is lost at the end", self.path, why)

    def tick(self, now: float) -> bool:
        """Save if it is time to; whether it was done. Never raises.

        Parameters
        ----------
        now : float
            Seconds, by any clock that never goes back; the first call starts the schedule.
        """
        self._next = min(self._next, now + self.every_seconds)
        if now < self._next:
            return False
        self._next = now + self.every_seconds
        return self.save()

    def save(self) -> bool:
        """Save now; whether it succeeded. A failure is logged once until the next success."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._foreign:
                aside = self.path.with_name(self.path.name + ".refused")
                self.path.replace(aside)
                logger.warning("the refused %s is kept as %s", self.path, aside)
                self._foreign = False
            self.controller.save(self.path)
        except Exception as error:  # a full disk harms no step
            self.failures += 1
            if not self._failing:
                logger.error("what was learned can't be saved to %s: %s (logged once)", self.path, error)
            self._failing = True
            return False
        self._failing = False
        self.saves += 1
        self.saved_at = time.time()
        return True


def state_path(path: str | Path, rank: int) -> Path:
    """The file of one of several engines that run side by side: the first has `path`, the others a numbered one."""
    path = Path(path)
    return path if rank == 0 else path.with_name(f"{path.stem}.{rank}{path.suffix}")
