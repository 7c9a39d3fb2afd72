"""Real vLLM engines on a CPU with draft models: the greedy text is that of no speculation, no pass is in vain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_scenes import TEXTS, TIGHT

pytest.importorskip("vllm.config", reason="vLLM isn't installed here")

from engine_checks import check, check_passes


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("room", ["ample", "tight"])
def test_draft_model(
    run_engine: Callable[..., dict[str, Any]],
    reference: dict[str, Any],
    models: tuple[Path, Path],
    asynchronous: bool,
    room: str,
) -> None:
    draft = {"method": "draft_model", "model": str(models[1]), "num_speculative_tokens": 4}
    result = run_engine(draft, asynchronous=asynchronous, **(TIGHT if room == "tight" else {}))
    assert result["scheduler"] == ("AdaptiveAsyncScheduler" if asynchronous else "AdaptiveScheduler")
    check(result, reference)
    check_passes(result, [scene for scene in TEXTS if scene != "hooks failing"])
    assert dict(result["off"]["asked"]).keys() == {0}
    assert len(result["changing"]["asked"]) > 2  # it really drafts less deep, step by step
    assert result["again"]["cached"] > 0
    if room == "tight":
        assert result["deepest"]["preemptions"] > 0
        assert result["policy"]["chunked"] > 0


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_every_draft_of_the_target_itself_is_accepted(
    run_engine: Callable[..., dict[str, Any]], reference: dict[str, Any], models: tuple[Path, Path], asynchronous: bool
) -> None:
    draft = {"method": "draft_model", "model": str(models[0]), "num_speculative_tokens": 4}
    result = run_engine(draft, asynchronous=asynchronous)
    check(result, reference)
    plain = ["policy", "mixed", "changing", "deepest", "again"]
    check_passes(result, [*plain, "off", "raising"])
    for scene in plain:
        assert result[scene]["accepted"] == result[scene]["drafted"], scene
    for scene in ("mixed", "changing", "deepest"):  # the policy may find a drafter as slow as its target not worth it
        assert result[scene]["verified"] > 0, scene
