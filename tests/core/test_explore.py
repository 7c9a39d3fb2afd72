"""The ledger pays for all exploration, and nobody locks at depth 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Profile
from adaptive_spec.explore import Ledger
from adaptive_spec.policy import make_policy

K = 8
CURVES = {
    "roofline": Profile([1, 295, 1152], [10.0, 10.5, 39.0], interpolation="linear"),
    "b300": Profile(
        [1, 8, 16, 32, 64, 128, 256, 512, 1024, 1536],
        [5.1, 5.3, 5.6, 6.3, 7.9, 9.4, 11.3, 15.0, 21.4, 107.0],
        interpolation="linear",
    ),
    "staircase": Profile(
        [1, 64, 128, 192, 256, 384, 512, 1152], [5.0, 5.5, 7.0, 9.0, 10.0, 14.0, 18.0, 40.0], interpolation="staircase"
    ),
}


def controller(curve: Profile, seed: int, ledger: Ledger, evidence: tuple[str, ...] = ()) -> Controller:
    return Controller(
        make_policy("roofline-budget"), AcceptanceModel(K, evidence), cost=curve, ledger=ledger, seed=seed
    )


@settings(deadline=None, max_examples=100)
@given(
    events=st.lists(st.tuples(st.floats(0.1, 50.0), st.floats(0.0, 30.0), st.booleans()), max_size=200),
    share=st.floats(0.0, 0.1),
    floor=st.floats(0.0, 1.0),
)
def test_spending_never_exceeds_the_share_of_what_was_earned(events: list, share: float, floor: float) -> None:
    ledger = Ledger(share, share * floor)
    for tokens, price, blind in events:
        ledger.earn(tokens)
        if ledger.affords(price, floor=blind):
            ledger.pay(price)
        assert ledger.spent <= share * ledger.earned * (1 + 1e-9) + 1e-12
        assert ledger.balance >= -1e-9


def test_a_price_is_affordable_in_the_end_however_high() -> None:
    ledger = Ledger(0.01, 0.001, memory_steps=10)
    while not ledger.affords(5.0):
        ledger.earn(1.0)
        assert ledger.earned < 2000


@pytest.mark.parametrize("settings_", [{"share": -0.1}, {"share": 2.0}, {"floor_share": 0.5}, {"memory_steps": 0}])
def test_settings_out_of_range_are_errors(settings_: dict) -> None:
    with pytest.raises(ValueError, match="must"):
        Ledger(**settings_)


@pytest.mark.parametrize("curve", sorted(CURVES))
def test_128_sequences_begun_together_never_lock_at_depth_zero(curve: str) -> None:
    """Their first step shows 11 % acceptance, all later ones 60 %: the lock that was seen in practice.

    Some 200 seeds over the three curves; on each curve drafting pays, at the true acceptance.
    """
    locked = []
    for seed in range(67):
        world = World(128, CURVES[curve], np.full(K, 0.6), first_acceptance=0.11, length=400, stagger=False, seed=seed)
        ledger = Ledger()
        adaptive = controller(CURVES[curve], seed, ledger)
        world.run(adaptive, 60)
        if not any(d.depth[~d.explored].any() for d in world.run(adaptive, 10)):
            locked.append(seed)
        assert ledger.spent <= ledger.share * ledger.earned + 1e-9
    assert not locked


@pytest.mark.parametrize("sequences", [1, 16, 128])
def test_probes_find_out_when_drafts_become_worth_it(sequences: int) -> None:
    """A drafter that was useless for long is drafted again within the ledger's means once it is good."""
    curve = CURVES["b300"]
    world = World(sequences, curve, np.full(K, 0.02), seed=3)
    ledger = Ledger()
    adaptive = controller(curve, 3, ledger)
    world.run(adaptive, 400)
    world.acceptance = np.full(K, 0.8)
    world.run(adaptive, 600)
    late = world.run(adaptive, 50)
    assert np.mean([d.depth.mean() for d in late]) > 1.0
    assert ledger.spent <= ledger.share * ledger.earned + 1e-9


def test_where_all_is_known_and_fresh_only_the_floor_is_spent() -> None:
    curve = CURVES["b300"]
    world = World(64, curve, np.full(K, 0.6), seed=1)
    ledger = Ledger(0.01, 0.001)
    adaptive = controller(curve, 1, ledger)
    world.run(adaptive, 500)
    earned, spent = ledger.earned, ledger.spent
    world.run(adaptive, 1000)
    assert ledger.spent - spent <= 0.004 * (ledger.earned - earned)


def test_policies_set_by_hand_never_explore() -> None:
    for name, params in [("fixed", {"depth": 1}), ("batch-threshold", {"table": [[1, None, 2]]})]:
        fixed = Controller(
            make_policy(name, **params), AcceptanceModel(K), cost=CURVES["b300"], ledger=Ledger(0.5, 0.5)
        )
        world = World(4, CURVES["b300"], np.full(K, 0.9))
        depths = np.array([d.depth for d in world.run(fixed, 200)])
        assert depths.max() == params.get("depth", 2)
