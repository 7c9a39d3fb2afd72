"""Verification in Triton equals its definition: tokens, counts, ties, truncation, bad logits, any tiling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ragged_batches import on, ragged

pytest.importorskip("triton")

from adaptive_spec.kernels import backend, launch, ops, ratio, reference, truncation, verify

NO_DRAFT = torch.zeros(0, dtype=torch.int32)


@pytest.fixture
def tiles(monkeypatch):
    """Sets how rows are cut, so that splits, tails and skipped tiles are met in small rows too."""

    def set_tiles(block: int, splits: int) -> None:
        def tiling(rows, vocabulary, device, most=0):
            each = math.ceil(math.ceil(vocabulary / block) / splits)
            return launch.Tiling(block, math.ceil(math.ceil(vocabulary / block) / each), each)

        monkeypatch.setattr(launch, "tiling", tiling)

    return set_tiles


def same(got, want) -> bool:
    return all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))


def near_tie(problem, b: int, j: int) -> bool:
    """Whether rounding could change the token of sequence b's row j."""
    row = problem.logits[int(problem.cu[b]) + j]
    cut = [problem.sampling[name][b].item() for name in ("temperature", "top_k", "top_p")]
    key = {name: problem.sampling[name][b].item() for name in ("seed", "sample_index", "position")}
    key["position"] += j
    best = torch.topk(reference.match_scores(row, *cut, **key), 2).values
    return float(best[0] - best[1]) < 1e-4 or reference.nucleus_edge(row, *cut).near()


def assert_matches(got, want, problem) -> None:
    for b in range(len(problem.depth)):
        if not torch.equal(got[0][b].cpu(), want[0][b]):
            j = int((got[0][b].cpu() != want[0][b]).nonzero()[0])
            assert near_tie(problem, b, j), (b, j, got[0][b], want[0][b])
        else:
            assert got[1][b] == want[1][b]


@pytest.mark.parametrize(("vocabulary", "block", "splits"), [(1, 16, 1), (97, 128, 1), (1000, 128, 2), (1030, 64, 32)])
def test_greedy(device, tiles, vocabulary, block, splits):
    tiles(block, splits)
    problem = ragged(vocabulary, 7, 4, vocabulary)
    problem.logits = torch.round(problem.logits)  # ties
    arguments = (problem.logits, problem.cu, problem.draft)
    got = verify.verify_greedy(*(x.to(device) for x in arguments), problem.max_depth)
    assert same(got, reference.verify_greedy(*arguments, problem.max_depth))


@pytest.mark.parametrize(
    ("seed", "vocabulary", "block", "splits"),
    [(0, 97, 128, 1), (1, 1000, 1024, 1), (2, 1000, 256, 2), (3, 700, 64, 4), (4, 1, 16, 1)],
)
def test_match(device, tiles, seed, vocabulary, block, splits):
    tiles(block, splits)
    problem = ragged(seed, 8, 3, vocabulary)
    arguments = (problem.logits, problem.cu, problem.draft)
    got = verify.verify_match(*(x.to(device) for x in arguments), 3, **on(device, problem.sampling))
    assert_matches(got, reference.verify_match(*arguments, 3, **problem.sampling), problem)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_real_vocabulary_and_the_numba_backend(device, dtype):
    problem = ragged(5, 6, 4, 49152, dtype=dtype)
    arguments = (problem.logits, problem.cu, problem.draft)
    got = verify.verify_match(*(x.to(device) for x in arguments), 4, **on(device, problem.sampling))
    assert_matches(got, ops.verify_match(*arguments, 4, **problem.sampling), problem)
    got = verify.verify_greedy(*(x.to(device) for x in arguments), 4)
    assert same(got, ops.verify_greedy(*arguments, 4))


def test_match_without_truncation_is_the_same_token_for_token(device, tiles):
    """Nothing but the noise decides: no row may differ at all."""
    tiles(128, 2)
    problem = ragged(11, 10, 3, 500, scale=0.5, truncated=False)
    arguments = (problem.logits, problem.cu, problem.draft)
    got = verify.verify_match(*(x.to(device) for x in arguments), 3, **on(device, problem.sampling))
    assert same(got, ops.verify_match(*arguments, 3, **problem.sampling))


def test_the_tile_skip_is_exact_where_the_noise_decides(device, tiles):
    """Flat logits over many tiles of one program: an unsound bound would lose winners."""
    tiles(64, 1)
    rows = 20
    logits = torch.randn(rows, 4000, generator=torch.Generator().manual_seed(0)) * 0.3
    cu = torch.arange(rows + 1, dtype=torch.int32)
    words = torch.arange(rows)
    sampling = {
        "temperature": torch.ones(rows),
        "top_k": torch.zeros(rows, dtype=torch.int32),
        "top_p": torch.ones(rows),
        "seed": words,
        "sample_index": words * 0,
        "position": words,
    }
    got = verify.verify_match(logits.to(device), cu.to(device), NO_DRAFT.to(device), 0, **on(device, sampling))
    assert same(got, ops.verify_match(logits, cu, NO_DRAFT, 0, **sampling))


def thresholds(device, logits, temperature, top_k, top_p):
    rows = len(logits)
    return truncation.thresholds(
        logits.to(device),
        torch.arange(rows + 1, dtype=torch.int32, device=device),
        torch.full((rows,), temperature, device=device),
        torch.full((rows,), top_k, dtype=torch.int32, device=device),
        torch.full((rows,), top_p, device=device),
        1,
    ).cpu()


@pytest.mark.parametrize("block", [1024, 64])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(5, 1.0), (64, 1.0), (300, 1.0), (0, 0.9), (0, 0.3), (40, 0.8), (500, 0.99)]
)
def test_the_threshold_keeps_what_the_definition_keeps(device, tiles, block, top_k, top_p):
    """With a block of 64 more tokens than that lie above the bound: the row itself is bisected."""
    tiles(block, 1)
    logits = torch.randn(3, 900, generator=torch.Generator().manual_seed(top_k)) * torch.tensor([[0.1], [1.0], [4.0]])
    logits[:, 17] = math.nan
    logits[:, 19] = -math.inf
    got = thresholds(device, logits, 0.8, top_k, top_p)
    for row, threshold in zip(logits, got, strict=True):
        scores = reference.match_scores(row, 0.8, top_k, top_p)
        kept = reference._scaled(row, 0.8) >= threshold
        finite = torch.isfinite(reference._scaled(row, 0.8))
        assert (
            torch.equal(kept & finite, torch.isfinite(scores)) or reference.nucleus_edge(row, 0.8, top_k, top_p).near()
        )


@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5])
def test_top_k_keeps_ties_at_its_edge_together(device, top_k):
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    want = {1: 3.0, 2: 2.0, 3: 2.0, 4: 2.0, 5: 1.0}[top_k]
    assert thresholds(device, logits, 1.0, top_k, 1.0).tolist() == [want]


NAN, INF = math.nan, math.inf
BAD_ROWS = [
    ([NAN, 1.0, NAN, 0.0], {1, 3}),
    ([NAN] * 4, {0}),
    ([-INF] * 4, {0}),
    ([-INF, -INF, -2.0, NAN], {2}),
    ([0.0, INF, INF, NAN], {1}),
    ([3e38, -3e38, 0.0, 3e38], {0, 3}),
    ([-0.0, 0.0, -INF, -INF], {0, 1}),
]


@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.7}, {"top_k": 3, "top_p": 0.7}, {"temperature": 0.0}])
def test_bad_logits_never_yield_a_token_that_may_not_be(device, cut):
    rows = len(BAD_ROWS)
    logits = torch.tensor([row for row, _ in BAD_ROWS])
    cu = torch.arange(rows + 1, dtype=torch.int32)
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **cut}
    for seed in range(4):
        sampling = {
            "temperature": torch.full((rows,), values["temperature"]),
            "top_k": torch.full((rows,), values["top_k"], dtype=torch.int32),
            "top_p": torch.full((rows,), values["top_p"]),
            "seed": torch.full((rows,), seed),
            "sample_index": torch.zeros(rows, dtype=torch.int64),
            "position": torch.zeros(rows, dtype=torch.int64),
        }
        got = verify.verify_match(logits.to(device), cu.to(device), NO_DRAFT.to(device), 0, **on(device, sampling))
        assert same(got, reference.verify_match(logits, cu, NO_DRAFT, 0, **sampling))
        for token, (_, allowed) in zip(got[0][:, 0].tolist(), BAD_ROWS, strict=True):
            assert token in allowed
        arguments = (logits.to(device), cu.to(device), NO_DRAFT.to(device), 0)
        tokens, _ = ratio.verify_ratio(*arguments, draft_logits=logits[:0].to(device), **on(device, sampling))
        for token, (row, allowed) in zip(tokens[:, 0].tolist(), BAD_ROWS, strict=True):
            assert token in (allowed if INF not in row else {1, 2})


def test_strided_and_odd_rows(device):
    wide = torch.randn(5, 401, generator=torch.Generator().manual_seed(1))
    cu = torch.arange(6, dtype=torch.int32)
    for logits in (wide[:, ::2], wide[:, 1:300]):
        got = verify.verify_greedy(logits.to(device), cu.to(device), NO_DRAFT.to(device), 0)
        assert same(got, reference.verify_greedy(logits, cu, NO_DRAFT, 0))


def test_an_empty_batch_is_empty(device):
    arguments = (
        torch.zeros(0, 9, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        NO_DRAFT.to(device),
    )
    sampling = on(device, {name: value[:0] for name, value in ragged(0, 1, 1, 9).sampling.items()})
    assert verify.verify_greedy(*arguments, 4)[0].shape == (0, 5)
    assert verify.verify_match(*arguments, 4, **sampling)[0].shape == (0, 5)
    assert ratio.verify_ratio(*arguments, 4, draft_logits=torch.zeros(0, 9, device=device), **sampling)[0].shape == (
        0,
        5,
    )


def test_the_front_door_leads_to_triton_when_told(device, monkeypatch):
    problem = ragged(3, 3, 2, 64)
    called = []
    monkeypatch.setattr(verify, "verify_greedy", lambda *arguments: called.append(arguments))
    with backend.use("triton"):
        ops.verify_greedy(problem.logits.to(device), problem.cu.to(device), problem.draft.to(device), 2)
    assert len(called) == 1
    assert backend.backend_of(problem.logits) == "cpu"
    with pytest.raises(ValueError, match="no backend 'cuda'"), backend.use("cuda"):
        pass


def ratio_problem(seed, batch, max_depth, vocabulary, *, truncated=True, closeness=0.7):
    problem = ragged(seed, batch, max_depth, vocabulary, truncated=truncated)
    g = problem.generator
    noise = torch.randn(len(problem.draft), vocabulary, generator=g)
    draft_logits = problem.logits[problem.rows_of_drafts] + noise * closeness
    heat = problem.sampling["temperature"].repeat_interleave(problem.depth).clamp(min=0.3)
    problem.draft = torch.multinomial((draft_logits / heat[:, None]).softmax(1), 1, generator=g).flatten().int()
    return problem, draft_logits


@pytest.mark.parametrize(
    ("seed", "vocabulary", "block", "splits"), [(0, 97, 128, 1), (1, 900, 256, 2), (2, 900, 64, 4), (3, 1000, 1024, 1)]
)
def test_ratio(device, tiles, seed, vocabulary, block, splits):
    tiles(block, splits)
    problem, draft_logits = ratio_problem(seed, 10, 3, vocabulary)
    problem.draft[0] = -1  # never accepted
    arguments = (problem.logits, problem.cu, problem.draft)
    got = ratio.verify_ratio(
        *(x.to(device) for x in arguments), 3, draft_logits=draft_logits.to(device), **on(device, problem.sampling)
    )
    want = reference.verify_ratio(*arguments, 3, draft_logits=draft_logits, **problem.sampling)
    assert same(got, want)  # the seeds are fixed: no row here is decided by rounding
    assert got[1][0] == 1


def test_ratio_accepts_every_draft_of_its_own_distribution(device):
    problem, _ = ratio_problem(4, 12, 4, 300, truncated=False)
    draft_logits = problem.logits[problem.rows_of_drafts]
    best = draft_logits.argmax(1).int()
    cold = problem.sampling["temperature"].repeat_interleave(problem.depth) == 0
    problem.draft = torch.where(cold, best, problem.draft)
    arguments = (problem.logits, problem.cu, problem.draft)
    _, count = ratio.verify_ratio(
        *(x.to(device) for x in arguments), 4, draft_logits=draft_logits.to(device), **on(device, problem.sampling)
    )
    assert torch.equal(count.cpu(), (problem.depth + 1).int())


def test_grids_do_not_depend_on_offsets(device):
    """All of a batch's rows may belong to one sequence: the launch covers them."""
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(2))
    for depth in ([6, 0, 0], [0, 0, 6], [2, 2, 2]):
        cu = torch.tensor([0, *np.cumsum(np.array(depth) + 1)], dtype=torch.int32)
        draft = torch.zeros(6, dtype=torch.int32)
        got = verify.verify_greedy(logits.to(device), cu.to(device), draft.to(device), 6)
        assert same(got, reference.verify_greedy(logits, cu, draft, 6))
