"""Ratio mode: the definition, its numba twin, and the law that emitted tokens follow the target."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_batches import ragged
from scipy import stats

from adaptive_spec.kernels import backend, noise, ops, reference


def problem(seed, batch, max_depth, vocabulary, closeness=0.7, truncated=True):
    """Drafts drawn from a distribution near the target's."""
    made = ragged(seed, batch, max_depth, vocabulary, truncated=truncated)
    g = made.generator
    wander = torch.randn(len(made.draft), vocabulary, generator=g) * closeness
    draft_logits = made.logits[made.rows_of_drafts] + wander
    heat = made.sampling["temperature"].repeat_interleave(made.depth).clamp(min=0.3)
    made.draft = torch.multinomial((draft_logits / heat[:, None]).softmax(1), 1, generator=g).flatten().int()
    return made, draft_logits


@given(st.integers(0, 2**20), st.sampled_from([1, 5, 130, 700]))
@settings(max_examples=40, deadline=None)
def test_numba_is_the_definition(seed, vocabulary):
    made, draft_logits = problem(seed, 5, 3, vocabulary)
    if len(made.draft):
        made.draft[0] = -1
    arguments = (made.logits, made.cu, made.draft, 3)
    got = ops.verify_ratio(*arguments, draft_logits=draft_logits, **made.sampling)
    want = reference.verify_ratio(*arguments, draft_logits=draft_logits, **made.sampling)
    differ = (got[0] != want[0]).any(1).nonzero().flatten().tolist()
    # Rounding may decide a row in some 1e5 at a nucleus' edge, a tie of scores or of u q and p; not two of a batch.
    assert len(differ) <= 1
    for b in differ:
        j = int((got[0][b] != want[0][b]).nonzero()[0])
        assert float(made.sampling["temperature"][b]) > 0
        cut = [made.sampling[name][b].item() for name in ("temperature", "top_k", "top_p")]
        assert reference.nucleus_edge(made.logits[int(made.cu[b]) + j], *cut).near()


def test_every_draft_of_the_targets_own_distribution_is_accepted():
    made, _ = problem(3, 200, 6, 60, truncated=False)
    draft_logits = made.logits[made.rows_of_drafts]
    heat = made.sampling["temperature"].repeat_interleave(made.depth)
    drawn = torch.multinomial((draft_logits / heat.clamp(min=0.3)[:, None]).softmax(1), 1).flatten()
    made.draft = torch.where(heat == 0, draft_logits.argmax(1), drawn).int()
    _, count = ops.verify_ratio(made.logits, made.cu, made.draft, 6, draft_logits=draft_logits, **made.sampling)
    assert torch.equal(count, (made.depth + 1).int())


def fits(tokens, p):
    counts = np.bincount(tokens, minlength=len(p))
    assert counts[p == 0].sum() == 0
    expected = p[p > 0] * len(tokens)
    assert expected.min() > 5
    assert stats.chisquare(counts[p > 0], expected).pvalue > 1e-4


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.85)])
def test_two_tokens_follow_the_target_at_mixed_depths(temperature, top_k, top_p):
    """First token by the target; second, after the commonest first, by the target's next row."""
    g = torch.Generator().manual_seed(8)
    vocabulary, count = 8, 20000
    first = torch.randn(vocabulary, generator=g)
    second = torch.randn(vocabulary, vocabulary, generator=g)
    q_first = first + torch.randn(vocabulary, generator=g) * 0.8
    q_second = second + torch.randn(vocabulary, vocabulary, generator=g) * 0.8
    a = torch.multinomial((q_first / temperature).softmax(0), count, replacement=True, generator=g)
    b = torch.multinomial((q_second / temperature).softmax(1)[a], 1, generator=g).flatten()
    depth = torch.randint(0, 3, (count,), generator=g)  # known before anything is drawn
    zeros = torch.zeros(vocabulary)
    rows, q_rows, drafts = [], [], []
    for d, x, y in zip(depth.tolist(), a.tolist(), b.tolist(), strict=True):
        rows += [first, second[x], zeros][: d + 1]
        q_rows += [q_first, q_second[x]][:d]
        drafts += [x, y][:d]
    cu = torch.zeros(count + 1, dtype=torch.int32)
    cu[1:] = (depth + 1).cumsum(0)
    tokens, emitted = ops.verify_ratio(
        torch.stack(rows),
        cu,
        torch.tensor(drafts, dtype=torch.int32),
        2,
        draft_logits=torch.stack(q_rows),
        temperature=torch.full((count,), temperature),
        top_k=torch.full((count,), top_k, dtype=torch.int32),
        top_p=torch.full((count,), top_p),
        seed=torch.arange(count),
        sample_index=torch.zeros(count, dtype=torch.int64),
        position=torch.zeros(count, dtype=torch.int64),
    )

    def law(logits):
        kept = torch.isfinite(reference.match_scores(logits, temperature, top_k, top_p))
        return torch.where(kept, logits.double() / temperature, -math.inf).softmax(0).numpy()

    fits(tokens[:, 0].numpy(), law(first))
    common = int(np.argmax(law(first)))
    deep = (tokens[:, 0] == common) & (emitted >= 2)
    fits(tokens[deep, 1].numpy(), law(second[common]))
    accepted = float((emitted[depth > 0] > 1).float().mean())
    p, q = law(first), (q_first.double() / temperature).softmax(0).numpy()
    assert accepted == pytest.approx(np.minimum(p, q).sum(), abs=0.015)  # 1 - total variation


def test_sequences_are_independent():
    """Two sequences of the same logits under different seeds: their joint law is the product."""
    g = torch.Generator().manual_seed(2)
    p, q = torch.randn(4, generator=g), torch.randn(4, generator=g)
    count = 20000
    x = torch.multinomial(q.softmax(0), 2 * count, replacement=True, generator=g).int()
    tokens, _ = ops.verify_ratio(
        p.expand(4 * count, -1).contiguous(),
        torch.arange(0, 4 * count + 1, 2, dtype=torch.int32),
        x,
        1,
        draft_logits=q.expand(2 * count, -1).contiguous(),
        temperature=torch.ones(2 * count),
        top_k=torch.zeros(2 * count, dtype=torch.int32),
        top_p=torch.ones(2 * count),
        seed=torch.arange(2 * count),
        sample_index=torch.zeros(2 * count, dtype=torch.int64),
        position=torch.zeros(2 * count, dtype=torch.int64),
    )
    pair = tokens[0::2, 0] * 4 + tokens[1::2, 0]
    law = p.double().softmax(0).numpy()
    fits(pair.numpy(), np.outer(law, law).ravel())


def test_the_streams_differ():
    streams = [noise.MATCH_STREAM, noise.ACCEPT_STREAM, noise.RESIDUAL_STREAM, noise.DRAFT_STREAM]
    assert len(set(streams)) == 4


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("served_by", ["cpu", "torch"])
@pytest.mark.parametrize(
    ("row", "allowed"),
    [
        ([NAN, 1.0, NAN, 0.0], {1, 3}),
        ([NAN] * 4, {0}),
        ([-INF] * 4, {0}),
        ([-INF, -INF, -2.0, NAN], {2}),
        ([0.0, INF, INF, NAN], {1, 2}),
        ([3e38, -3e38, 0.0, 3e38], {0, 3}),
    ],
)
def test_bad_logits_never_yield_a_token_that_may_not_be(row, allowed, served_by):
    logits = torch.tensor([row, row])
    for cut in ({}, {"top_k": 2}, {"top_p": 0.7}):
        for seed in range(10):
            for draft_row in ([0.0] * 4, [NAN] * 4, row):
                with backend.use(served_by):
                    tokens, count = ops.verify_ratio(
                        logits,
                        torch.tensor([0, 2], dtype=torch.int32),
                        torch.tensor([seed % 4], dtype=torch.int32),
                        1,
                        draft_logits=torch.tensor([draft_row]),
                        temperature=torch.ones(1),
                        top_k=torch.tensor([cut.get("top_k", 0)], dtype=torch.int32),
                        top_p=torch.tensor([cut.get("top_p", 1.0)]),
                        seed=torch.tensor([seed]),
                        sample_index=torch.zeros(1, dtype=torch.int64),
                        position=torch.zeros(1, dtype=torch.int64),
                    )
                assert set(tokens[0, : int(count[0])].tolist()) <= allowed


def test_bad_drafts_are_named():
    made, draft_logits = problem(0, 3, 2, 20)
    arguments = (made.logits, made.cu, made.draft, 2)
    ops.verify_ratio(*arguments, draft_logits=draft_logits, **made.sampling)
    for wrong, message in (
        (draft_logits[:, :5], "draft_logits must have the shape"),
        (draft_logits.double(), "draft_logits must be float32"),
        (torch.zeros(3), "draft_logits must have the shape"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.verify_ratio(*arguments, draft_logits=wrong, **made.sampling)
