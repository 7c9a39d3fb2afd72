"""The parts of a tuning file about what is done beside the steps: saving what was learned, metrics, reloading."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from adaptive_spec.tuning_file import Section

Seconds = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class LearnedConfig(Section):
    """Where what was learned outlives the process; see :mod:`adaptive_spec.state_keeper`.

    Attributes
    ----------
    file : path
        Read at the start and written every so often and at the end; null keeps nothing.
    save_every_seconds : float
        Seconds between two savings.
    """

    file: Annotated[Path, Field(strict=False)] | None = None
    save_every_seconds: Seconds = 300.0


class MetricsConfig(Section):
    """What Prometheus may read; see :mod:`adaptive_spec.metrics`.

    Attributes
    ----------
    enabled : bool
        Whether metrics are given out at all.
    port : int, optional
        Port on which they are served; engine r of several takes the r-th after it. Null opens none.
    host : str
        Address on which they are served; ``127.0.0.1`` for this machine alone.
    """

    enabled: bool = True
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    host: Annotated[str, Field(min_length=1)] = "0.0.0.0"


class ReloadConfig(Section):
    """Whether an edited tuning file takes effect while the engine runs; see :mod:`adaptive_spec.reload`.

    Attributes
    ----------
    enabled : bool
        Whether the file is watched.
    check_every_seconds : float
        Seconds between two looks at it.
    """

    enabled: bool = True
    check_every_seconds: Seconds = 1.0
