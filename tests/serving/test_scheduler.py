"""Scheduler and ServingLoop: everybody finishes with the right text, within budget, and all is freed at the end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chain_model import ChainRunner, RandomDepths, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.serving.blocks import BlockPool
from adaptive_spec.serving.loop import ServingLoop, StepReport
from adaptive_spec.serving.scheduler import Scheduler
from adaptive_spec.serving.sequence import Sequence, Status

VOCABULARY = 3


def make_loop(
    num_blocks=64, block_size=4, max_num_seqs=4, budget=16, max_model_len=64, max_depth=4, caching=True, seed=0
):
    pool = BlockPool(num_blocks, block_size, caching)
    scheduler = Scheduler(pool, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_model_len=max_model_len)
    runner = ChainRunner(num_blocks, block_size, VOCABULARY, seed)
    ticks = itertools.count()
    return ServingLoop(scheduler, RandomDepths(max_depth, seed), runner, lambda: float(next(ticks)))


def drain(loop: ServingLoop, most_steps: int = 5000) -> list[StepReport]:
    reports = []
    while (report := loop.step()) is not None:
        reports.append(report)
        assert len(reports) < most_steps, "no progress"
    return reports


def assert_all_free(loop: ServingLoop) -> None:
    assert loop.scheduler.pool.num_free == loop.scheduler.pool.num_blocks
    assert not loop.runner.known
    assert not loop.controller.live
    assert len(loop) == 0


requests = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(1, 20)), min_size=1, max_size=12
)


@settings(max_examples=120, deadline=None)
@given(
    requests=requests,
    spare_blocks=st.integers(0, 20),
    max_num_seqs=st.integers(1, 6),
    budget=st.integers(6, 40),
    max_depth=st.integers(0, 6),
    caching=st.booleans(),
    seed=st.integers(0, 2**16),
    aborted=st.sets(st.integers(0, 11)),
)
def test_everyone_finishes_with_the_right_text(
    requests, spare_blocks, max_num_seqs, budget, max_depth, caching, seed, aborted
):
    # The KV cache just holds the largest request, so that the others are preempted over and over.
    largest = max(-(-(len(prompt) + tokens - 1) // 4) for prompt, tokens in requests)
    loop = make_loop(largest + spare_blocks, 4, max_num_seqs, budget, 64, max_depth, caching, seed)
    sequences = [Sequence(i, list(prompt), tokens) for i, (prompt, tokens) in enumerate(requests)]
    for s in sequences:
        loop.add(s)
    steps = 0
    while (report := loop.step()) is not None:
        steps += 1
        assert steps < 5000, "no progress"
        assert len(report.sequences) + len(report.started) <= max_num_seqs
        assert report.time.positions <= budget
        # Between steps nothing is held but the blocks of verified tokens.
        for s in loop.scheduler.running:
            assert len(s.blocks) <= loop.scheduler.pool.blocks_for(len(s.tokens))
            assert s.status is Status.RUNNING
        if steps == 4:
            for i in aborted & set(range(len(sequences))):
                loop.abort(sequences[i])
    assert loop.runner.most_positions <= budget
    for s, (prompt, tokens) in zip(sequences, requests, strict=True):
        right = continuation(prompt, tokens, VOCABULARY)
        if s.finish_reason == "abort":
            assert s.output == right[: s.num_output_tokens]
        else:
            assert s.finish_reason == "length"
            assert s.output == right
    assert_all_free(loop)


def test_a_small_cache_really_preempts_and_a_large_one_never_does():
    def preemptions(num_blocks):
        loop = make_loop(num_blocks, max_num_seqs=4, budget=64)
        for i in range(4):
            loop.add(Sequence(i, [i] * 4, 20))
        return sum(len(report.preempted) for report in drain(loop))

    assert preemptions(8) > 0
    assert preemptions(64) == 0


def test_the_latest_arrival_is_preempted_and_resumes_first():
    loop = make_loop(num_blocks=8, max_num_seqs=3, budget=64, max_depth=0)
    sequences = [Sequence(i, [i] * 5, 16) for i in range(3)]
    for s in sequences:
        loop.add(s)
    reports = drain(loop)
    preempted = [s.id for report in reports for s in report.preempted]
    assert preempted
    assert 0 not in preempted
    finished = [s.id for report in reports for s in report.finished]
    assert finished == [0, 1, 2]


def test_drafts_are_given_up_before_anyone_is_preempted():
    # Two sequences fill the cache exactly at the end: without drafts nobody is preempted, so with them nobody may be.
    loop = make_loop(num_blocks=8, max_num_seqs=2, budget=64, max_depth=6)
    for i in range(2):
        loop.add(Sequence(i, [i] * 4, 13))
    reports = drain(loop)
    assert not any(report.preempted for report in reports)
    assert sum(int(report.drafted.sum()) for report in reports) > 0


def test_long_prompts_are_computed_in_chunks_beside_decoding_sequences():
    loop = make_loop(num_blocks=64, budget=8, max_depth=0)
    loop.add(Sequence(0, [1] * 3, 20))
    loop.step()
    loop.add(Sequence(1, [0] * 30, 2))
    reports = drain(loop)
    chunks = [report.prefill_tokens for report in reports if report.prefill_tokens]
    assert chunks == [7, 7, 7, 7, 2]
    assert all(len(report.sequences) == 1 for report in reports[:5])


def test_drafts_get_what_the_budget_leaves():
    loop = make_loop(num_blocks=64, max_num_seqs=4, budget=10, max_depth=6)
    for i in range(4):
        loop.add(Sequence(i, [i], 20))
    loop.step()
    step = loop.scheduler.schedule(6)
    assert len(step.decoding) == 4
    assert step.limit.tolist() == [1, 1, 1, 1]  # (10 - 4) // 4


def test_the_last_token_is_never_drafted_for():
    loop = make_loop(max_depth=6, budget=64)
    loop.add(Sequence(0, [1], 3))
    loop.step()
    assert loop.scheduler.schedule(6).limit.tolist() == [1]


def test_a_cached_prefix_is_not_computed_again():
    loop = make_loop(max_depth=0, budget=64)
    loop.add(Sequence(0, [0] * 20, 2))
    drain(loop)
    loop.add(Sequence(1, [0] * 20, 2))
    assert drain(loop)[0].prefill_tokens == 4


def test_outcomes_and_times_are_true():
    loop = make_loop(max_depth=4, budget=32)
    for i in range(3):
        loop.add(Sequence(i, [i] * 3, 12))
    reports = [report for report in drain(loop) if report.decision is not None]
    controller = loop.controller
    assert [time.step for time in controller.times] == [report.decision.step for report in reports]
    for report, outcome, time in zip(reports, controller.outcomes, controller.times, strict=True):
        assert list(outcome.ids) == [s.id for s in report.sequences]
        assert (outcome.accepted <= outcome.verified).all()
        assert (outcome.drafted <= report.decision.draft_depth).all()
        assert time.positions == len(report.sequences) + report.prefill_tokens + outcome.drafted.sum()
        assert time.tokens == report.num_tokens
        assert time.step_seconds > 0
        np.testing.assert_array_equal(report.emitted, outcome.accepted + 1)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 4, "prompt is empty"),
        ([1], 0, "max_tokens is 0"),
        ([1] * 64, 4, "64 tokens; the model's length is 64"),
        ([1] * 30, 30, "need 15 KV blocks of 4 tokens, and there are 8"),
    ],
)
def test_what_can_never_be_served_is_refused_and_harms_nobody(prompt, max_tokens, message):
    loop = make_loop(num_blocks=8)
    loop.add(Sequence(0, [1, 2], 5))
    with pytest.raises(ValueError, match=message):
        loop.add(Sequence(1, prompt, max_tokens))
    drain(loop)
    assert_all_free(loop)


def test_max_tokens_is_cut_to_the_models_length():
    loop = make_loop(max_model_len=10)
    s = Sequence(0, [1] * 7, 1000)
    loop.add(s)
    drain(loop)
    assert s.num_output_tokens == 3
    assert s.finish_reason == "length"


def test_a_budget_below_the_number_of_sequences_is_refused():
    with pytest.raises(ValueError, match="below max_num_seqs"):
        make_loop(max_num_seqs=8, budget=4)


def test_stop_tokens_end_a_sequence_amid_accepted_drafts_but_not_before_min_tokens():
    s = Sequence(0, [9], 10, min_tokens=2, eos_token_ids=frozenset({7}), stop_token_ids=frozenset({8}))
    assert s.append([8, 7]) == 2
    assert not s.finished
    assert s.append([1, 8, 5]) == 2
    assert s.output == [8, 7, 1, 8]
    assert (s.finish_reason, s.stop_reason) == ("stop", 8)
    eos = Sequence(1, [9], 10, eos_token_ids=frozenset({7}))
    eos.append([7])
    assert (eos.finish_reason, eos.stop_reason) == ("stop", None)


class Sink:
    """Stops at the token 5, and breaks at 6."""

    def push(self, token: int) -> str | None:
        if token == 6:
            raise UnicodeError("no such text")
        return "five" if token == 5 else None

    def finish(self) -> None:
        pass


def test_a_stop_string_ends_a_sequence():
    s = Sequence(0, [9], 10, sink=Sink())
    assert s.append([1, 5, 2]) == 2
    assert (s.finish_reason, s.stop_reason) == ("stop", "five")


class SixRunner(ChainRunner):
    """Says 6 to the sequence 1, which its sink can't take."""

    def execute(self, step):
        result = super().execute(step)
        for s, tokens in zip(step.decoding, result.tokens, strict=True):
            if s.id == 1:
                tokens[:] = [6]
        return result


def test_a_fault_of_one_sequence_ends_it_alone(caplog):
    loop = make_loop(max_depth=2)
    loop.runner = SixRunner(64, 4, VOCABULARY)
    sequences = [Sequence(i, [i], 8, sink=Sink()) for i in range(3)]
    for s in sequences:
        loop.add(s)
    drain(loop)
    assert [s.finish_reason for s in sequences] == ["length", "error", "length"]
    assert "no such text" in sequences[1].stop_reason
    assert sequences[2].output == continuation([2], 8, VOCABULARY)
    assert_all_free(loop)


def test_the_observer_sees_every_step():
    seen = []
    loop = make_loop()
    loop.observer = seen.append
    s = Sequence(0, [1] * 5, 6)
    loop.add(s)
    reports = drain(loop)
    assert seen == reports
    assert sum(report.num_tokens for report in seen) == 6
    assert seen[0].started == [s]
    assert seen[-1].finished == [s]
