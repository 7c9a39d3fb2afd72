"""The tuning file as far as vLLM can have it: no deeper than it drafts, and without what the plugin hasn't."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from adaptive_spec.config import CostConfig, TuningConfig
from adaptive_spec.tuning_file import InconsistentError, Problem, TuningFile

logger = logging.getLogger(__name__)


def load_tuning(path: str | None, most: int, known: Sequence[str]) -> TuningConfig:
    """Read a deployment's tuning file for an engine; without one, the defaults hold.

    Parameters
    ----------
    path : str, optional
    most, known
        As :func:`fitted` has them.

    Raises
    ------
    TuningError
        One line for each thing that is wrong: file, line, key, what was wrong and what would be right.
    """
    if path is None:
        file = TuningFile("", "no tuning file")
    else:
        file = TuningFile.read(path)
        file.refuse_empty()
    tuning = file.validate(TuningConfig)
    try:
        fitting = fitted(tuning, most, known)
    except InconsistentError as error:
        raise file.error(error.problems) from None
    if fitting.max_depth < tuning.max_depth:
        logger.info("adaptive depth: vLLM's num_speculative_tokens is %d, so that is K", most)
    return fitting


def fitted(tuning: TuningConfig, most: int, known: Sequence[str]) -> TuningConfig:
    """The tuning with no more depth than vLLM's ``num_speculative_tokens``.

    Parameters
    ----------
    tuning : TuningConfig
    most : int
        vLLM's ``num_speculative_tokens``.
    known : sequence of str
        Evidence that there is of this engine's drafts.

    Raises
    ------
    InconsistentError
        If it names depths beyond, or asks for what the plugin hasn't.
    """
    problems = []
    if unknown := [name for name in tuning.acceptance.evidence or () if name not in known]:
        message = f"{unknown[0]} isn't known of the drafts of this engine; inside vLLM, {', '.join(known)} are"
        problems.append(Problem(("acceptance", "evidence"), message))
    if tuning.cost.interpolation != CostConfig().interpolation:
        message = (
            f"{tuning.cost.interpolation} is for the profile that the standalone engine measures, and inside vLLM none "
            "is measured; leave it out, or name a saved profile with source: file, which has its own interpolation"
        )
        problems.append(Problem(("cost", "interpolation"), message))
    if tuning.max_depth > most:
        remedy = (
            f"vLLM's num_speculative_tokens is {most} and cuts max_depth {tuning.max_depth} to it; raise "
            "num_speculative_tokens, or lower the depths and max_depth"
        )
        try:
            tuning = tuning.with_max_depth(most)
        except InconsistentError as error:
            problems += [Problem(p.location, f"{p.message} ({remedy})") for p in error.problems]
    if problems:
        raise InconsistentError(problems)
    return tuning
