"""Upkeep: what a deployment does beside its steps: count them, reload its tuning, keep what it has learned."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.deployment import retune
from adaptive_spec.metrics_folder import MetricsFolder
from adaptive_spec.metrics_server import MetricsServer
from adaptive_spec.reload import TuningReload
from adaptive_spec.state_keeper import StateKeeper, state_path
from adaptive_spec.step_counts import StepCounts
from adaptive_spec.tuning_file import Location

logger = logging.getLogger(__name__)

PUBLISH_EVERY_SECONDS = 1.0


class Upkeep:
    """Stands beside a controller, in any engine: counts its steps, and looks after what outlives them.

    The engine hands decisions and outcomes to :attr:`counts`, and calls :meth:`tick` between two steps, as often as
    it likes. There is no thread but the one that answers Prometheus.

    Parameters
    ----------
    controller : Controller
        The deployment's; with ``learned.file`` in the tuning it takes over what was learned before.
    tuning : TuningConfig
        What it was made from.
    file : path, optional
        The tuning's file, to be watched; None: nothing is reloaded.
    model_name : str
        Label of the metrics.
    rank : int
        Number of the engine among those that run side by side: its label, and it gives it a port and a file of its
        own.
    fixed : mapping of location to str, optional
        Settings that can't change in this engine while it runs, beyond :data:`adaptive_spec.reload.FIXED`, and why.
    adjust : callable, optional
        What the engine made of the file's settings before they became `tuning`; it is done to edited ones too.
    most_drafts : int
        Drafts that the engine may give a sequence by itself, if they are more than the tuning's `max_depth`.
    serve : bool
        Whether to open the port that the tuning names.
    folder : path, optional
        Folder by which another process gives out the metrics; see :mod:`adaptive_spec.metrics_folder`.

    Attributes
    ----------
    counts : StepCounts
        What the engine has counted.
    keeper : StateKeeper or None
        None without ``learned.file``.
    server : MetricsServer or None
        None without ``metrics.port``.

    Raises
    ------
    ValueError
        If the metrics' port can't be opened.
    """

    controller: Controller
    counts: StepCounts
    keeper: StateKeeper | None
    server: MetricsServer | None

    def __init__(
        self,
        controller: Controller,
        tuning: TuningConfig,
        *,
        file: str | Path | None = None,
        model_name: str = "",
        rank: int = 0,
        fixed: Mapping[Location, str] | None = None,
        adjust: Callable[[TuningConfig], TuningConfig] | None = None,
        most_drafts: int = 0,
        serve: bool = True,
        folder: str | Path | None = None,
    ) -> None:
        self.controller = controller
        self.model_name = model_name
        self.engine = str(rank)
        self.counts = StepCounts(max(controller.max_depth, most_drafts))
        self._tuning = tuning
        self._reload = TuningReload(file, tuning, self._retune, fixed, adjust) if file is not None else None
        self.keeper = None
        self.server = None
        self._folder: MetricsFolder | None = None
        self._publish_at = -float("inf")
        metrics, learned = tuning.metrics, tuning.learned
        if serve and metrics.enabled and metrics.port is not None:
            self.server = MetricsServer(weakref.proxy(self), metrics.port + rank, metrics.host)
        if metrics.enabled and folder is not None:
            try:
                self._folder = MetricsFolder(weakref.proxy(self), folder)
            except OSError as error:  # a full or vanished folder keeps no model from being served
                logger.error("metrics can't be written to %s; all else goes on without them: %s", folder, error)
        if learned.file is not None:
            self.keeper = StateKeeper(controller, state_path(learned.file, rank), learned.save_every_seconds)
            self.keeper.load()
        # Also when nobody closes it: at the end of the interpreter, or of the engine that holds it.
        self._end = weakref.finalize(self, _end, os.getpid(), self.server, self.keeper)
        self.idle()  # all series are there before the first step

    @property
    def tuning(self) -> TuningConfig:
        """The settings that hold now."""
        return self._tuning if self._reload is None else self._reload.tuning

    @property
    def generation(self) -> int:
        """1 at the start, one more with every change of the settings."""
        return 1 if self._reload is None else self._reload.generation

    @property
    def rejections(self) -> int:
        """Edited tuning files that were refused."""
        return 0 if self._reload is None else self._reload.rejections

    def tick(self, now: float) -> TuningConfig | None:
        """Do what is due; the new settings if the tuning file brought any. Never raises.

        Parameters
        ----------
        now : float
            Seconds, by any clock that never goes back.
        """
        if not self._end.alive:
            return None
        changed = None if self._reload is None else self._reload.tick(now)
        if self.keeper is not None:
            self.keeper.tick(now)
        if self._folder is not None and now >= self._publish_at:
            self._publish_at = now + PUBLISH_EVERY_SECONDS
            self._publish()
        return changed

    def idle(self) -> None:
        """The engine has no work, so no tick will come for a while: bring up to date what others read."""
        if self._folder is not None and self._end.alive:
            self._publish()

    def close(self) -> None:
        """Save what was learned, and stop giving out metrics; a second call does nothing."""
        if self._end.alive:
            if self._folder is not None:
                self._publish()
            self._end()

    def _retune(self, tuning: TuningConfig) -> list[str]:
        anew = retune(self.controller, tuning)
        if self.keeper is not None:
            self.keeper.every_seconds = tuning.learned.save_every_seconds
        return anew

    def _publish(self) -> None:
        assert self._folder is not None
        try:
            self._folder.write()
        except Exception as error:  # a full or vanished folder harms no step
            logger.error("metrics can't be written any more: %s", error)
            self._folder = None


def _end(process: int, server: MetricsServer | None, keeper: StateKeeper | None) -> None:
    if os.getpid() != process:  # a fork that inherited it
        return
    if server is not None:
        server.close()
    if keeper is not None:
        keeper.save()
