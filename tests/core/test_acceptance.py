"""What the acceptance model promises whatever the data: bounds, optimism, forgetting, cells, errors, state."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.acceptance import EVIDENCE, AcceptanceModel, EvidenceFeature


def serve(model, row, cell, verified, accepted, steps=1):
    for _ in range(steps):
        model.observe(*(np.asarray(x) for x in (row, cell, verified, accepted)))


def one_sequence(depth=4, evidence=(), **arguments):
    model = AcceptanceModel(depth, evidence, **arguments)
    model.add(0)
    return model


ROW, CELL = np.array([0]), np.array([0])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), effect=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_survival_never_rises_and_lies_in_the_unit_interval(data, effect, seed):
    depth = data.draw(st.integers(1, 12))
    sequences = data.draw(st.integers(1, 6))
    prior = data.draw(st.floats(0.01, 0.99))
    rng = np.random.default_rng(seed)
    model = AcceptanceModel(
        depth,
        ["matched_length", "age"],
        prior=prior,
        prior_weight=data.draw(st.sampled_from([0.1, 20.0])),
        half_life_steps=data.draw(st.sampled_from([5.0, 2000.0])),
        forgetting=data.draw(st.sampled_from([0.5, 1.0])),
        sequence_effect=effect,
    )
    for r in range(sequences):
        model.add(r)
    row = np.arange(sequences)
    acceptance = rng.choice([0.0, 0.02, 0.5, 0.98, 1.0], size=sequences)
    for _ in range(data.draw(st.integers(0, 40))):
        cell = model.cells(rng.choice([np.nan, 0.0, 1.0, 3.0, 40.0], size=(sequences, 2)))
        verified = rng.integers(0, depth + 1, size=sequences)
        ok = np.cumprod(rng.random((depth, sequences)) < acceptance, axis=0).sum(axis=0)
        model.observe(row, cell, verified, np.minimum(ok, verified))
    estimate = model.estimate(row, model.cells(rng.choice([0.0, 2.0, 40.0], size=(sequences, 2))))
    for survival in (estimate.mean(), estimate.upper(), estimate.sample(rng)):
        assert survival.shape == (sequences, depth)
        assert np.all(survival > 0.0)
        assert np.all(survival <= 1.0)
        assert np.all(np.diff(survival, axis=1) <= 0.0)
    assert np.all(estimate.upper() >= estimate.mean())


def test_upper_raises_every_level_by_its_own_uncertainty():
    model = one_sequence(2, sequence_effect=False)
    serve(model, ROW, CELL, [1], [0], steps=30)
    estimate = model.estimate(ROW, CELL)
    mean, upper = estimate.mean()[0], estimate.upper()[0]
    acceptance, raised = np.array([mean[0], mean[1] / mean[0]]), np.array([upper[0], upper[1] / upper[0]])
    logits = np.log(raised / (1 - raised)) - np.log(acceptance / (1 - acceptance))
    np.testing.assert_allclose(logits, 1.64 * estimate.beta_sd()[0])


def test_prior_is_optimistic():
    survival = one_sequence(3, sequence_effect=False).estimate(ROW, CELL).mean()
    np.testing.assert_allclose(survival, [[0.85, 0.85**2, 0.85**3]])


def test_mean_is_computed_once():
    estimate = one_sequence().estimate(ROW, CELL)
    assert estimate.mean() is estimate.mean()


def test_samples_average_to_the_mean_and_are_coherent():
    model = AcceptanceModel(5, ["source"])
    for r in range(3):
        model.add(r)
    row, cell = np.arange(3), np.array([0, 0, 1])
    for accepted in ([5, 0, 4], [2, 1, 5], [3, 0, 1]) * 60:
        serve(model, row, cell, [5, 5, 5], accepted)
    estimate = model.estimate(row, cell)
    rng = np.random.default_rng(0)
    draws = np.array([estimate.sample(rng) for _ in range(3000)])
    # The levels are well known by now, so that their noise, which the mean leaves out, hardly shifts it.
    np.testing.assert_allclose(draws.mean(axis=0), estimate.mean(), atol=0.03)
    u_sd = 1.0 / np.sqrt(model.effect.precision[row])
    spread = np.log(draws[:, :, 0] / (1.0 - draws[:, :, 0])).std(axis=0)
    np.testing.assert_allclose(spread, np.hypot(u_sd, estimate.beta_sd()[:, 0]), rtol=0.06)
    again, other = (estimate.sample(np.random.default_rng(seed)) for seed in (7, 8))
    np.testing.assert_array_equal(again, estimate.sample(np.random.default_rng(7)))
    assert np.abs(again - other).max() > 0.0
    plain = AcceptanceModel(5, ["source"], sequence_effect=False)
    same = plain.estimate(row, np.array([1, 1, 0])).sample(np.random.default_rng(0))
    np.testing.assert_array_equal(same[0], same[1])  # one beta per (position, cell) in a draw
    assert np.abs(same[0] - same[2]).max() > 0.0


def test_an_undrafted_position_becomes_attractive_again():
    model = one_sequence(3, half_life_steps=50.0, sequence_effect=False)
    serve(model, ROW, CELL, [3], [0], steps=400)
    prior = 0.85
    refused = model.estimate(ROW, CELL).mean()[0, 0]
    assert refused < 0.15
    course = []
    for _ in range(8):
        serve(model, ROW, CELL, [0], [0], steps=25)
        course.append(model.estimate(ROW, CELL).mean()[0, 0])
    assert np.all(np.diff(course) > 0.0)
    assert course[-1] > prior - 0.1  # four half-lives
    assert model.estimate(ROW, CELL).idle_steps()[0, 0] == 200


def test_only_the_undrafted_positions_are_forgotten():
    model = one_sequence(3, half_life_steps=50.0, sequence_effect=False)
    serve(model, ROW, CELL, [3], [1], steps=200)  # position 2 always fails
    serve(model, ROW, CELL, [1], [1], steps=200)  # nothing deeper than 1 is drafted any more
    acceptance = model.estimate(ROW, CELL).mean()[0]
    assert acceptance[0] > 0.95
    assert acceptance[1] / acceptance[0] > 0.75
    serve(model, ROW, CELL, [2], [1], steps=30)
    acceptance = model.estimate(ROW, CELL).mean()[0]
    assert acceptance[1] / acceptance[0] < 0.3


def test_an_undrafted_cell_becomes_attractive_although_its_neighbours_are_not():
    model = one_sequence(2, ["source"], half_life_steps=50.0, sequence_effect=False)
    serve(model, ROW, [0], [2], [0], steps=200)
    fresh = model.estimate(ROW, np.array([1])).mean()[0, 0]
    assert fresh > 0.8  # idle for four half-lives


def test_a_fresh_cell_starts_from_what_coarser_ones_know():
    features = [EvidenceFeature("kind", (1.0,)), EvidenceFeature("detail", (1.0, 2.0))]
    model = one_sequence(2, features, sequence_effect=False)
    for kind, accepted in ((0.0, 0), (1.0, 2)):
        for detail in (0.0, 1.0):
            serve(model, ROW, model.cells(np.array([[kind, detail]])), [2], [accepted], steps=60)
    serve(model, ROW, CELL, [0], [0], steps=20)
    bad, good = model.estimate(np.zeros(2, dtype=int), model.cells(np.array([[0.0, 5.0], [1.0, 5.0]]))).mean()[:, 0]
    assert bad < 0.35
    assert good > 0.9


def test_128_sequences_that_start_badly_do_not_drown_the_prior():
    model = AcceptanceModel(4)
    row = np.arange(128)
    for r in row:
        model.add(int(r))
    accepted = (np.arange(128) % 9 == 0).astype(int)  # 12 % of the first drafts
    serve(model, row, np.zeros(128, dtype=int), np.full(128, 1), accepted)
    model.add(128)
    new = model.estimate(np.array([128]), CELL).mean()[0]
    assert new[0] > 0.3
    # Sixty per cent, later: learned within a few steps, not held down.
    rng = np.random.default_rng(0)
    for _ in range(15):
        serve(model, row, np.zeros(128, dtype=int), np.full(128, 1), rng.random(128) < 0.6)
    assert model.estimate(np.array([128]), CELL).mean()[0, 0] == pytest.approx(0.6, abs=0.1)


def test_correlated_observations_weigh_less():
    after = {}
    for rho in (0.0, 0.05, 1.0):
        model = AcceptanceModel(1, correlation=rho, sequence_effect=False)
        for r in range(50):
            model.add(r)
        serve(model, np.arange(50), np.zeros(50, dtype=int), np.ones(50, dtype=int), np.zeros(50, dtype=int))
        after[rho] = float(model.estimate(ROW, CELL).beta_sd()[0, 0])
    single = one_sequence(1, sequence_effect=False)
    serve(single, ROW, CELL, [1], [0])
    assert after[0.0] < after[0.05] < after[1.0]
    assert after[1.0] == pytest.approx(single.estimate(ROW, CELL).beta_sd()[0, 0])  # 50 that are all one


def test_a_sequence_learns_faster_than_the_population_and_a_new_one_starts_over():
    model = AcceptanceModel(4)
    for r in range(2):
        model.add(r)
    serve(model, [0, 1], [0, 0], [4, 4], [4, 0], steps=12)
    good, bad = model.estimate(np.array([0, 1]), np.zeros(2, dtype=int)).mean()[:, 0]
    assert good > bad + 0.4
    model.remove(1)
    model.add(1)
    fresh = model.estimate(np.array([1]), CELL).mean()[0, 0]
    assert bad < fresh < good


def test_knowing_shows_in_uncertainty_and_age():
    model = one_sequence(3)
    before = model.estimate(ROW, CELL).beta_sd()
    serve(model, ROW, CELL, [2], [1], steps=5)
    estimate = model.estimate(ROW, CELL)
    assert np.all(estimate.beta_sd()[0, :2] < before[0, :2])
    assert estimate.beta_sd()[0, 2] == pytest.approx(before[0, 2], rel=1e-3)
    np.testing.assert_array_equal(estimate.idle_steps(), [[0, 0, 5]])


def test_evidence_falls_into_its_bins():
    model = AcceptanceModel(2, ["matched_length"])
    values = [np.nan, -1, 0, 0.5, 1, 2, 3, 4, 5, 8, 9, 16, 17, 1e9]
    bins = [0, 0, 0, 0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    np.testing.assert_array_equal(model.cells(np.array(values)[:, None]), bins)
    assert EVIDENCE["matched_length"].bins == 7


def test_features_cross_into_one_cell_each():
    names = list(EVIDENCE)
    model = AcceptanceModel(2, names)
    choices = [[-9.0, *EVIDENCE[name].edges] for name in names]
    evidence = np.array(list(itertools.product(*choices)))
    np.testing.assert_array_equal(model.cells(evidence), np.arange(len(evidence)))
    assert AcceptanceModel(2).cells(np.zeros((3, 0))).tolist() == [0, 0, 0]


def test_rows_grow_and_are_checked():
    model = AcceptanceModel(2, capacity=1)
    for r in (0, 5, 300):
        model.add(r)
    serve(model, [300, 5], [0, 0], [2, 2], [2, 0])
    with pytest.raises(ValueError, match="row 5 is taken"):
        model.add(5)
    with pytest.raises(ValueError, match="at least 0"):
        model.add(-1)
    model.remove(5)
    for missing in (5, 1, 9999, -1):
        with pytest.raises(KeyError, match="has no sequence"):
            model.remove(missing)


def test_no_sequences_is_a_step_too():
    nothing = np.zeros(0, dtype=int)
    model = one_sequence(2)
    serve(model, ROW, CELL, [2], [1])
    model.observe(nothing, nothing, nothing, nothing)
    assert model.estimate(nothing, nothing).mean().shape == (0, 2)
    assert model.estimate(ROW, CELL).idle_steps()[0, 0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_depth": 0}, "max_depth must be at least 1"),
        ({"prior": 1.0}, "prior must be between 0 and 1"),
        ({"prior_weight": 0.0}, "prior_weight must be positive"),
        ({"half_life_steps": -1.0}, "half_life_steps must be positive"),
        ({"correlation": 1.5}, "correlation must be between 0 and 1"),
        ({"forgetting": 0.0}, "forgetting must be over 0"),
        ({"capacity": 0}, "capacity must be at least 1"),
        ({"evidence": ["matched"]}, "no standard evidence is called 'matched'; there are matched_length"),
        ({"evidence": ["age", "age"]}, "different names"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        AcceptanceModel(**{"max_depth": 4, **arguments})


@pytest.mark.parametrize("edges", [(1.0, 1.0), (2.0, 1.0), (float("nan"),), (float("inf"),)])
def test_bad_edges_are_refused(edges):
    with pytest.raises(ValueError, match="edges of evidence 'x' must be finite and increasing"):
        EvidenceFeature("x", edges)


def test_evidence_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"shape \(3, 1\); this model needs \(sequences, 2\): matched_length, age"):
        AcceptanceModel(2, ["matched_length", "age"]).cells(np.zeros((3, 1)))


def test_state_round_trips_and_goes_on_alike():
    rng = np.random.default_rng(4)

    def trained(model, steps):
        for _ in range(steps):
            cell = model.cells(rng.integers(0, 20, size=(5, 2)).astype(float))
            verified = rng.integers(0, 5, size=5)
            model.observe(np.arange(5), cell, verified, np.minimum(rng.geometric(0.4, size=5) - 1, verified))

    model = AcceptanceModel(4, ["matched_length", "age"], half_life_steps=100.0)
    copy = AcceptanceModel(4, ["matched_length", "age"], half_life_steps=100.0)
    for r in range(5):
        model.add(r)
    trained(model, 70)
    state = model.state()
    copy.restore(state)
    for r in range(5):
        model.remove(r)
        model.add(r)
        copy.add(r)
    assert copy.sigma2 == model.sigma2
    seed = int(rng.integers(2**31))
    for one in (model, copy):
        rng = np.random.default_rng(seed)
        trained(one, 40)
    row, cell = np.arange(5), np.arange(5)
    np.testing.assert_array_equal(copy.estimate(row, cell).mean(), model.estimate(row, cell).mean())
    np.testing.assert_array_equal(copy.estimate(row, cell).upper(), model.estimate(row, cell).upper())
    # What was saved is a copy: learning on doesn't change it.
    older = AcceptanceModel(4, ["matched_length", "age"], half_life_steps=100.0)
    older.restore(state)
    older.add(0)
    assert np.abs(older.estimate(ROW, CELL).mean() - model.estimate(ROW, CELL).mean()).max() > 0.0


def test_state_of_another_model_is_refused():
    state = AcceptanceModel(4, ["age"]).state()
    with pytest.raises(ValueError, match="max_depth 4, this model's is 5"):
        AcceptanceModel(5, ["age"]).restore(state)
    with pytest.raises(ValueError, match="evidence"):
        AcceptanceModel(4, ["source"]).restore(state)
    with pytest.raises(ValueError, match="evidence"):
        AcceptanceModel(4, [EvidenceFeature("age", (3.0, 8.0))]).restore(state)
    broken = AcceptanceModel(4, ["age"]).state()
    broken["population"]["beta"] = np.zeros((4, 2))
    with pytest.raises(ValueError, match="beta has shape"):
        AcceptanceModel(4, ["age"]).restore(broken)
