"""Sequences that go away while a pass of theirs is under way, and those that can't be added at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Profile
from adaptive_spec.explore import Ledger
from adaptive_spec.guard import Guard
from adaptive_spec.policy import make_policy
from adaptive_spec.step import Outcome, StepTime, StepView

K = 4
CURVE = Profile([1, 64], [0.010, 0.010], interpolation="linear")


def controller_and_told() -> tuple[Controller, list[tuple[StepTime, StepView]]]:
    """A controller, and what its guard is told of steps."""
    ledger = Ledger()
    guard = Guard(ledger, clock=lambda: 0.0)
    controller = Controller(
        make_policy("roofline-budget"), AcceptanceModel(K, []), cost=CURVE, ledger=ledger, guard=guard
    )
    told: list[tuple[StepTime, StepView]] = []
    observe = guard.observe

    def note(time: StepTime, view: StepView, cost: Any, speculated: bool) -> None:
        told.append((time, view))
        observe(time, view, cost, speculated)

    guard.observe = note  # type: ignore[method-assign]
    return controller, told


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 100.0), st.integers(0, K), st.booleans()), min_size=1, max_size=8), st.data())
def test_no_token_is_expected_of_those_that_went_away(
    sequences: list[tuple[float, int, bool]], data: st.DataObject
) -> None:
    """At any depth they would have brought none, so it is no loss of the drafts'; their positions were computed."""
    controller, told = controller_and_told()
    rows = np.array([controller.add(i, weight=weight) for i, (weight, _, _) in enumerate(sequences)])
    ones = np.ones(len(rows), dtype=np.int64)
    prompts = data.draw(st.integers(0, 2))
    view = StepView(
        rows, K * ones, 100 * ones, np.empty((len(rows), 0)), prefill_tokens=prompts, sampling_prefills=prompts
    )
    decision = controller.plan(view)
    staying = [i for i, (_, _, goes) in enumerate(sequences) if not goes]
    for i in set(range(len(rows))) - set(staying):
        controller.remove(i)
    depth = decision.depth[staying]
    accepted = np.minimum([sequences[i][1] for i in staying], depth).astype(np.int64)
    if staying:
        controller.observe(Outcome(decision.step, staying, depth, depth, accepted))
    positions = view.base_positions + int(decision.depth.sum())
    controller.observe_time(StepTime(decision.step, positions, len(rows), 100, decision.draft_depth, step_seconds=0.01))
    weight = np.array([sequences[i][0] for i in staying])
    if not (staying or prompts):
        assert not told  # nobody got anything
        return
    ((time, posed),) = told
    assert time.tokens == pytest.approx(weight @ (1 + accepted) + prompts)
    assert posed.base_tokens == pytest.approx(weight.sum() + prompts)
    assert posed.base_positions == view.base_positions
    assert np.isfinite(controller.ledger.balance)  # type: ignore[union-attr]


@settings(deadline=None)
@given(st.integers(0, 10**30) | st.floats(0, 1e308), st.integers(0, 10**30) | st.floats(0, 1e308))
def test_limits_of_a_sequence_may_be_as_large_as_they_like(cap: float, pin: float) -> None:
    controller, _ = controller_and_told()
    row = controller.add("a", max_depth=cap, pinned_depth=pin)  # type: ignore[arg-type]
    ones = np.ones(1, dtype=np.int64)
    decision = controller.plan(StepView(np.array([row]), K * ones, 100 * ones, np.empty((1, 0))))
    assert decision.depth.tolist() == [min(int(cap), int(pin), K)]


@pytest.mark.parametrize(
    "wrong", [{"weight": 0.0}, {"weight": np.nan}, {"max_depth": -1}, {"pinned_depth": -2}, {"max_depth": float("inf")}]
)
def test_a_sequence_that_cannot_be_added_is_not_known(wrong: dict[str, Any]) -> None:
    controller, _ = controller_and_told()
    with pytest.raises(ValueError, match="must be a finite number"):
        controller.add("a", **wrong)
    assert len(controller) == controller.personal == 0
    controller.add("a")
    controller.remove("a")
