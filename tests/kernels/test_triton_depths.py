"""Allocation and statistics on the device equal the core's."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.allocate import allocate as core_allocate
from adaptive_spec.kernels import backend, ops, reference_accept_stats


def staircase(slots: int, rng: np.random.Generator) -> np.ndarray:
    """Seconds with steps, dips and a cliff."""
    n = np.arange(slots + 1)
    seconds = 5e-3 + 2e-5 * n + 4e-4 * (n // 8) - 3e-4 * (n % 16 == 0) + rng.random(slots + 1) * 1e-4
    return seconds + 8e-3 * (n > slots // 2)


def step(seed: int, batch: int, depths: int, draft: str):
    rng = np.random.default_rng(seed)
    survival = np.cumprod(rng.uniform(0.2, 0.98, (batch, depths)), axis=1).astype(np.float32)
    if batch > 3:
        survival[2] = survival[1]  # ties
        survival[3] = 1.0
    weight = rng.choice([1.0, 1.0, 2.5, 0.0], batch).astype(np.float32)
    limit = rng.integers(-1, depths + 3, batch).astype(np.int32)
    verify = staircase(batch * depths, rng).astype(np.float32)
    d = np.arange(depths + 1)
    seconds = {
        "free": np.zeros(depths + 1),
        "rising": 1e-3 * d,
        "dipping": 1e-3 * (d % 3) + 2e-4 * d,
        "per pass": np.where(d > 0, 2e-3 + 3e-4 * d, 1e-3),
    }[draft]
    return survival, weight, limit, float(weight.sum() + 1), verify, seconds.astype(np.float32)


def objective(depth, survival, weight, base, verify, draft, price):
    """Of depths, by the letter, in float64; the drafter may be asked for more than is used."""
    tokens = base + sum(
        float(weight[b]) * float(survival[b, : depth[b]].astype(np.float64).sum()) for b in range(len(depth))
    )
    deepest = int(depth.max(initial=0))
    seconds = float(verify[int(depth.sum())]) + float(draft[deepest:].min())
    return tokens / seconds if price is None else tokens - price * seconds


@pytest.mark.parametrize("price", [None, 900.0])
@pytest.mark.parametrize("draft", ["free", "rising", "dipping", "per pass"])
@pytest.mark.parametrize(("batch", "depths"), [(1, 1), (1, 8), (7, 5), (40, 16)])
def test_allocation_reaches_the_cores_objective(device, batch, depths, draft, price):
    from adaptive_spec.kernels import allocate

    for seed in range(2):
        values = step(seed * 31 + batch, batch, depths, draft)
        survival, weight, limit, base, verify, seconds = values
        got = allocate.allocate(
            *(torch.from_numpy(x).to(device) for x in (survival, weight, limit)),
            base,
            torch.from_numpy(verify).to(device),
            torch.from_numpy(seconds).to(device),
            price=price,
        )
        wide = survival.astype(np.float64)
        want = core_allocate(
            wide,
            weight.astype(np.float64),
            np.maximum(limit, 0).astype(np.int64),
            base,
            verify.astype(np.float64),
            seconds.astype(np.float64),
            price=price,
        )
        depth = got.depth.cpu().numpy()
        assert (depth >= 0).all()
        assert (depth <= np.clip(limit, 0, depths)).all()
        best = objective(want.depth, wide, weight, base, verify, seconds, price)
        reached = objective(depth, wide, weight, base, verify, seconds, price)
        # Worth and price may all but cancel: then both are right to a millionth of what they are made of.
        near = {"rel": 1e-6} if price is None else {"abs": 1e-6 * (base + batch * depths)}
        assert reached == pytest.approx(best, **near)
        assert float(got.objective) == pytest.approx(reached, **near)
        assert got.cu.tolist() == [0, *np.cumsum(depth + 1)]
        asked = int(got.draft_depth)
        assert asked >= depth.max(initial=0)
        assert seconds[asked] == seconds[int(depth.max(initial=0)) :].min()
        if np.array_equal(depth, want.depth):
            assert asked == want.draft_depth


def test_every_plateau_takes_ties_in_the_cores_order(device):
    """A step in the curve after n slots makes n the choice: among equal slots which ones is the rule's."""
    from adaptive_spec.kernels import allocate

    survival = np.array([[0.9, 0.9, 0.5, 0.5]] * 5, dtype=np.float32)
    limit = np.array([4, 2, 4, 0, 3], dtype=np.int32)
    for n in range(int(limit.sum()) + 1):
        verify = np.where(np.arange(21) <= n, 1.0, 100.0).astype(np.float32)
        got = allocate.allocate(
            torch.from_numpy(survival).to(device),
            torch.ones(5, device=device),
            torch.from_numpy(limit).to(device),
            5.0,
            torch.from_numpy(verify).to(device),
            torch.zeros(5, device=device),
        )
        want = core_allocate(
            survival.astype(np.float64), np.ones(5), limit.astype(np.int64), 5.0, verify.astype(float), np.zeros(5)
        )
        assert got.depth.tolist() == want.depth.tolist()
        assert int(got.depth.sum()) == n


def test_a_large_step(device):
    from adaptive_spec.kernels import allocate

    survival, weight, limit, base, verify, seconds = step(5, 256, 16, "rising")
    got = allocate.allocate(
        *(torch.from_numpy(x).to(device) for x in (survival, weight, limit)),
        base,
        torch.from_numpy(verify).to(device),
        torch.from_numpy(seconds).to(device),
    )
    with backend.use("cpu"):
        want = ops.allocate(
            *(torch.from_numpy(x) for x in (survival, weight, limit)),
            base,
            torch.from_numpy(verify),
            torch.from_numpy(seconds),
        )
    assert float(got.objective) == pytest.approx(float(want.objective), rel=1e-6)


def test_nan_survival_buys_nothing(device):
    from adaptive_spec.kernels import allocate

    survival = torch.tensor([[0.9, 0.8], [float("nan"), float("nan")]], device=device)
    ones = torch.ones(2, device=device)
    costs = torch.linspace(1.0, 1.1, 5, device=device)
    limit = torch.full((2,), 2, dtype=torch.int32, device=device)
    got = allocate.allocate(survival, ones, limit, 2.0, costs, torch.zeros(3, device=device))
    assert got.depth.tolist() == [2, 0]


def taught(effect: bool, seed: int, batch: int, depths: int = 6):
    """A model that has seen some steps, and the next step's rows, cells and counts."""
    rng = np.random.default_rng(seed)
    model = AcceptanceModel(depths, ("matched_length",), sequence_effect=effect, capacity=batch)
    for row in range(batch):
        model.add(row)
    rows = np.arange(batch)
    for _ in range(12):
        cell = model.cells(rng.integers(0, 20, (batch, 1)).astype(np.float64))
        verified = rng.integers(0, depths + 1, batch)
        accepted = np.minimum(rng.geometric(0.4, batch) - 1, verified)
        model.observe(rows, cell, verified, accepted)
    return model, rows, cell, verified, accepted


def test_survival_is_the_models(device):
    from adaptive_spec.kernels import accept_stats

    for effect in (True, False):
        model, rows, cell, *_ = taught(effect, 1, 37)
        want = model.estimate(rows, cell).mean()
        odds = torch.from_numpy(model.population.odds_against).float()
        pair = []
        if model.effect is not None:
            pair = [torch.from_numpy(x).float() for x in model.effect.posterior(rows)]
        arguments = [odds, torch.from_numpy(cell).int(), *pair]
        kernel = accept_stats.survival(*(x.to(device) for x in arguments)).cpu()
        for got in (kernel, reference_accept_stats.survival(*arguments), ops.survival(*arguments)):
            np.testing.assert_allclose(got.numpy(), want, rtol=2e-5)
            assert bool((got[:, 1:] <= got[:, :-1]).all())


def test_survival_has_a_floor(device):
    from adaptive_spec.kernels import accept_stats

    odds = torch.full((8, 1), 1e3)
    cell = torch.zeros(3, dtype=torch.int32)
    got = accept_stats.survival(odds.to(device), cell.to(device)).cpu()
    assert float(got.min()) == pytest.approx(1e-9)
    assert float(reference_accept_stats.survival(odds, cell).min()) == pytest.approx(1e-9)


@pytest.mark.parametrize("effect", [True, False])
@pytest.mark.parametrize("batch", [2, 100])
def test_what_is_learned_from_the_sums_is_what_the_model_learns(device, effect, batch):
    from adaptive_spec.kernels import accept_stats

    model, rows, cell, verified, accepted = taught(effect, batch, batch)
    odds = torch.from_numpy(model.population.odds_against.copy()).float()
    arguments = [torch.from_numpy(x).int() for x in (cell, verified, accepted)]
    mean, precision, relaxed, sigma2 = None, None, [], 1.0
    if model.effect is not None:
        mean, precision = model.effect.relax(rows)
        relaxed, sigma2 = [torch.from_numpy(x.copy()).float() for x in (mean, precision)], model.effect.sigma2
    before = copy.deepcopy(model)
    model.observe(rows, cell, verified, accepted)
    kernel = accept_stats.accept_stats(
        odds.to(device), *(x.to(device) for x in arguments), *(x.to(device) for x in relaxed), sigma2=sigma2
    )
    judged = np.zeros(odds.shape, dtype=np.int64)
    for e, v, a in zip(cell, verified, accepted, strict=True):
        judged[: min(a + 1, v), e] += 1
    for sums in (kernel, ops.accept_stats(odds, *arguments, *relaxed, sigma2=sigma2)):
        got = type(sums)(*(x.cpu() for x in sums))
        assert np.array_equal(got.judged.numpy(), judged)
        other = copy.deepcopy(before)
        tables = (x.double().numpy()[None] for x in (got.gradient, got.information))
        other.population.observe_sums(1, judged[None], *tables)
        for name in ("beta", "curvature", "seen"):
            want = getattr(model.population, name)
            np.testing.assert_allclose(getattr(other.population, name), want, rtol=1e-4, atol=2e-6)
        if model.effect is not None:
            gradient, information = (x.double().numpy() for x in (got.sequence_gradient, got.sequence_information))
            moved = gradient[:, 0] / (information[:, 0] + precision) + mean
            other.effect.settle(rows, (mean, precision), moved, gradient[:, 1], information[:, 1])
            np.testing.assert_allclose(other.effect.offset, model.effect.offset, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(other.effect.precision, model.effect.precision, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"survival": torch.ones(2)}, "survival must have the shape"),
        ({"survival": torch.ones(2, 3, dtype=torch.float64)}, "survival must be torch.float32"),
        ({"weight": torch.ones(3)}, "weight must have the shape [2]"),
        ({"limit": torch.ones(2)}, "limit must be torch.int32"),
        ({"verify_seconds": torch.ones(6)}, "verify_seconds must have at least 7 entries"),
        ({"draft_seconds": torch.ones(3)}, "draft_seconds must have at least 4 entries"),
    ],
)
def test_bad_allocations_are_named(change, message):
    good = {
        "survival": torch.full((2, 3), 0.5),
        "weight": torch.ones(2),
        "limit": torch.full((2,), 3, dtype=torch.int32),
        "base_tokens": 2.0,
        "verify_seconds": torch.ones(7),
        "draft_seconds": torch.zeros(4),
    }
    assert ops.allocate(**good).depth.tolist() == [3, 3]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        ops.allocate(**{**good, **change})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"odds_against": torch.ones(3)}, "odds_against must have the shape"),
        ({"cell": torch.tensor([0, 4], dtype=torch.int32)}, "cell must be 0 to 3, not 0 to 4"),
        ({"cell": torch.tensor([0, 1])}, "cell must be torch.int32"),
        ({"verified": torch.tensor([4, 1], dtype=torch.int32)}, "verified must be at most 3"),
        ({"accepted": torch.tensor([3, 1], dtype=torch.int32)}, "accepted must lie between 0 and verified"),
        ({"accepted": torch.tensor([1], dtype=torch.int32)}, "accepted must have the shape [2]"),
        ({"mean": torch.zeros(2)}, "precision is missing"),
        ({"mean": torch.zeros(3), "precision": torch.ones(2)}, "mean must have the shape [2]"),
    ],
)
def test_bad_statistics_are_named(change, message):
    good = {
        "odds_against": torch.ones(3, 4),
        "cell": torch.tensor([0, 3], dtype=torch.int32),
        "verified": torch.tensor([2, 1], dtype=torch.int32),
        "accepted": torch.tensor([1, 1], dtype=torch.int32),
    }
    assert int(ops.accept_stats(**good).judged.sum()) == 3
    with pytest.raises(ValueError) as error:  # noqa: PT011
        ops.accept_stats(**{**good, **change})
    assert message in str(error.value)
