"""The simulator: against walks by hand, deterministic, paired, in order, in flat memory."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_traces import random_trace, trace_of

from adaptive_spec.config import TuningConfig
from adaptive_spec.cost import DraftCost, Profile
from adaptive_spec.policies.fixed import Fixed
from adaptive_spec.policy import Allocation, DepthPolicy
from adaptive_spec.replay import (
    BareController,
    ClosedConcurrency,
    GivenArrivals,
    Machine,
    Poisson,
    ServiceLevel,
    Shift,
    Simulation,
    SyntheticAcceptance,
    TunedController,
    simulate,
)
from adaptive_spec.replay.arrivals import Arrival
from adaptive_spec.replay.synthetic import DSPARK_GLM_5_2

SURVIVAL = DSPARK_GLM_5_2[:8]
ROOFLINE = TunedController(TuningConfig.model_validate({"max_depth": 8, "policy": {"name": "roofline-budget"}}))


def machine(**changes) -> Machine:
    cost = Profile([1, 16, 64, 256, 1024], [0.01, 0.011, 0.014, 0.030, 0.12])
    return replace(Machine("test", cost, max_num_seqs=64, max_num_batched_tokens=512), **changes)


def fixed(depth: int, max_depth: int = 8) -> BareController:
    return BareController(Fixed(depth), max_depth)


def walk(sequence, depth: int) -> list[tuple[int, int]]:
    """Depth and accepted drafts of each step of a single sequence at a fixed depth."""
    steps, p, n = [], 1, sequence.output_tokens
    allowed = sequence.max_tokens if sequence.stopped else n
    while p < n:
        d = min(depth, allowed - p - 1, int(sequence.offered[p - 1]))
        a = min(d, int(sequence.run[p - 1]))
        steps.append((d, a))
        p += a + 1
    return steps


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), depth=st.integers(0, 5))
def test_each_sequence_walks_along_its_text(seed, depth):
    trace = random_trace(seed)
    steps = {i: [] for i in range(len(trace))}

    def observe(report):
        for sequence, d, a in zip(report.sequences, report.verified.tolist(), report.accepted.tolist(), strict=True):
            steps[sequence.request.number].append((d, a))

    run = simulate(
        trace, fixed(depth, 5), GivenArrivals.at_once(trace), machine(max_num_seqs=3), observer=observe, warmup=0.0
    )
    for i, sequence in enumerate(trace):
        assert steps[i] == walk(sequence, depth)
    assert run.metrics.tokens == trace.output_tokens.sum()
    assert run.metrics.finished == len(trace)
    steps_walked = sum(len(walked) for walked in steps.values())  # each brings a token beside its accepted drafts
    assert run.metrics.accepted == trace.output_tokens.sum() - len(trace) - steps_walked
    assert run.metrics.wasted == sum(d for walked in steps.values() for d, _ in walked) - run.metrics.accepted


def test_a_single_request_by_hand():
    """Five prompt tokens and runs 2, -, -, 0, 1 at depth 2: prefill, then 1 + 2 + 1, 1 + 2 and 1 + 1 positions."""
    trace = trace_of([[2, 0, 0, 0, 1]])  # six tokens
    cost = Profile([1, 2, 3, 5], [1.0, 2.0, 3.0, 5.0], draft_cost=DraftCost.sequential(0.25, idle=0.125))
    one = Machine("hand", cost, max_num_seqs=1, max_num_batched_tokens=64, parameters=10.0)
    reports = []
    run = simulate(trace, fixed(2, 4), GivenArrivals([Arrival(3.0, 0)]), one, observer=reports.append)
    # 5 positions for the prompt: token 1. p = 1: depth 2, run 2: tokens 2..4. p = 4: one draft may follow, run 0:
    # token 5. p = 5: no draft: token 6.
    assert [report.time.positions for report in reports] == [5, 3, 2, 1]
    assert [report.time.step_seconds for report in reports] == pytest.approx([5.0, 3.5, 2.25, 1.125])
    m = run.metrics
    assert run.seconds == pytest.approx(3 + 5 + 3.5 + 2.25 + 1.125)
    assert m.seconds == pytest.approx(run.seconds)  # from the start of the run, the idle time included
    assert m.busy_seconds == pytest.approx(run.seconds - 3)
    assert (m.steps, m.decode_steps, m.off_steps) == (4, 3, 1)
    assert (m.drafted, m.verified, m.accepted, m.wasted) == (3, 3, 2, 1)
    assert m.acceptance_length == pytest.approx(1 + 2 / 3)
    assert m.extra_flops == 2.0 * 10.0
    assert m.off_saving_seconds == pytest.approx(0.25 - 0.125)
    assert m.ttft.quantiles([0.5])[0] == pytest.approx(5.0, rel=0.01)
    assert m.tpot.quantiles([0.5])[0] == pytest.approx((3.5 + 2.25 + 1.125) / 5, rel=0.01)
    assert m.tokens_per_second_per_user == pytest.approx(5 / (3.5 + 2.25 + 1.125))
    assert m.off_share == pytest.approx(1 / 3)


def test_service_levels_are_judged_by_request():
    trace = trace_of([[0] * 9] * 2)
    arrivals = GivenArrivals([Arrival(0.0, 0), Arrival(0.0, 1)])
    cost = Profile([1, 100], [1.0, 1.0])
    one = Machine("hand", cost, max_num_seqs=1, max_num_batched_tokens=64)
    # The second one waits for ten steps of the first.
    for level, share in (
        (ServiceLevel(5.0, 1.5), 0.5), (ServiceLevel(20.0, 1.5), 1.0), (ServiceLevel(20.0, 0.5), 0.0)
    ):  # fmt: skip
        assert simulate(trace, fixed(0, 4), arrivals, one, service_level=level).metrics.attainment == share


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    trace = SyntheticAcceptance(SURVIVAL, "test").trace(30, 64)
    loud = machine(noise=0.1)
    a, b, c = (
        simulate(trace, ROOFLINE, ClosedConcurrency(12), loud, seed=seed, steps=300).metrics.summary()
        for seed in (1, 1, 2)
    )
    np.testing.assert_equal(a, b)
    assert a["goodput"] != c["goodput"]


def test_policies_are_paired_on_texts_and_luck():
    """Whatever the policy, the n-th request is the same text, and the n-th step has the same noise."""
    trace = SyntheticAcceptance(SURVIVAL, "test").trace(30, 40)
    flat = Machine("flat", Profile([1, 4096], [0.01, 0.01]), max_num_seqs=16, noise=0.2)
    order, seconds = [], []
    for depth in (0, 6):
        started: dict[int, int] = {}
        took = []

        def observe(report, started=started, took=took):
            took.append(report.time.step_seconds)
            for sequence in report.started:
                started[sequence.id] = sequence.request.number

        simulate(trace, fixed(depth), ClosedConcurrency(8), flat, seed=3, steps=200, observer=observe)
        order.append([started[i] for i in range(25)])
        seconds.append(took)
    assert order[0] == order[1]
    assert seconds[0] == seconds[1]
    assert np.std(np.log(seconds[0])) == pytest.approx(0.2, rel=0.25)
    assert np.mean(seconds[0]) == pytest.approx(0.01, rel=0.05)


def test_small_caches_preempt_and_lose_no_token():
    trace = random_trace(5, sequences=12, longest=60)
    small = machine(num_kv_blocks=18, block_size=8, max_num_seqs=8)
    run = simulate(trace, fixed(4, 4), GivenArrivals.at_once(trace), small)
    assert run.metrics.preemptions > 0
    assert run.metrics.tokens == trace.output_tokens.sum()
    assert run.metrics.prefill_tokens > trace.prompt_tokens.sum()  # what was preempted was computed anew


def test_prompts_are_chunked_and_may_come_from_elsewhere():
    trace = trace_of([[1] * 20] * 6, prompt_tokens=100)
    widest = {}
    for name, changes in (
        ("here", {}), ("chunked", {"max_prefill_chunk": 16}), ("elsewhere", {"prefill_elsewhere": True}),
    ):  # fmt: skip
        chunks: list[int] = []
        run = simulate(
            trace, fixed(2, 4), GivenArrivals.at_once(trace), machine(**changes),
            observer=lambda report, chunks=chunks: chunks.append(report.prefill_tokens),
        )  # fmt: skip
        widest[name] = max(chunks)
        assert run.metrics.tokens == 6 * 21
        assert run.metrics.prefill_tokens == (6 if name == "elsewhere" else 600)
    assert widest == {"here": 512, "chunked": 96, "elsewhere": 6}


def test_open_systems_idle_and_end():
    trace = trace_of([[1] * 10] * 4)
    arrivals = GivenArrivals([Arrival(float(i), i % 4) for i in range(8)])
    run = simulate(trace, fixed(1, 4), arrivals, machine())
    assert run.metrics.finished == 8
    assert run.metrics.busy_seconds < 0.3 * run.metrics.seconds
    loaded = simulate(trace, fixed(1, 4), Poisson(500.0), machine(), duration=4.0)
    assert loaded.seconds >= 4.0
    assert loaded.metrics.seconds == pytest.approx(0.8 * 4.0, rel=0.03)  # the first fifth isn't counted
    assert loaded.metrics.ttft.quantiles([0.95])[0] > run.metrics.ttft.quantiles([0.95])[0]


def test_the_warm_up_is_not_counted():
    trace = SyntheticAcceptance(SURVIVAL, "test").trace(20, 64)
    reports = []
    run = simulate(trace, fixed(2), ClosedConcurrency(4), machine(), steps=100, observer=reports.append)
    assert run.metrics.steps == 80
    assert run.steps == 100
    assert run.metrics.tokens == sum(report.num_tokens for report in reports[20:])
    assert run.metrics.seconds == pytest.approx(sum(report.time.step_seconds for report in reports[20:]))
    assert run.metrics.tpot.count == run.metrics.finished


def test_the_world_may_change_in_the_middle():
    trace = SyntheticAcceptance(SURVIVAL, "test").trace(20, 64)
    broken = replace(trace, run=np.zeros_like(trace.run))
    slow = Profile([1, 2048], [1.0, 1.0])
    reports = []
    simulate(
        trace, fixed(4), ClosedConcurrency(4), machine(), steps=90, observer=reports.append,
        shifts=[Shift(30, trace=broken), Shift(60, trace=trace, cost=slow)],
    )  # fmt: skip
    accepted = [int(report.accepted.sum()) for report in reports]
    assert sum(accepted[:30]) > 0
    assert sum(accepted[30:60]) == 0
    assert sum(accepted[60:]) > 0
    assert reports[59].time.step_seconds < 0.1
    assert reports[60].time.step_seconds == pytest.approx(1.0)
    with pytest.raises(ValueError, match="the same sequences"):
        simulate(trace, fixed(4), ClosedConcurrency(4), machine(), steps=9, shifts=[Shift(1, trace=random_trace(1))])


class Clairvoyant(DepthPolicy):
    """As deep as drafts will be accepted."""

    explores = False
    needs_cost = False

    def __init__(self, runs):
        self.runs = runs

    def _decide(self, view, acceptance, cost):
        return Allocation(np.minimum(self.runs(), view.limit))


def test_a_clairvoyant_can_be_built_and_wastes_nothing():
    trace = SyntheticAcceptance(SURVIVAL, "test").trace(20, 64)
    seeing = BareController(lambda setting: Clairvoyant(setting.present_runs), 8)
    run = simulate(trace, seeing, ClosedConcurrency(4), machine(), steps=100)
    blind = simulate(trace, fixed(8), ClosedConcurrency(4), machine(), steps=100)
    assert run.metrics.wasted == 0
    assert not run.faults
    assert run.metrics.accepted == pytest.approx(blind.metrics.accepted, rel=0.1)


@pytest.mark.parametrize("stopped", [False, True])
def test_drafts_beyond_a_texts_end_are_wasted(stopped):
    """Four tokens are left after the first, and every draft is right: one more comes with the third."""
    trace = trace_of([[4, 4, 4, 4]], stopped=stopped, max_tokens=20 if stopped else None)
    wanted = []

    class Spy(Clairvoyant):
        def _decide(self, view, acceptance, cost):
            wanted.append(self.runs().tolist())
            return super()._decide(view, acceptance, cost)

    blind = simulate(trace, fixed(4, 4), GivenArrivals.at_once(trace), machine()).metrics
    assert (blind.accepted, blind.wasted) == (3, 1 if stopped else 0)
    assert blind.acceptance_length == 4.0
    seeing = BareController(lambda setting: Spy(setting.present_runs), 4)
    run = simulate(trace, seeing, GivenArrivals.at_once(trace), machine()).metrics
    assert wanted == [[3]]
    assert (run.accepted, run.wasted, run.tokens) == (3, 0, 5)


def test_requests_that_are_late_already_break_their_promise_though_they_have_not_ended():
    """Far more requests come than are served: those that wait at the end count, and so does their waiting."""
    trace = SyntheticAcceptance(SURVIVAL, "test").trace(20, 64)
    promised = ServiceLevel(ttft_seconds=0.5)
    arrivals = Poisson(200.0)
    reports = []
    crowded = simulate(
        trace, fixed(1), arrivals, machine(max_num_seqs=2), duration=4.0, warmup=0.0, service_level=promised,
        observer=reports.append,
    ).metrics  # fmt: skip
    assert crowded.promises > 500 > 10 * crowded.finished
    assert crowded.attainment < 0.05
    assert crowded.ttft.quantiles([0.5])[0] > 1.0
    unhurried = simulate(
        trace, fixed(1), arrivals, machine(max_num_seqs=2), duration=4.0, warmup=0.0,
        service_level=ServiceLevel(ttft_seconds=60.0),
    ).metrics  # fmt: skip
    assert unhurried.promises == unhurried.finished
    assert unhurried.attainment == 1.0


def test_a_request_that_decodes_too_slowly_breaks_its_promise_before_its_end():
    trace = trace_of([[0] * 99])
    for tpot, broken in ((0.0005, 1), (0.005, 0)):  # 99 tokens in 49.5 or 495 ms; it has decoded for 100 by then
        run = simulate(
            trace, fixed(0, 4), GivenArrivals.at_once(trace), machine(), steps=11, warmup=0.0,
            service_level=ServiceLevel(tpot_seconds=tpot),
        )  # fmt: skip
        assert run.seconds > 0.1
        assert (run.metrics.finished, run.metrics.promises, run.metrics.kept_promises) == (0, broken, 0)


def test_no_decision_knows_of_the_runs_to_come():
    """Two traces that part at position 30 are decided alike up to there, whatever follows."""
    rng = np.random.default_rng(6)
    runs = np.minimum(rng.geometric(0.4, 60) - 1, 8)
    runs[:30] = np.minimum(runs[:30], np.arange(30, 0, -1) - 1)  # no run reaches beyond position 30
    other = np.concatenate((runs[:30], 8 - runs[30:]))
    depths = []
    for each in (runs, other):
        trace = trace_of([each.tolist()], max_depth=8)
        taken: list[tuple[int, int]] = []

        def observe(report, taken=taken):
            if report.sequences:
                position = report.sequences[0].num_output_tokens - int(report.emitted[0])
                taken.append((position, int(report.decision.depth[0])))

        simulate(trace, ROOFLINE, GivenArrivals.at_once(trace), machine(), observer=observe)
        depths.append(taken)
    before = [[step for step in taken if step[0] <= 30] for taken in depths]
    assert before[0] == before[1]
    assert len(before[0]) > 8
    assert depths[0] != depths[1]


def test_synthetic_figures_are_called_synthetic():
    trace = SyntheticAcceptance(SURVIVAL, "DSpark on GLM-5.2").trace(5, 20)
    run = simulate(trace, fixed(1), ClosedConcurrency(2), machine(), steps=20)
    assert "synthetic" in str(run)
    assert "DSpark on GLM-5.2" in run.row()["synthetic"]
    assert "synthetic" in run.trace


def test_runs_travel_between_processes():
    """As a sweep over processes has it: what goes in, and what comes out, which is small."""
    trace = SyntheticAcceptance(SURVIVAL, "test").trace(20, 48)
    asked = (trace, ROOFLINE, ClosedConcurrency(8), machine())
    here = simulate(*asked, steps=60)
    there = simulate(*pickle.loads(pickle.dumps(asked)), steps=60)
    np.testing.assert_equal(there.row(), here.row())
    sent = pickle.dumps(here)
    assert len(sent) < 10_000
    np.testing.assert_equal(pickle.loads(sent).row(), here.row())


def test_memory_is_flat_in_the_steps():
    trace = SyntheticAcceptance(SURVIVAL, "test").trace(20, 48)
    simulation = Simulation(trace, ROOFLINE, ClosedConcurrency(8), machine())
    tracemalloc.start()  # from the beginning, so that what is replaced is taken off again
    try:
        sizes = []
        for _ in range(3):
            for _ in range(800):
                simulation.step()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[2] - sizes[1] < 10_000  # 800 steps of 8 sequences


def test_what_cannot_be_run_is_refused():
    trace = trace_of([[1] * 10])
    with pytest.raises(ValueError, match="never ends"):
        simulate(trace, fixed(1, 4), Poisson(1.0), machine())
    with pytest.raises(ValueError, match="steps is 0"):
        simulate(trace, fixed(1, 4), Poisson(1.0), machine(), steps=0)
    with pytest.raises(ValueError, match="warmup is 1"):
        simulate(trace, fixed(1, 4), Poisson(1.0), machine(), steps=5, warmup=1.0)
    with pytest.raises(ValueError, match="recorded to 4"):
        simulate(trace, ROOFLINE, Poisson(1.0), machine(), steps=5)
    with pytest.raises(ValueError, match="KV blocks"):
        simulate(trace, fixed(1, 4), ClosedConcurrency(1), machine(num_kv_blocks=1, block_size=4), steps=5)
    named = TuningConfig.model_validate({"max_depth": 4, "acceptance": {"evidence": ["log_odds"]}})
    with pytest.raises(ValueError, match="asks for 'log_odds'; the trace offers matched_length, agreement, age"):
        simulate(trace, TunedController(named), ClosedConcurrency(1), machine(), steps=5)
