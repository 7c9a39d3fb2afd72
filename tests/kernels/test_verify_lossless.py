"""Match mode draws from the softmax, and what it emits does not depend on the drafts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adaptive_spec.kernels import ops

NO_DRAFT = torch.zeros(0, dtype=torch.int32)


def draw(logits, count, *, temperature=1.0, top_k=0, top_p=1.0, seed=None, sample_index=None, position=None):
    """Tokens of `count` one-row sequences with the same logits under different keys."""
    zeros = torch.zeros(count, dtype=torch.int64)
    tokens, _ = ops.verify_match(
        logits.expand(count, -1),
        torch.arange(count + 1, dtype=torch.int32),
        NO_DRAFT,
        0,
        temperature=torch.full((count,), temperature),
        top_k=torch.full((count,), top_k, dtype=torch.int32),
        top_p=torch.full((count,), top_p),
        seed=zeros if seed is None else seed,
        sample_index=zeros if sample_index is None else sample_index,
        position=zeros if position is None else position,
    )
    return tokens[:, 0].numpy()


def truncated(logits, temperature, top_k, top_p):
    """The distribution by the book: sort, cut, renormalise, in float64."""
    p = torch.softmax(logits.double() / temperature, 0).numpy()
    order = np.argsort(-p, kind="stable")
    keep = order[:top_k] if top_k else order
    share = np.cumsum(p[keep]) / p[keep].sum()
    keep = keep[: int(np.searchsorted(share, top_p)) + 1] if top_p < 1 else keep
    q = np.zeros_like(p)
    q[keep] = p[keep] / p[keep].sum()
    return q


def fits(tokens, p, least=1e-4):
    counts = np.bincount(tokens, minlength=len(p))
    assert counts[p == 0].sum() == 0
    rare = p * len(tokens) < 8
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(p[~rare], p[rare].sum()) * len(tokens)
    if expected[-1] < 8:  # too few even together
        observed, expected = observed[:-1], expected[:-1]
        expected *= observed.sum() / expected.sum()
    assert len(observed) > 1
    assert stats.chisquare(observed, expected).pvalue > least


@pytest.mark.parametrize("varied", ["seed", "sample_index", "position"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.4, 7, 1.0), (1.0, 0, 0.8), (0.8, 20, 0.9)]
)
def test_tokens_follow_the_truncated_softmax(varied, temperature, top_k, top_p):
    logits = torch.randn(300, generator=torch.Generator().manual_seed(4)) * 1.5
    keys = torch.arange(20000)
    tokens = draw(logits, 20000, temperature=temperature, top_k=top_k, top_p=top_p, **{varied: keys})
    fits(tokens, truncated(logits, temperature, top_k, top_p))


def test_rare_tokens_are_drawn_as_often_as_they_should_be():
    logits = torch.zeros(3)
    logits[1:] = float(np.log(1e-4 / (1 - 2e-4)))
    count = 400_000
    tokens = draw(logits, count, seed=torch.arange(count) * 7919)
    for token in (1, 2):
        assert abs((tokens == token).sum() - count * 1e-4) < 4.5 * np.sqrt(count * 1e-4)


def test_two_positions_are_independent():
    """Sequences of one draft at mixed depths: the pair of tokens follows the chain's distribution."""
    generator = torch.Generator().manual_seed(11)
    vocabulary, count = 6, 30000
    first = torch.randn(vocabulary, generator=generator)
    second = torch.randn(vocabulary, vocabulary, generator=generator)
    rng = np.random.default_rng(0)
    drafts = rng.integers(0, vocabulary, count)  # half of the sequences have one
    depth = rng.integers(0, 2, count)
    cu = torch.tensor([0, *np.cumsum(depth + 1)], dtype=torch.int32)
    logits = torch.cat([torch.stack([first, second[drafts[b]]]) if depth[b] else first[None] for b in range(count)])
    draft = torch.tensor(drafts[depth == 1], dtype=torch.int32)
    zeros = torch.zeros(count, dtype=torch.int64)
    common = {
        "temperature": torch.ones(count),
        "top_k": torch.zeros(count, dtype=torch.int32),
        "top_p": torch.ones(count),
        "seed": torch.arange(count),
        "sample_index": zeros,
    }
    tokens, emitted = ops.verify_match(logits, cu, draft, 1, **common, position=zeros)
    fits(tokens[:, 0].numpy(), truncated(first, 1.0, 0, 1.0))
    # What was not emitted comes with the next step; the pair must not know which it was.
    following, _ = ops.verify_match(
        second[tokens[:, 0].long()],
        torch.arange(count + 1, dtype=torch.int32),
        NO_DRAFT,
        0,
        **common,
        position=zeros + 1,
    )
    deep = emitted == 2
    assert 0.05 < float(deep.float().mean()) < 0.5
    assert torch.equal(tokens[deep, 1], following[deep, 0])
    pair = tokens[:, 0].numpy() * vocabulary + following[:, 0].numpy()
    joint = torch.softmax(first.double(), 0)[:, None] * torch.softmax(second.double(), 1)
    fits(pair, joint.flatten().numpy())


class BigramModel:
    """Logits that are a function of the last two tokens."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(vocabulary, vocabulary, generator=generator) * 2
        self.older = torch.randn(vocabulary, vocabulary, generator=generator)

    def logits(self, tokens) -> torch.Tensor:
        return self.table[tokens[-1]] + self.older[tokens[-2]]


def generate(model, requests, length, choose):
    """Decode with drafts and depths of `choose(b, tokens)`; return the texts."""
    texts = [[b % 5, 1] for b in range(len(requests["seed"]))]
    while min(map(len, texts)) < length + 2:
        rows, drafts, depth = [], [], []
        for b, text in enumerate(texts):
            offered = choose(b, text)
            depth.append(len(offered))
            drafts += offered
            rows += [model.logits(text + offered[:j]) for j in range(len(offered) + 1)]
        tokens, count = ops.verify_match(
            torch.stack(rows),
            torch.tensor([0, *np.cumsum(np.array(depth) + 1)], dtype=torch.int32),
            torch.tensor(drafts, dtype=torch.int32),
            6,
            **requests,
            position=torch.tensor([len(text) - 2 for text in texts]),
        )
        for text, new, n in zip(texts, tokens.tolist(), count.tolist(), strict=True):
            assert all(token >= 0 for token in new[:n])
            assert new[n:] == [-1] * (7 - n)
            text += new[:n]
    return [text[: length + 2] for text in texts]


@given(seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_the_text_does_not_depend_on_drafts_or_depths(seed):
    rng = np.random.default_rng(seed)
    batch, vocabulary, length = 6, 300, 16
    model = BigramModel(vocabulary, seed)
    requests = {
        "temperature": torch.tensor([0.0, 1.0, 0.8, 1.3, 0.5, 1.0]),
        "top_k": torch.tensor([0, 0, 20, 0, 50, 0], dtype=torch.int32),
        "top_p": torch.tensor([1.0, 1.0, 1.0, 0.9, 0.8, 1.0]),
        "seed": torch.tensor(rng.integers(-(2**63), 2**63 - 1, batch)),
        "sample_index": torch.tensor([0, 0, 1, 2, 0, 7]),
    }
    plain = generate(model, requests, length, lambda b, text: [])

    def random_drafts(b, text):
        """Right ones, wrong ones and nonsense, to random depths."""
        offered = []
        for j in range(int(rng.integers(0, 7))):
            at = len(text) + j
            right = at < length + 2 and rng.random() < 0.8
            offered.append(plain[b][at] if right else int(rng.integers(0, vocabulary)))
        return offered

    assert generate(model, requests, length, random_drafts) == plain
    # Alone, each request says what it says in the batch.
    for b in range(batch):
        own = {name: value[b : b + 1] for name, value in requests.items()}
        one = BatchOfOne(model, b)
        assert generate(one, own, length, lambda _, text: [])[0][2:] == plain[b][2:]


class BatchOfOne:
    """A model for request b alone, whose text begins with b's own token instead of request 0's."""

    def __init__(self, model: BigramModel, b: int) -> None:
        self.model = model
        self.first = b % 5

    def logits(self, tokens) -> torch.Tensor:
        return self.model.logits([self.first, *tokens[1:]])


def test_samples_of_one_request_differ_and_its_seed_repeats_them():
    logits = torch.zeros(50)
    index = torch.arange(2000)
    a = draw(logits, 2000, sample_index=index, seed=torch.full((2000,), 5))
    assert np.array_equal(a, draw(logits, 2000, sample_index=index, seed=torch.full((2000,), 5)))
    b = draw(logits, 2000, sample_index=index, seed=torch.full((2000,), 6))
    assert abs((a == b).mean() - 1 / 50) < 0.02
