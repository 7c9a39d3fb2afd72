"""The controller's contract with an engine: records, limits, steps in flight, memory, saved state."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import VirtualClock, World

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Online, Profile
from adaptive_spec.explore import Ledger
from adaptive_spec.guard import Guard, Watchdog
from adaptive_spec.policy import Allocation, DepthPolicy, make_policy
from adaptive_spec.step import Outcome, StepTime, StepView

K = 8
CURVE = Profile([1, 8, 16, 32, 64, 128], [0.036, 0.041, 0.050, 0.067, 0.114, 0.199], interpolation="linear")


def make(policy: str = "roofline-budget", *, seed: int = 0, clock: VirtualClock | None = None, **params) -> Controller:
    clock = clock or VirtualClock()
    ledger = Ledger()
    return Controller(
        make_policy(policy, **params),
        AcceptanceModel(K, ["age"]),
        cost=Online(CURVE),
        ledger=ledger,
        guard=Guard(ledger, clock=clock),
        watchdog=Watchdog(),
        identity={"model": "m", "drafter": "d"},
        seed=seed,
        clock=clock,
    )


def view(controller: Controller, ids: list, limit: int | np.ndarray = K, **more) -> StepView:
    n = len(ids)
    return StepView(
        controller.rows(ids),
        np.full(n, limit) if np.isscalar(limit) else np.asarray(limit),
        np.full(n, 100),
        np.full((n, 1), 50.0),
        **more,
    )


def outcome(decision, ids: list, accepted: np.ndarray | int = 0) -> Outcome:
    depth = decision.depth
    return Outcome(decision.step, ids, depth, depth, np.minimum(depth, accepted))


class Deep(DepthPolicy):
    """As deep as allowed."""

    needs_cost = False
    explores = False

    def _decide(self, view, acceptance, cost):
        return Allocation(view.limit.copy())


def plain(policy: DepthPolicy | None = None) -> Controller:
    return Controller(policy or Deep(), AcceptanceModel(K, ["age"]), clock=VirtualClock())


def test_unknown_and_duplicate_ids_are_errors_on_add_and_remove() -> None:
    controller = plain()
    controller.add("a")
    with pytest.raises(ValueError, match="'a' was added already"):
        controller.add("a")
    with pytest.raises(ValueError, match="'b' is unknown"):
        controller.remove("b")
    with pytest.raises(ValueError, match="'b' is unknown"):
        controller.rows(["a", "b"])
    controller.remove("a")
    with pytest.raises(ValueError, match="'a' is unknown"):
        controller.remove("a")
    assert len(controller) == 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"weight": float("inf")}, "weight"),
        ({"max_depth": -1}, "max_depth"),
        ({"pinned_depth": -2}, "pinned_depth"),
    ],
)
def test_settings_out_of_range_are_errors_and_leave_nothing_behind(setting: dict, message: str) -> None:
    controller = plain()
    with pytest.raises(ValueError, match=message):
        controller.add("a", **setting)
    assert len(controller) == 0
    controller.add("a")


def test_outcomes_that_answer_nothing_are_dropped_and_counted() -> None:
    controller = plain()
    for id in "abc":
        controller.add(id)
    decision = controller.plan(view(controller, ["a", "b", "c"]))
    before = controller.acceptance.state()
    controller.observe(Outcome(99, ["a"], np.array([8]), np.array([8]), np.array([8])))
    assert controller.counts["outcomes of unknown steps"] == 1
    controller.remove("b")
    controller.observe(Outcome(decision.step, ["x", "b"], *[np.array([8, 8])] * 3))
    assert controller.counts["outcomes of unknown sequences"] == 2
    for key, value in controller.acceptance.state().items():
        np.testing.assert_equal(value, before[key])
    controller.observe(Outcome(decision.step, ["c", "a"], *[np.array([8, 8])] * 3))
    controller.observe(Outcome(decision.step, ["c"], *[np.array([8])] * 3))  # a second answer for c
    assert controller.counts.total() == 4


def test_an_id_used_again_is_not_taken_for_its_predecessor() -> None:
    controller = plain()
    controller.add("a")
    decision = controller.plan(view(controller, ["a"]))
    controller.remove("a")
    controller.add("a")
    controller.observe(outcome(decision, ["a"], 8))
    assert controller.counts["outcomes of unknown sequences"] + controller.counts["outcomes of unknown steps"] == 1


def test_contradicting_outcomes_are_refused_and_teach_nothing() -> None:
    controller = plain()
    controller.add("a")
    decision = controller.plan(view(controller, ["a"], 4))
    for drafted, verified, accepted in [(4, 4, 5), (4, 5, 0), (2, 3, 0), (4, 4, -1)]:
        with pytest.raises(ValueError, match="accepted <= verified"):
            controller.observe(
                Outcome(decision.step, ["a"], np.array([drafted]), np.array([verified]), np.array([accepted]))
            )
    controller.observe(outcome(decision, ["a"], 2))


@given(counts=st.lists(st.tuples(*[st.integers(-1, 5)] * 4), min_size=1, max_size=3), shared=st.booleans())
def test_an_outcome_knows_whether_its_counts_go_together(counts, shared) -> None:
    """One sequence and several, with an array of its own for the drafts made, or the one of those judged."""
    depth, drafted, verified, accepted = np.array(counts).T
    if shared:
        drafted = verified
    right = bool(np.all((accepted >= 0) & (accepted <= verified) & (verified <= np.minimum(depth, drafted))))
    answer = Outcome(1, ["a"] * len(counts), drafted, verified, accepted)
    with nullcontext() if right else pytest.raises(ValueError, match="outcome of step 1 breaks"):
        answer.check(depth)


def test_a_view_that_does_not_fit_together_is_refused() -> None:
    controller = plain()
    controller.add("a")
    good = view(controller, ["a"])
    with pytest.raises(ValueError, match="limit has shape"):
        controller.plan(StepView(good.row, np.array([1, 2]), good.context, good.evidence))
    with pytest.raises(ValueError, match="evidence"):
        controller.plan(StepView(good.row, good.limit, good.context, np.zeros((1, 5))))


def test_caps_pins_and_weights_are_kept() -> None:
    controller = make()
    controller.add("capped", max_depth=1)
    controller.add("off", max_depth=0)
    controller.add("pinned", pinned_depth=3)
    controller.add("free")
    for _ in range(30):
        decision = controller.plan(view(controller, ["capped", "off", "pinned", "free"]))
        capped, off, pinned, free = decision.depth
        assert capped <= 1
        assert off == 0
        assert pinned == 3
        assert free <= K
        assert decision.draft_depth >= decision.depth.max()
        controller.observe(outcome(decision, ["capped", "off", "pinned", "free"], 8))
    limited = controller.plan(view(controller, ["pinned"], 2))
    assert limited.depth.tolist() == [2]


def test_a_heavier_sequence_is_drafted_deeper() -> None:
    steep = Profile([1, 2, 3, 4, 6, 10, 20], [1.0, 1.3, 1.6, 1.9, 2.5, 3.7, 6.7], interpolation="linear")
    controller = Controller(make_policy("roofline-budget"), AcceptanceModel(K), cost=steep, clock=VirtualClock())
    controller.add("light", weight=0.1)
    controller.add("heavy", weight=3.0)
    rows = controller.rows(["light", "heavy"])
    decision = controller.plan(StepView(rows, np.full(2, K), np.zeros(2, dtype=int), np.zeros((2, 0))))
    assert decision.depth[1] > decision.depth[0]


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_two_steps_in_flight_end_like_one_after_the_other(data) -> None:
    """Outcomes may come late, in parts, in any order and for any subset: each teaches its own decision."""
    n = data.draw(st.integers(1, 6))
    ids = [f"s{i}" for i in range(n)]
    controller = plain()
    for id in ids:
        controller.add(id)
    in_flight = []
    for _ in range(data.draw(st.integers(1, 8))):
        chosen = data.draw(st.permutations(ids))[: data.draw(st.integers(1, n))]
        in_flight.append((controller.plan(view(controller, chosen)), list(chosen)))
        if len(in_flight) == 2:
            decision, chosen = in_flight.pop(data.draw(st.integers(0, 1)))
            order = data.draw(st.permutations(range(len(chosen))))
            cut = data.draw(st.integers(0, len(chosen)))
            for part in (order[:cut], order[cut:]):
                depth = decision.depth[list(part)] if part else np.zeros(0, dtype=int)
                controller.observe(Outcome(decision.step, [chosen[i] for i in part], depth, depth, depth // 2))
            controller.observe_time(StepTime(decision.step, 1, 1, 0, 0, tokens=1.0, step_seconds=1.0))
    assert not controller.counts
    assert len(controller._in_flight) == len(in_flight)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_revise_only_lowers_and_joins_at_zero(data) -> None:
    controller = make()
    ids = list(range(8))
    for id in ids:
        controller.add(id)
    planned = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    final = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    limits = np.array(data.draw(st.lists(st.integers(0, K), min_size=len(final), max_size=len(final))))
    decision = controller.plan(view(controller, planned))
    revised = controller.revise(
        decision, view(controller, final, limits, prefill_tokens=data.draw(st.integers(0, 200)))
    )
    before = dict(zip(planned, decision.depth.tolist(), strict=True))
    for id, depth, limit in zip(final, revised.depth.tolist(), limits.tolist(), strict=True):
        assert 0 <= depth <= min(limit, before.get(id, 0))
    assert revised.step == decision.step
    controller.observe(outcome(revised, final, 1))
    assert not controller.counts


def test_revise_of_a_settled_step_is_an_error() -> None:
    controller = make()
    controller.add(0)
    decision = controller.plan(view(controller, [0]))
    controller.observe(outcome(decision, [0]))
    controller.observe_time(StepTime(decision.step, 1, 1, 0, 0, tokens=1.0, step_seconds=1.0))
    with pytest.raises(ValueError, match="not in flight"):
        controller.revise(decision, view(controller, [0]))


@pytest.mark.parametrize("policy", ["roofline-budget", "acceptance-bandit"])
def test_same_seed_same_decisions(policy: str) -> None:
    def depths(seed: int) -> np.ndarray:
        world = World(6, CURVE, np.full(K, 0.7), spread=1.0, seed=5)
        return np.array([d.depth for d in world.run(make(policy, seed=seed, clock=world.clock), 150)])

    assert (depths(3) == depths(3)).all()
    if policy == "acceptance-bandit":  # the other one draws only to break ties among probes
        assert (depths(3) != depths(4)).any()


@pytest.mark.parametrize("policy", ["roofline-budget", "acceptance-bandit"])
@pytest.mark.parametrize("kind", ["narrow", "strided", "read-only"])
def test_it_does_not_matter_how_an_engine_keeps_its_numbers(policy: str, kind: str) -> None:
    """Whole numbers of 32 bits, real ones in single precision, every other of a longer array, or not to be written."""

    def kept(array: np.ndarray) -> np.ndarray:
        if kind == "narrow":
            return array.astype(np.int32 if array.dtype.kind == "i" else np.float32)
        if kind == "strided":
            return np.repeat(array, 2, axis=0)[::2]
        array = array.copy()
        array.flags.writeable = False
        return array

    usual, other = make(policy), make(policy)
    ids = list(range(6))
    rng = np.random.default_rng(5)
    for id in ids:
        usual.add(id, weight=1.0 + id)
        other.add(id, weight=1.0 + id)
    for _ in range(40):
        limit, age = rng.integers(0, K + 1, len(ids)), np.floor(rng.uniform(0, 20, (len(ids), 1)))
        weight, context = 1.0 + rng.integers(0, 3, len(ids)), rng.integers(1, 500, len(ids))
        mine = usual.plan(StepView(usual.rows(ids), limit, context, age, weight))
        parts = kept(other.rows(ids)), kept(limit), kept(context), kept(age), kept(weight)
        theirs = other.plan(StepView(*parts))
        assert mine.depth.tolist() == theirs.depth.tolist()
        accepted = np.minimum(rng.integers(0, K + 1, len(ids)), mine.depth)
        usual.observe(Outcome(mine.step, ids, limit, mine.depth, accepted))
        other.observe(Outcome(theirs.step, ids, kept(limit), kept(mine.depth), kept(accepted)))
        for controller in (usual, other):
            controller.observe_time(StepTime(mine.step, 6 + int(mine.depth.sum()), 6, 600, K, step_seconds=0.05))
    assert not other.fallback.faults
    assert np.array_equal(usual.acceptance.population.beta, other.acceptance.population.beta)


def test_saved_state_round_trips_and_decides_alike(tmp_path: Path) -> None:
    world = World(6, CURVE, np.full(K, 0.7), spread=1.0)
    taught = make(clock=world.clock)
    world.run(taught, 200)
    taught.save(tmp_path / "state.npz")
    fresh = make()
    fresh.load(tmp_path / "state.npz")
    for controller in (taught, fresh):
        controller.add("new")
        controller.guard = None  # when it measures its next off-step was not learned
    a, b = (c.plan(view(c, ["new"])) for c in (taught, fresh))
    assert a.depth.tolist() == b.depth.tolist()
    np.testing.assert_allclose(a.survival, b.survival, rtol=1e-12)
    np.testing.assert_allclose(a.expected_seconds, b.expected_seconds, rtol=1e-12)
    assert list(tmp_path.iterdir()) == [tmp_path / "state.npz"]


@pytest.mark.parametrize(("change", "name"), [({"model": "other"}, "model"), ({"drafter": "other"}, "drafter")])
def test_state_of_another_deployment_is_refused(tmp_path: Path, change: dict, name: str) -> None:
    controller = make()
    controller.save(tmp_path / "state.npz")
    controller.identity.update(change)
    with pytest.raises(ValueError, match=name):
        controller.load(tmp_path / "state.npz")


def test_state_for_another_k_and_damaged_files_are_refused_and_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    make().save(path)
    other = Controller(
        make_policy("fixed", depth=1), AcceptanceModel(4, ["age"]), identity={"model": "m", "drafter": "d"}
    )
    with pytest.raises(ValueError, match="max_depth 8"):
        other.load(path)
    whole = path.read_bytes()
    controller = make()
    before = controller.state()
    for damaged in (whole[: len(whole) // 2], b"", b"text", whole[:-200] + bytes(200)):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="state file"):
            controller.load(path)
    with pytest.raises(FileNotFoundError):
        controller.load(tmp_path / "none.npz")
    np.testing.assert_equal(controller.state(), before)


def test_a_step_without_decoding_sequences_is_planned_too() -> None:
    controller = make()
    nothing = StepView(np.zeros(0, int), np.zeros(0, int), np.zeros(0, int), np.zeros((0, 1)), prefill_tokens=64)
    decision = controller.plan(nothing)
    assert len(decision.depth) == 0
    assert decision.draft_depth == 0
    controller.observe_time(StepTime(decision.step, 64, 0, 64, 0, tokens=1.0, step_seconds=0.1, verify_seconds=0.1))
    assert not controller.counts


def test_every_decision_can_be_explained() -> None:
    world = World(4, CURVE, np.full(K, 0.7), spread=1.0)
    for decision in world.run(make(clock=world.clock), 100):
        for i in range(4):
            assert f"depth {decision.depth[i]}" in decision.explain(i)


def test_memory_follows_the_live_sequences() -> None:
    script = """
import resource, numpy as np, sys
sys.path.insert(0, "tests/core"); sys.path.insert(0, "tests")
from test_controller import make, view, outcome
controller = make()
def churn(first, count):
    for id in range(first, first + count):
        controller.add(id)
        if id % 100 == 0:
            decision = controller.plan(view(controller, [id]))
            controller.observe(outcome(decision, [id], 3))
        controller.remove(id)
churn(0, 20_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
churn(20_000, 200_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert int(result.stdout) < 5 * 1024  # KiB
