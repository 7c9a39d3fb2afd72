"""An adaptive scheduler to be stepped by hand, and the ways in which tests vary it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_scenes import PATIENT

from adaptive_spec.experiments.stepped_vllm import SteppedScheduler, make_config, make_scheduler
from adaptive_spec.vllm_plugin import factory

PROMPT = list(range(3, 40))
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
drafters = pytest.mark.parametrize("method", ["ngram", "draft_model"])


def start(folder: Path, tuning: str = "max_depth: 6\n", **settings: Any) -> SteppedScheduler:
    """An adaptive scheduler; every draft is accepted unless a test says otherwise."""
    file = folder / "tuning.yaml"
    file.write_text(tuning + PATIENT)
    config = make_config(folder, **{"k": 6, **settings}, tuning_file=file)
    return SteppedScheduler(make_scheduler(factory.make_scheduler, config), lambda _, drafts: drafts)
