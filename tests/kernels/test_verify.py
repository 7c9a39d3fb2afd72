"""Verification on CPU equals its definition, at any raggedness, truncation, tie and bad logit."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.kernels import ops, reference

NO_DRAFT = torch.zeros(0, dtype=torch.int32)


def sampling(batch: int, **values) -> dict[str, torch.Tensor]:
    """The keyword arguments of verify_match: one value for all, or one for each."""
    dtypes = {
        "temperature": (torch.float32, 1.0),
        "top_k": (torch.int32, 0),
        "top_p": (torch.float32, 1.0),
        "seed": (torch.int64, 0),
        "sample_index": (torch.int64, 0),
        "position": (torch.int64, 0),
    }
    assert not set(values) - set(dtypes)
    read = {}
    for name, (dtype, default) in dtypes.items():
        value = torch.as_tensor(values.get(name, default), dtype=dtype)
        read[name] = value.expand(batch).contiguous()
    return read


def offsets(depth) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(np.asarray(depth) + 1)], dtype=torch.int32)


def one(logits, **values) -> int:
    """The token of a single row."""
    logits = torch.as_tensor(logits, dtype=torch.float32)[None]
    tokens, count = ops.verify_match(logits, offsets([0]), NO_DRAFT, 0, **sampling(1, **values))
    assert count.tolist() == [1]
    return int(tokens[0, 0])


def scores_of(logits, **values):
    return reference.match_scores(torch.as_tensor(logits, dtype=torch.float32), **values)


def near_tie(logits, temperature, top_k, top_p, **key) -> bool:
    """Whether the row's token could differ by rounding: the best two scores or an edge within 1e-4."""
    best = torch.topk(reference.match_scores(logits, temperature, top_k, top_p, **key), 2).values
    return float(best[0] - best[1]) < 1e-4 or reference.nucleus_edge(logits, temperature, top_k, top_p).near()


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch = draw(st.integers(1, 6))
    vocabulary = draw(st.sampled_from([1, 2, 7, 127, 128, 129, 600, 5000]))
    max_depth = draw(st.integers(0, 5))
    depth = rng.integers(0, max_depth + 1, batch)
    scale = draw(st.sampled_from([0.0, 0.3, 2.5, 15.0]))
    logits = torch.tensor(rng.normal(0, scale, (int(depth.sum()) + batch, vocabulary)), dtype=torch.float32)
    if draw(st.booleans()):
        logits = torch.round(logits)  # ties
    values = {
        "temperature": rng.choice([0.0, 0.5, 1.0, 1.7], batch),
        "top_k": rng.choice([-1, 0, 1, 3, 50, 1000, vocabulary, vocabulary + 1], batch),
        "top_p": rng.choice([1.0, 0.95, 0.5, 1e-6], batch),
        "seed": rng.integers(-(2**63), 2**63 - 1, batch),
        "sample_index": rng.integers(0, 3, batch),
        "position": rng.integers(0, 10000, batch),
    }
    return rng, depth, max_depth, logits, values


def row_tokens(logits, depth, values):
    """The reference's token of every row, and whether it is a near-tie."""
    tokens, near = [], []
    cu = offsets(depth).tolist()
    for b, (begin, end) in enumerate(pairwise(cu)):
        for r in range(begin, end):
            cut = (float(values["temperature"][b]), int(values["top_k"][b]), float(values["top_p"][b]))
            where = {
                "seed": int(values["seed"][b]),
                "sample_index": int(values["sample_index"][b]),
                "position": int(values["position"][b]) + r - begin,
            }
            scores = reference.match_scores(logits[r], *cut, **where)
            tokens.append(int(np.argmax(scores.numpy())))
            near.append(len(scores) > 1 and near_tie(logits[r], *cut, **where))
    return tokens, near


@given(problems())
@settings(max_examples=120, deadline=None)
def test_match_equals_the_reference(problem):
    rng, depth, max_depth, logits, values = problem
    cu = offsets(depth)
    tokens, near = row_tokens(logits, depth, values)
    rows = [r for b in range(len(depth)) for r in range(int(cu[b]), int(cu[b + 1]) - 1)]
    draft = torch.tensor([tokens[r] if rng.random() < 0.8 else rng.integers(-1, logits.shape[1]) for r in rows])
    draft = draft.to(torch.int32)
    arguments = (logits, cu, draft, max_depth)
    got, count = ops.verify_match(*arguments, **sampling(len(depth), **values))
    want, want_count = reference.verify_match(*arguments, **sampling(len(depth), **values))
    assert got.dtype == count.dtype == torch.int32
    assert got.shape == (len(depth), max_depth + 1)
    for b in range(len(depth)):
        if torch.equal(got[b], want[b]) and count[b] == want_count[b]:
            continue
        j = int((got[b] != want[b]).nonzero()[0])
        assert near[int(cu[b]) + j], (b, j, got[b], want[b])


@given(problems())
@settings(max_examples=80, deadline=None)
def test_greedy_equals_the_reference_and_match_at_temperature_0(problem):
    rng, depth, max_depth, logits, _ = problem
    cu = offsets(depth)
    best = np.argmax(logits.numpy(), axis=1)
    rows = [r for b in range(len(depth)) for r in range(int(cu[b]), int(cu[b + 1]) - 1)]
    draft = torch.tensor([best[r] if rng.random() < 0.8 else 0 for r in rows], dtype=torch.int32)
    got, count = ops.verify_greedy(logits, cu, draft, max_depth)
    want, want_count = reference.verify_greedy(logits, cu, draft, max_depth)
    assert torch.equal(got, want)
    assert torch.equal(count, want_count)
    cold, cold_count = ops.verify_match(logits, cu, draft, max_depth, **sampling(len(depth), temperature=0.0, top_k=1))
    assert torch.equal(got, cold)
    assert torch.equal(count, cold_count)
    # And by the letter of the definition.
    for b in range(len(depth)):
        begin, emitted = int(cu[b]), []
        for j in range(depth[b] + 1):
            emitted.append(int(best[begin + j]))
            if j == depth[b] or draft[begin - b + j] != best[begin + j]:
                break
        assert got[b].tolist() == emitted + [-1] * (max_depth + 1 - len(emitted))
        assert int(count[b]) == len(emitted)


def test_large_rows_equal_the_reference():
    """A real vocabulary, flat enough that the noise decides, peaked enough that tiles are skipped."""
    generator = torch.Generator().manual_seed(3)
    for scale in (0.2, 3.0, 10.0):  # the seeds are fixed: no row here is decided by rounding
        logits = torch.randn(8, 49152, generator=generator) * scale
        values = {
            "temperature": [1.0, 0.7, 1.3, 1.0, 0.7, 0.9, 1.0, 1.0],
            "top_k": [0, 50, 0, 50, 1, 1000, 20000, 0],
            "top_p": [1.0, 1.0, 0.9, 0.9, 1.0, 0.99, 1.0, 0.5],
            "seed": list(range(8)),
            "sample_index": [0] * 8,
            "position": [5] * 8,
        }
        got, _ = ops.verify_match(logits, offsets([0] * 8), NO_DRAFT, 0, **sampling(8, **values))
        want, _ = row_tokens(logits, [0] * 8, values)
        assert got[:, 0].tolist() == want


def test_the_tile_skip_is_exact_where_the_noise_decides():
    """Flat logits over many tiles: an unsound bound would lose winners."""
    rows = 300
    logits = torch.randn(rows, 4000, generator=torch.Generator().manual_seed(0)) * 0.3
    values = sampling(rows, seed=list(range(rows)))
    got, _ = ops.verify_match(logits, offsets([0] * rows), NO_DRAFT, 0, **values)
    want, _ = reference.verify_match(logits, offsets([0] * rows), NO_DRAFT, 0, **values)
    assert torch.equal(got, want)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5])
def test_top_k_keeps_ties_at_its_edge_together(top_k):
    logits = [1.0, 3.0, 2.0, 2.0, 2.0, 0.0]
    kept = {1: {1}, 2: {1, 2, 3, 4}, 3: {1, 2, 3, 4}, 4: {1, 2, 3, 4}, 5: {0, 1, 2, 3, 4}}[top_k]
    scores = scores_of(logits, temperature=1.0, top_k=top_k)
    assert set(np.flatnonzero(np.isfinite(scores.numpy())).tolist()) == kept
    assert {one(logits, top_k=top_k, seed=seed, temperature=3.0) for seed in range(200)} == kept
    assert reference.nucleus_edge(torch.tensor(logits), 1.0, top_k).near() == (top_k in (2, 3))


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (1e-9, {2}),
        (0.39, {2}),
        (0.41, {2, 0}),
        (0.69, {2, 0}),
        (0.71, {2, 0, 1, 4}),
        (0.99, {2, 0, 1, 4, 3}),
        (1.0, None),
    ],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, kept):
    p = [0.3, 0.1, 0.4, 0.08, 0.1, 0.02 - 1e-12, 1e-12]
    logits = torch.log(torch.tensor(p, dtype=torch.float64)).float()
    kept = kept or set(range(7))
    if top_p == 0.99:
        kept = kept | {5}  # .98 lies above token 5
    scores = reference.match_scores(logits, 1.0, 0, top_p)
    assert set(np.flatnonzero(np.isfinite(scores.numpy())).tolist()) == kept
    drawn = {one(logits, top_p=top_p, seed=seed) for seed in range(400)}
    assert drawn <= kept
    assert drawn >= kept - {6, 5}


def test_top_k_comes_before_top_p():
    # Of .4 .3 .2 .1, top-k 2 leaves 4/7 and 3/7: top-p .5 then keeps one token, where .5 of all would keep two.
    logits = torch.log(torch.tensor([0.2, 0.4, 0.1, 0.3]))
    both = reference.match_scores(logits, 1.0, 2, 0.5)
    assert np.isfinite(both.numpy()).tolist() == [False, True, False, False]
    assert np.isfinite(reference.match_scores(logits, 1.0, 0, 0.5).numpy()).sum() == 2
    assert {one(logits, top_k=2, top_p=0.5, seed=seed) for seed in range(200)} == {1}


def test_nucleus_edge_measures_both_edges():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)).float()
    edge = reference.nucleus_edge(logits, 1.0, 0, 0.79)
    assert edge.probability == pytest.approx(0.01, abs=1e-6)
    assert edge.logit == pytest.approx(math.log(0.3 / 0.15), abs=1e-5)
    edge = reference.nucleus_edge(logits, 1.0, 0, 0.51)
    assert edge.probability == pytest.approx(0.01, abs=1e-6)
    edge = reference.nucleus_edge(logits, 0.5, 3)
    assert edge == (math.inf, pytest.approx(2 * math.log(0.15 / 0.05), abs=1e-5))
    assert not edge.near()
    assert reference.nucleus_edge(logits, 1.0, 0, 0.8).near()
    assert reference.nucleus_edge(logits, 0.0, 2, 0.8) == (math.inf, math.inf)
    assert reference.nucleus_edge(logits, 1.0, 0, 1.0) == (math.inf, math.inf)


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.7}, {"top_k": 3, "top_p": 0.7}, {"temperature": 0.0}])
@pytest.mark.parametrize(
    ("logits", "allowed"),
    [
        ([NAN, 1.0, NAN, 0.0], {1, 3}),
        ([NAN] * 4, {0}),
        ([-INF] * 4, {0}),
        ([-INF, -INF, -2.0, NAN], {2}),
        ([0.0, INF, INF, NAN], {1}),
        ([3e38, -3e38, 0.0, 3e38], {0, 3}),
        ([-0.0, 0.0, -INF, -INF], {0, 1}),
    ],
)
def test_bad_logits_never_yield_a_token_that_may_not_be(logits, allowed, cut):
    for seed in range(20):
        token = one(logits, seed=seed, **cut)
        assert token in allowed
        scores = scores_of(logits, seed=seed, **{"temperature": 1.0, **cut})
        assert token == int(np.argmax(scores.numpy()))
    padded = [NAN] * 300 + list(logits) + [-INF] * 300
    token = one(padded, seed=1, **cut)
    assert token in ({t + 300 for t in allowed} if max(allowed) or logits[0] == 0 else {0})


def test_greedy_takes_the_lowest_of_equal_tokens():
    logits = torch.zeros(1, 1000)
    logits[0, [300, 700]] = 2.0
    assert ops.verify_greedy(logits, offsets([0]), NO_DRAFT, 0)[0].tolist() == [[300]]
    assert reference.verify_greedy(logits, offsets([0]), NO_DRAFT, 0)[0].tolist() == [[300]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_logits_count_as_their_float32_values(dtype):
    logits = (torch.randn(40, 500, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    arguments = (offsets([3] * 10), torch.zeros(30, dtype=torch.int32), 3)
    values = sampling(10, seed=list(range(10)), top_k=20)
    for half, full in zip(
        ops.verify_match(logits, *arguments, **values) + ops.verify_greedy(logits, *arguments),
        ops.verify_match(logits.float(), *arguments, **values) + ops.verify_greedy(logits.float(), *arguments),
        strict=True,
    ):
        assert torch.equal(half, full)


def test_rows_need_not_be_contiguous():
    wide = torch.randn(5, 400, generator=torch.Generator().manual_seed(1))
    strided = wide[:, ::2]
    got = ops.verify_match(strided, offsets([0] * 5), NO_DRAFT, 0, **sampling(5))
    want = ops.verify_match(strided.contiguous(), offsets([0] * 5), NO_DRAFT, 0, **sampling(5))
    assert torch.equal(got[0], want[0])


def test_an_empty_batch_is_empty():
    tokens, count = ops.verify_match(torch.zeros(0, 9), offsets([]), NO_DRAFT, 4, **sampling(0))
    assert tokens.shape == (0, 5)
    assert count.shape == (0,)
    assert ops.verify_greedy(torch.zeros(0, 9), offsets([]), NO_DRAFT, 4)[0].shape == (0, 5)


def test_logits_are_left_alone():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    ops.verify_match(logits, offsets([3]), torch.zeros(3, dtype=torch.int32), 3, **sampling(1, top_k=5, top_p=0.9))
    assert torch.equal(logits, before)


GOOD = {"logits": torch.zeros(5, 7), "cu": offsets([2, 1]), "draft": torch.zeros(3, dtype=torch.int32), "max_depth": 2}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("logits", torch.zeros(5), "logits must have the shape"),
        ("logits", torch.zeros(5, 0), "logits must have the shape"),
        ("logits", torch.zeros(5, 7, dtype=torch.float64), "logits must be float32"),
        ("logits", torch.zeros(6, 7), "draft must have the shape"),
        ("logits", torch.zeros(1, 7), "logits has 1 rows for 2 sequences"),
        ("cu", torch.tensor([0, 3, 5]), "cu must be torch.int32"),
        ("cu", torch.tensor([[0, 3, 5]], dtype=torch.int32), "cu must have the shape"),
        ("cu", torch.tensor([1, 3, 5], dtype=torch.int32), "cu must run from 0 to the 5 rows"),
        ("cu", torch.tensor([0, 3, 4], dtype=torch.int32), "cu must run from 0 to the 5 rows"),
        ("cu", torch.tensor([0, 5, 5], dtype=torch.int32), "sequence 1 has 0 rows"),
        ("cu", torch.tensor([0, 6, 5], dtype=torch.int32), "sequence 1 has -1 rows"),
        ("cu", torch.tensor([0, 4, 5], dtype=torch.int32), "max_depth 2 allows 3"),
        ("draft", torch.zeros(3), "draft must be torch.int32"),
        ("draft", torch.zeros(4, dtype=torch.int32), "draft must have the shape [3]"),
        ("max_depth", -1, "max_depth must be 0 or more"),
        ("temperature", torch.ones(3), "temperature must have the shape [2]"),
        ("temperature", torch.ones(2, dtype=torch.float64), "temperature must be torch.float32"),
        ("top_k", torch.ones(2, dtype=torch.int64), "top_k must be torch.int32"),
        ("top_p", torch.ones(2, 1), "top_p must have the shape [2]"),
        ("seed", torch.ones(2, dtype=torch.int32), "seed must be torch.int64"),
        ("sample_index", torch.ones(1, dtype=torch.int64), "sample_index must have the shape [2]"),
        ("position", torch.ones(2), "position must be torch.int64"),
    ],
)
def test_bad_arguments_are_named(name, value, message):
    arguments = {**GOOD, **sampling(2)}
    ops.verify_match(**arguments)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        ops.verify_match(**{**arguments, name: value})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    if name in GOOD:
        with pytest.raises(ValueError) as error:  # noqa: PT011
            ops.verify_greedy(**{**GOOD, name: value})
        assert message in str(error.value)
