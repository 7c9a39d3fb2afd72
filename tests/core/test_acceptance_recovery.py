"""The acceptance model recovers what simulated, censored data was made from, and agrees with exact integration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adaptive_spec.acceptance import AcceptanceModel, EvidenceFeature


def logistic(x):
    return 1.0 / (1.0 + np.exp(-x))


def simulate(model, beta, sigma, *, sequences, steps, life, seed, explain=0.0):
    """Serve `sequences` at a time, each for `life` steps, at random depths; return plain counts beside.

    `beta` is (K, C); each sequence meets a random cell per step, or, where `explain` is set, always its own,
    with cells that lie `explain` apart taking the sequence effect's place.
    """
    rng = np.random.default_rng(seed)
    depth, cells = beta.shape
    position = np.arange(depth)[:, None]
    row = np.arange(sequences)
    age = rng.integers(life, size=sequences)
    u = sigma * rng.standard_normal(sequences)
    own = rng.integers(cells, size=sequences)
    for r in row:
        model.add(int(r))
    judged, kept = np.zeros(depth), np.zeros(depth)
    for _ in range(steps):
        cell = own if explain else rng.integers(cells, size=sequences)
        ok = rng.random((depth, sequences)) < logistic(beta[:, cell] + u)
        verified = rng.integers(0, depth + 1, size=sequences)
        accepted = np.minimum(np.cumprod(ok, axis=0).sum(axis=0), verified)
        evidence = cell[:, None].astype(float) if model.evidence else np.zeros((sequences, 0))
        model.observe(row, model.cells(evidence), verified, accepted)
        judged += (position < np.minimum(accepted + 1, verified)).sum(axis=1)
        kept += (position < accepted).sum(axis=1)
        age += 1
        for r in np.flatnonzero(age >= life):
            model.remove(int(r))
            model.add(int(r))
            u[r], own[r], age[r] = sigma * rng.standard_normal(), rng.integers(cells), 0
    return judged, kept


def cell_feature(cells):
    return EvidenceFeature("cell", tuple(float(c) for c in range(1, cells)))


def test_beta_and_sigma_are_recovered_without_the_double_count():
    depth = 6
    beta = np.linspace(0.0, 0.5, depth)[:, None]
    model = AcceptanceModel(depth)
    judged, kept = simulate(model, beta, 1.0, sequences=48, steps=1200, life=40, seed=3)
    counts = kept / judged
    counts_error = np.log(counts / (1 - counts)) - beta[:, 0]
    error = model.population.beta[:, 0] - beta[:, 0]
    print(f"\nlevel error: ours {np.round(error, 2)}, plain counts {np.round(counts_error, 2)}")
    # Survivors to a deep position are sequences of high u: counts put their luck down to the position.
    assert counts_error[3:].min() > 0.5
    assert np.abs(error).max() < 0.25
    assert math.sqrt(model.sigma2) == pytest.approx(1.0, abs=0.15)
    # So counts promise a new sequence, of unknown u, far more at depth than it has; the model doesn't.
    u = np.random.default_rng(0).standard_normal(20_000)
    true = np.cumprod(logistic(beta + u), axis=0).mean(axis=1)
    model.add(48)
    ours = model.estimate(np.array([48]), np.array([0])).mean()[0]
    assert np.abs(ours - true).max() < 0.05
    simple = AcceptanceModel(depth, sequence_effect=False)
    simulate(simple, beta, 1.0, sequences=48, steps=1200, life=40, seed=3)
    assert np.abs((simple.population.beta - beta)[3:]).min() > 0.4  # without u, Newton steps double count too


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_cells_and_small_sigma_are_recovered(sigma):
    depth = 4
    beta = np.linspace(-0.8, 1.4, 3)[None, :] + np.linspace(0.0, 0.3, depth)[:, None]
    model = AcceptanceModel(depth, [cell_feature(3)])
    simulate(model, beta, sigma, sequences=48, steps=1500, life=40, seed=5)
    error = model.population.beta - beta
    assert math.sqrt(model.sigma2) == pytest.approx(sigma, abs=0.12)
    assert np.abs(error[:3]).max() < 0.25
    assert math.sqrt(np.mean(error[:3] ** 2)) < 0.12


def test_sigma_switches_off_where_evidence_explains_all_and_not_without_it():
    depth = 4
    beta = np.tile(np.array([[-1.2, 0.0, 1.2]]), (depth, 1))
    explained = AcceptanceModel(depth, [cell_feature(3)])
    simulate(explained, beta, 0.0, sequences=48, steps=800, life=40, seed=7, explain=1.2)
    blind = AcceptanceModel(depth)
    simulate(blind, beta, 0.0, sequences=48, steps=800, life=40, seed=7, explain=1.2)
    assert math.sqrt(explained.sigma2) < 0.15
    assert math.sqrt(blind.sigma2) > 0.7  # the cells' own spread is 0.98


def test_sigma_is_not_taken_in_by_a_wrong_start():
    # All sequences lie far below the prior: that is the population's error, no difference between them.
    model = AcceptanceModel(4)
    simulate(model, np.full((4, 1), -1.0), 0.0, sequences=64, steps=60, life=30, seed=1)
    assert math.sqrt(model.sigma2) < 0.35


def test_settled_within_fifty_steps_of_256_sequences():
    depth = 8
    beta = np.linspace(-0.5, 1.0, 4)[None, :] + np.linspace(0.0, 0.3, depth)[:, None]
    model = AcceptanceModel(depth, [cell_feature(4)])
    simulate(model, beta, 0.5, sequences=256, steps=50, life=1000, seed=2)
    model.add(256)
    row, cell = np.full(4, 256), np.arange(4)
    u = 0.5 * np.random.default_rng(0).standard_normal(5000)
    true = np.cumprod(logistic(beta[:, :, None] + u), axis=0).mean(axis=2).T
    assert np.abs(model.estimate(row, cell).mean() - true).max() < 0.08


def test_useful_within_a_few_dozen_tokens_of_one_sequence():
    rng = np.random.default_rng(0)
    gaps = []
    for true in (0.2, 0.9):
        for _ in range(20):
            model = AcceptanceModel(4)
            model.add(0)
            row, cell = np.array([0]), np.array([0])
            tokens = 0
            while tokens < 36:
                accepted = np.array([min(int(rng.geometric(1 - true)) - 1, 4)])
                model.observe(row, cell, np.array([4]), accepted)
                tokens += int(accepted[0]) + 1
            gaps.append(abs(model.estimate(row, cell).mean()[0, 0] - true))
    assert np.mean(gaps) < 0.13  # it began 0.65 too high for the first kind


def pinned(model, sigma2):
    """Hold sigma^2 by as much data for it as nothing can outweigh."""
    state = model.state()
    raw = sigma2 / (1 + math.pi / 8 * sigma2)
    state["effect"] = {"sigma2": sigma2, "products": raw * 1e12, "squares": 1e12}
    model.restore(state)
    return model


GRID = np.linspace(-9.0, 9.0, 2001)


@pytest.mark.parametrize(("sigma2", "prior"), [(0.25, 0.4), (0.5, 0.85), (0.5, 0.6), (1.0, 0.3), (1.0, 0.85)])
def test_survival_is_within_5_percent_of_exact_integration_over_u(sigma2, prior):
    # Levels and sigma^2 are held, so that the exact posterior of u given a sequence's whole past is known.
    depth, sequences, steps = 6, 150, 12
    rng = np.random.default_rng(11)
    model = pinned(AcceptanceModel(depth, prior=prior, prior_weight=1e12, forgetting=1.0), sigma2)
    beta = model.population.prior_beta
    for r in range(sequences):
        model.add(r)
    row, cell = np.arange(sequences), np.zeros(sequences, dtype=int)
    u = math.sqrt(sigma2) * rng.standard_normal(sequences)
    log_weight = np.tile(-(GRID**2) / (2 * sigma2), (sequences, 1))
    survival = np.cumprod(np.tile(logistic(beta + GRID), (depth, 1)), axis=0)
    worst = 0.0
    for _ in range(steps):
        weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
        exact = weight @ survival.T / weight.sum(axis=1, keepdims=True)
        worst = max(worst, float(np.abs(model.estimate(row, cell).mean() - exact).max()))
        verified = rng.integers(0, depth + 1, size=sequences)
        ok = rng.random((depth, sequences)) < logistic(beta + u)
        accepted = np.minimum(np.cumprod(ok, axis=0).sum(axis=0), verified)
        model.observe(row, cell, verified, accepted)
        failed = (accepted < verified)[:, None]
        log_weight += accepted[:, None] * np.log(logistic(beta + GRID)) + failed * np.log(logistic(-beta - GRID))
    assert worst < 0.05


@pytest.mark.parametrize("sigma2", [0.1, 1.0, 3.0])
def test_three_nodes_are_enough(sigma2):
    # A fresh sequence: the posterior is the prior, and only the quadrature can err.
    depth = 8
    for prior in (0.2, 0.5, 0.8, 0.95):
        model = pinned(AcceptanceModel(depth, prior=prior, prior_weight=1e12), sigma2)
        model.add(0)
        weight = np.exp(-(GRID**2) / (2 * sigma2))
        factors = np.tile(logistic(model.population.prior_beta + GRID), (depth, 1))
        exact = np.cumprod(factors, axis=0) @ weight / weight.sum()
        np.testing.assert_allclose(model.estimate(np.array([0]), np.array([0])).mean()[0], exact, rtol=0, atol=0.05)
