"""TuningReload: an edited tuning file takes effect while the engine runs, whole or not at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from adaptive_spec.config import TuningConfig, TuningError
from adaptive_spec.tuning_file import InconsistentError, Location, TuningFile

logger = logging.getLogger(__name__)

# What is settled when an engine starts, and why.
FIXED: dict[Location, str] = {
    ("max_depth",): "the engine and its drafter were started for this many drafts",
    ("seed",): "every random choice goes on from where it is",
    ("cost",): "the cost model was made when the engine started",
    ("acceptance", "evidence"): "all that was learned is laid out by it",
    ("learned", "file"): "it was read when the engine started",
    ("metrics",): "they are given out since the engine started",
}

LOOKS = 3  # looks at a file that seems unchanged before its times are trusted

Signature = tuple[int, int, int, int]


class TuningReload:
    """Looks at a tuning file now and then, and hands on what is new and valid.

    A new content counts once two looks in a row have found it, so that a file that is just being written is
    taken for neither a mistake nor a setting. It counts at the first look if nobody has written to the file for as
    long as lies between two looks, by its time and the machine's clock: what is edited while an engine is idle
    holds as soon as it is looked at. A new content is then checked whole; settings that can't change in a running
    engine are refused by name. On any error the old settings stay, and one line of the log says why; it says so
    again only when the file has changed. A file that is gone, or empty, changes nothing.

    Parameters
    ----------
    path : path
        The tuning file.
    tuning : TuningConfig
        What holds now.
    apply : callable
        Puts new settings into effect, or raises and leaves all as it was; it returns the names of what begins
        anew.
    fixed : mapping of location to str, optional
        Further settings that can't change, and why.
    adjust : callable, optional
        What the engine makes of a file's settings, as it did at the start: a `max_depth` cut to its own, say. Of
        the problems of an :class:`~adaptive_spec.tuning_file.InconsistentError` the log tells the lines.

    Attributes
    ----------
    tuning : TuningConfig
        What holds now.
    generation : int
        1 at first, one more with every change of the settings.
    rejections : int
        Contents of the file that were refused.
    """

    def __init__(
        self,
        path: str | Path,
        tuning: TuningConfig,
        apply: Callable[[TuningConfig], list[str]],
        fixed: Mapping[Location, str] | None = None,
        adjust: Callable[[TuningConfig], TuningConfig] | None = None,
    ) -> None:
        self.path = Path(path)
        self.tuning = tuning
        self.generation = 1
        self.rejections = 0
        self._apply = apply
        self._adjust = adjust
        self._fixed = {**FIXED, **(fixed or {})}
        self._next = -float("inf")
        self._signature: Signature | None = None
        self._looks = 0  # since the signature changed
        self._seen: bytes | None = None  # what the last look found
        self._settled: bytes | None = None  # what was taken or refused last
        self._missing = False

    def tick(self, now: float) -> TuningConfig | None:
        """Look at the file if it is time to; the new settings if there are any. Never raises.

        Parameters
        ----------
        now : float
            Seconds, by any clock that never goes back.
        """
        if now < self._next or not self.tuning.reload.enabled:
            return None
        self._next = now + self.tuning.reload.check_every_seconds
        try:
            content = self._look()
            if content is None or content == self._settled:
                return None
            self._settled = content
            return self._take(content)
        except Exception as error:  # whatever is wrong with a file, the engine goes on
            self._refuse(f"{self.path}: {type(error).__name__}: {error}")
            return None

    def _look(self) -> bytes | None:
        """The file's content, if nobody is writing it; None if there is nothing to take."""
        try:
            signature = self._sign()
            if signature != self._signature:
                self._signature, self._looks = signature, 0
            # Times are coarse: two edits may bear the same one, so a fresh file is read a few times more.
            elif self._looks >= LOOKS:
                return None
            self._looks += 1
            content = self.path.read_bytes()
            # Two looks found the same, or nobody has written for a while, and nobody began to while it was read.
            stands = content == self._seen or (self._rests(signature) and self._sign() == signature)
        except OSError as error:
            if not self._missing:
                logger.warning(
                    "tuning file %s can't be read (%s); the settings stay as they are",
                    self.path, error.strerror or error,
                )  # fmt: skip
            self._missing, self._signature, self._seen = True, None, None
            return None
        self._missing = False
        self._seen = content
        return content if stands else None

    def _sign(self) -> Signature:
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns

    def _rests(self, signature: Signature) -> bool:
        """Whether the last change lies an interval back; never for times of another clock, that are still to come."""
        return time.time() - signature[0] / 1e9 >= self.tuning.reload.check_every_seconds

    def _take(self, content: bytes) -> TuningConfig | None:
        """Check a new content and put it into effect."""
        try:
            file = TuningFile(content.decode("utf-8"), str(self.path))
            file.refuse_empty()
            tuning = file.validate(TuningConfig)
            if self._adjust is not None:
                tuning = self._adjust(tuning)
        except UnicodeDecodeError as error:
            self._refuse(f"{self.path}: is not UTF-8 text (byte {error.start}); save it as UTF-8")
            return None
        except TuningError as error:
            self._refuse(str(error))
            return None
        except InconsistentError as error:
            self._refuse(str(file.error(error.problems)))
            return None
        if tuning == self.tuning:
            return None
        if problems := [
            file.problem(
                location,
                f"is {_value(self.tuning, location)} and can't become {_value(tuning, location)} in a running engine, "
                f"since {why}; put it back, or restart the engine",
            )
            for location, why in self._fixed.items()
            if _value(tuning, location) != _value(self.tuning, location)
        ]:
            self._refuse("\n".join(problems))
            return None
        try:
            anew = self._apply(tuning)
        except Exception as error:
            self._refuse(f"{self.path}: {error}")
            return None
        self.tuning = tuning
        self.generation += 1
        logger.info(
            "tuning file %s: generation %d is in effect%s",
            self.path, self.generation, f"; {', '.join(anew)} begin anew" if anew else "",
        )  # fmt: skip
        return tuning

    def _refuse(self, why: str) -> None:
        self.rejections += 1
        logger.error("the edited tuning is refused and the old settings stay: %s", "; ".join(why.splitlines()))


def _value(tuning: TuningConfig, location: Location) -> object:
    value: object = tuning
    for part in location:
        value = getattr(value, str(part))
    return value
