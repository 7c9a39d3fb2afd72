"""A bad policy never harms a step of the engine: every request ends, and with the text of no speculation."""

from __future__ import annotations

import pytest
from bad_policies import BAD, BadPolicy
from tiny_llama import make_tiny_llm, write_tiny_llama

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.config import TuningConfig
from adaptive_spec.controller import Controller
from adaptive_spec.engine.llm import LLM
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.fallback import Fallback

PROMPTS = ["abcabcabcabc", "hello, hello, hello", "aaaa", "the cat. the cat. the cat."]
PARAMS = [SamplingParams(temperature=t, seed=i, max_tokens=24) for i, t in enumerate((0.0, 0.8, 0.0, 1.0))]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return make_tiny_llm(write_tiny_llama(tmp_path_factory.mktemp("tiny")), dtype="float32")


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    llm.set_policy(TuningConfig(mode="off"))
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("kind", sorted(BAD))
@pytest.mark.parametrize("every", [1, 3])
def test_every_request_ends_with_its_text(llm: LLM, expected: list[list[int]], kind: str, every: int) -> None:
    llm.set_policy(TuningConfig())
    fallback = Fallback(2, time_budget_seconds=1.0, bench_after_faults=4, retry_after_steps=3, clock=llm.clock)
    policy = BadPolicy(kind, every=every)
    policy.clock = llm.clock
    if kind == "slow":
        fallback.clock = _FastClock()
    llm.controller = llm.loop.controller = Controller(
        policy, AcceptanceModel(8, llm.controller.evidence), fallback=fallback, clock=llm.clock
    )
    outputs = llm.generate(PROMPTS, PARAMS)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert fallback.faults.total() > 0
    assert llm.runner.fault is None
    assert len(llm.controller) == 0


class _FastClock:
    """Moves on by two seconds at every look, so that every decision is late."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now
