"""What of a tuning this engine can do, and which evidence it gives for it."""

from __future__ import annotations

from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.drafters import Drafter


def possible(tuning: TuningConfig) -> TuningConfig:
    """The tuning; ValueError if it asks for what only an engine with a depth of its own can do."""
    if tuning.mode == "shadow" or tuning.share < 1.0:
        asked = "mode: shadow" if tuning.mode == "shadow" else f"share: {tuning.share}"
        raise ValueError(
            f"{asked} leaves requests at the engine's own depth, which vLLM has and this engine has not; "
            "use mode: on or off, and leave share out"
        )
    return tuning


def chosen_evidence(tuning: TuningConfig, drafter: Drafter | None) -> tuple[str, ...]:
    """Names of the evidence that acceptance is learned over: what the drafter knows, then the sequence's age.

    Raises
    ------
    ValueError
        If the tuning asks for evidence that this drafter doesn't offer.
    """
    if drafter is None:
        return ()
    wanted = tuning.acceptance.evidence
    known = (*drafter.evidence, "age")
    if wanted is None:
        return known
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(
            f"acceptance.evidence asks for {unknown[0]!r}; drafter {drafter.name} offers {', '.join(known)}"
        )
    return tuple(name for name in known if name in wanted)
