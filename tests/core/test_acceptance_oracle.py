"""The vectorised acceptance model against one that is written out observation by observation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adaptive_spec.acceptance import AcceptanceModel, EvidenceFeature

NODES = ((math.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (-math.sqrt(3.0), 1 / 6))


def logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


class PlainModel:
    """Section by section what AcceptanceModel says it does, in loops over single observations."""

    def __init__(self, depth, bins, prior, weight, half_life, rho, forgetting):
        self.depth, self.bins, self.rho, self.forgetting, self.half_life = depth, bins, rho, forgetting, half_life
        self.cells = math.prod(bins)
        self.b0 = math.log(prior / (1 - prior))
        self.h0 = weight * prior * (1 - prior)
        self.lean = self.h0 * (0.5 if self.cells > 1 else 1.0)
        keys = [(k, c) for k in range(depth) for c in range(self.cells)]
        self.beta = dict.fromkeys(keys, self.b0)
        self.curvature = dict.fromkeys(keys, 0.0)
        self.anchor = dict.fromkeys(keys, self.b0)
        self.seen = dict.fromkeys(keys, 0)
        self.step = self.swept = 0
        self.sigma2, self.products, self.squares = 0.5, 0.0, 0.0
        self.sequences = {}

    def add(self, row):
        self.sequences[row] = {"u": 0.0, "precision": 1 / self.sigma2, "residual": 0.0, "information": 0.0}

    def coarse(self, cell):
        return cell // (self.cells // self.bins[0]) if self.bins else 0

    def estimate(self, row, cell):
        sequence = self.sequences[row]
        sd = 1 / math.sqrt(max(sequence["precision"], 1 / self.sigma2))
        survival = [0.0] * self.depth
        for node, weight in NODES:
            product = 1.0
            for k in range(self.depth):
                product *= logistic(self.beta[k, cell] + sequence["u"] + node * sd)
                survival[k] += weight * product
        return survival

    def observe(self, rows, cells, verified, accepted):
        self.step += 1
        gradients, informations, counts = {}, {}, {}
        first_moments = []
        anything = any(v for v in verified)
        for row, cell, v, a in zip(rows, cells, verified, accepted, strict=True):
            sequence = self.sequences[row]
            kept = self.forgetting * max(sequence["precision"], 1 / self.sigma2)
            precision = kept + (1 - self.forgetting) / self.sigma2
            mean = sequence["u"] * kept / precision
            drafts = [(k, 1.0 if k < a else 0.0) for k in range(min(v, a + 1))]
            residual = information = 0.0
            for k, y in drafts:
                q = logistic(self.beta[k, cell] + mean)
                residual += y - q
                information += q * (1 - q)
            first_moments.append((row, residual + information * mean, information))
            laplace = precision + information
            offset = mean + residual / laplace
            spread = 1 / math.sqrt(laplace)
            residual = curvature = 0.0
            terms = []
            for k, y in drafts:
                qs = [(logistic(self.beta[k, cell] + offset + node * spread), w) for node, w in NODES]
                q = sum(w * x for x, w in qs)
                residual += y - q
                curvature += q - sum(w * x * x for x, w in qs)
                key = (k, cell)
                gradients[key] = gradients.get(key, 0.0) + y - q
                terms.append((key, q * (1 - q)))
                counts[key] = counts.get(key, 0) + 1
            offset += (residual - precision * (offset - mean)) / (precision + curvature)
            sequence["u"] = min(max(offset, -4.0), 4.0)
            sequence["precision"] = precision + curvature
            share = 0.25 + 0.75 / (sequence["precision"] * self.sigma2)
            for key, h in terms:
                informations[key] = informations.get(key, 0.0) + share * h
        if anything:
            self.learn_variance(first_moments)
        self.newton(gradients, informations, counts)
        if self.step - self.swept >= min(16, 1 + self.step // 8):
            self.sweep()

    def learn_variance(self, moments):
        n, total = len(moments), sum(h for _, _, h in moments)
        common = sum(r for _, r, _ in moments) / total * (1 - 1 / n)
        discount = 0.5 ** (1 / (0.5 * self.half_life))
        self.products *= discount
        self.squares *= discount
        for row, residual, information in moments:
            sequence = self.sequences[row]
            residual -= common * information
            self.products += residual * sequence["residual"]
            self.squares += information * sequence["information"]
            sequence["residual"] = self.forgetting * (sequence["residual"] + residual)
            sequence["information"] = self.forgetting * (sequence["information"] + information)
        estimate = (self.products + 10.0 * 0.5) / (self.squares + 10.0)
        estimate = min(max(estimate, 1e-4), 1.5)
        self.sigma2 = estimate / (1 - math.pi / 8 * estimate)

    def newton(self, gradients, informations, counts):
        for key, n in counts.items():
            weight = 1 / (1 + (n - 1) * self.rho)
            gradient, information = weight * gradients[key], weight * informations[key]
            halfway = logistic(self.beta[key]) + gradient / (2 * n * weight)
            braking = max(information, n * weight * halfway * (1 - halfway))
            beta = self.beta[key] + gradient / (self.curvature[key] + self.lean + braking)
            self.beta[key] = min(max(beta, -6.0), 6.0)
            self.curvature[key] += information
            self.seen[key] = self.step

    def sweep(self):
        data, fade = {}, {}
        passed = (self.step - self.swept) / self.half_life
        for key in self.beta:
            idle = (self.step - self.seen[key]) / self.half_life
            keep = 2 ** (max(idle - passed, 0.0) ** 2 - idle**2 - passed)
            data[key] = keep * ((self.curvature[key] + self.lean) * self.beta[key] - self.lean * self.anchor[key])
            self.curvature[key] *= keep
            fade[key] = 2 ** -(idle**2)
        for k in range(self.depth):
            for cell in range(self.cells if self.cells > 1 else 0):
                pooled = (self.h0 * self.b0 + sum(data[k, c] for c in range(self.cells))) / (
                    self.h0 + sum(self.curvature[k, c] for c in range(self.cells))
                )
                if len(self.bins) > 1:
                    family = [c for c in range(self.cells) if self.coarse(c) == self.coarse(cell)]
                    pooled = (self.h0 * pooled + sum(data[k, c] for c in family)) / (
                        self.h0 + sum(self.curvature[k, c] for c in family)
                    )
                self.anchor[k, cell] = self.b0 + fade[k, cell] * (pooled - self.b0)
        for key in self.beta:
            beta = (data[key] + self.lean * self.anchor[key]) / (self.curvature[key] + self.lean)
            self.beta[key] = min(max(beta, -6.0), 6.0)
        self.swept = self.step


@pytest.mark.parametrize(
    ("sequences", "edges", "half_life"),
    [(1, (), 2000.0), (1, ((1.0, 2.0), (0.0,)), 30.0), (7, ((1.0,),), 2000.0), (12, ((1.0, 2.0), (0.0,)), 40.0)],
)
def test_vectorised_update_equals_the_plain_one(sequences, edges, half_life):
    depth = 4
    rng = np.random.default_rng(sequences)
    features = [EvidenceFeature(f"f{i}", e) for i, e in enumerate(edges)]
    model = AcceptanceModel(depth, features, half_life_steps=half_life, capacity=2)
    plain = PlainModel(depth, [f.bins for f in features], 0.85, 20.0, half_life, 0.05, 0.95)
    for row in range(sequences):
        model.add(row)
        plain.add(row)
    for step in range(90):
        if step % 7 == 3:
            model.remove(0)
            model.add(0)
            plain.add(0)
        row = rng.permutation(sequences)[: rng.integers(1, sequences + 1)]
        evidence = rng.integers(0, 4, size=(len(row), len(features))) - 0.5
        cell = model.cells(evidence)
        verified = rng.integers(0, depth + 1, len(row)) * (step % 5 > 0)  # every fifth step drafts nothing
        accepted = np.minimum(rng.geometric(0.35, len(row)) - 1, verified)
        expected = [plain.estimate(int(r), int(c)) for r, c in zip(row, cell, strict=True)]
        np.testing.assert_allclose(model.estimate(row, cell).mean(), expected, rtol=0, atol=1e-10)
        model.observe(row, cell, verified, accepted)
        plain.observe(*(x.tolist() for x in (row, cell, verified, accepted)))
        beta = [[plain.beta[k, c] for c in range(plain.cells)] for k in range(depth)]
        np.testing.assert_allclose(model.population.beta, beta, rtol=0, atol=1e-10)
        assert model.sigma2 == pytest.approx(plain.sigma2, abs=1e-10)
    u = [plain.sequences[r]["u"] for r in range(sequences)]
    np.testing.assert_allclose(model.effect.offset[:sequences], u, rtol=0, atol=1e-10)
    sd = [[1 / math.sqrt(plain.curvature[k, c] + plain.lean) for c in range(plain.cells)] for k in range(depth)]
    np.testing.assert_allclose(model.population.sd(), sd, rtol=0, atol=1e-10)
    assert np.abs(model.population.beta - model.population.prior_beta).max() > 0.5  # something was learned
