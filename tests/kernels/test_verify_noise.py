"""The noise: uniform, Gumbel in both tails, independent across what keys it, the same bits in torch and numba."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from adaptive_spec.kernels import cpu, noise, reference

INT64 = st.integers(-(2**63), 2**63 - 1)


def key(seed: int, sample: int = 0, position: int = 0, stream: int = noise.MATCH_STREAM):
    words = torch.tensor([seed, sample, position])
    return noise.row_key(words[0], words[1], words[2], stream)


def row(seed: int, sample: int = 0, position: int = 0, size: int = 1 << 14) -> np.ndarray:
    return noise.gumbel(key(seed, sample, position), torch.arange(size)).numpy()


def uniform_of(g: np.ndarray) -> np.ndarray:
    return np.exp(-np.exp(-g.astype(np.float64)))


@given(seed=INT64, sample=INT64, position=INT64)
@settings(max_examples=60, deadline=None)
def test_numba_and_torch_draw_the_same_bits(seed, sample, position):
    twin = cpu.gumbel_row(seed, sample, position, 4099)
    assert np.array_equal(twin.view(np.int32), row(seed, sample, position, 4099).view(np.int32))


def test_numba_and_torch_draw_the_same_bits_over_a_large_vocabulary():
    twin = cpu.gumbel_row(-7, 3, 11, 1 << 21)  # large enough for the rare branch of small uniforms' series
    assert np.array_equal(twin.view(np.int32), row(-7, 3, 11, 1 << 21).view(np.int32))


def test_the_noise_is_pinned():
    # A seed promises its text for ever: these bits change only with a stated break.
    bits = row(1234567890123, 2, 77, 4).view(np.int32).tolist()
    assert bits == [-1088002902, -1086408684, -1082399214, -1108237853]


def test_the_logarithm_is_within_two_ulp():
    rng = np.random.default_rng(0)
    x = rng.integers(0x1E000000, 0x42400000, 1 << 18, dtype=np.int32).view(np.float32)  # 2**-67 .. 48
    x = np.concatenate([x, np.nextafter(np.float32(1), np.float32([0, 2])), np.float32([1.0])])
    exact = np.log(x.astype(np.float64))
    got = noise.log(torch.from_numpy(x)).numpy().astype(np.float64)
    ulp = np.spacing(np.maximum(np.abs(exact), 1e-30).astype(np.float32)).astype(np.float64)
    assert (np.abs(got - exact) <= 2 * ulp).all()


def exact_gumbel(high: int, low: int) -> float:
    half = (high << 33) + (low << 1) + 1  # u * 2**65
    if half * 2 < 1 << 65:
        exponential = -math.log1p(-half / 2**65)
    else:
        exponential = -math.log(((1 << 65) - half) / 2**65)
    return -math.log(exponential)


def test_both_tails_are_precise():
    words = [0, 1, 2, 3, 1000, 1 << 16, (1 << 27) - 1, 1 << 27, (1 << 27) + 1, 1 << 31]
    words += [noise.MASK_32 - w for w in words]
    pairs = [(high, low) for high in words for low in words]
    got = noise.gumbel_of_words(*(torch.tensor(column) for column in zip(*pairs, strict=True))).tolist()
    for (high, low), g in zip(pairs, got, strict=True):
        exact = exact_gumbel(high, low)
        assert abs(g - exact) <= 3e-7 * max(1.0, abs(exact)) + 1.5e-6, (high, low, g, exact)
    assert max(got) == pytest.approx(65 * math.log(2), abs=1e-5)
    assert max(got) < noise.GUMBEL_MAX < max(got) + 0.02
    assert min(got) == pytest.approx(-math.log(65 * math.log(2)), abs=1e-5)


def test_the_noise_is_gumbel():
    g = row(5, size=1 << 20)
    assert stats.kstest(uniform_of(g), "uniform").pvalue > 1e-3
    # The tail that wins: as many as there should be beyond each level.
    for level in (5.0, 8.0, 10.0, 12.0):
        expected = len(g) * -math.expm1(-math.exp(-level))
        assert abs((g > level).sum() - expected) < 5 * math.sqrt(expected) + 1


@pytest.mark.parametrize("bit", range(32))
def test_every_bit_of_both_words_is_fair(bit):
    high, low = noise.random_words(key(9), torch.arange(1 << 16))
    for word in (high, low):
        ones = int(((word >> bit) & 1).sum())
        assert abs(ones - (1 << 15)) < 5 * 128


def independent(a: np.ndarray, b: np.ndarray) -> None:
    """Chi-square of an 8 x 8 table of the two uniforms."""
    table, _, _ = np.histogram2d(uniform_of(a), uniform_of(b), bins=8, range=[[0, 1], [0, 1]])
    assert stats.chisquare(table.ravel()).pvalue > 1e-5


@pytest.mark.parametrize("other", [1, 2, 3, 64, 1 << 31, 1 << 32, -(1 << 63)])
def test_rows_are_independent_across_what_keys_them(other):
    base = row(0)
    for different in (row(other), row(0, sample=other), row(0, position=other)):
        assert not np.array_equal(base, different)
        independent(base, different)
    for a, b in (
        (row(other), row(0, sample=other)),
        (row(0, sample=other), row(0, position=other)),
        (row(other), row(0, position=other)),
    ):
        independent(a, b)


def test_streams_are_independent():
    independent(row(3), noise.gumbel(key(3, stream=2), torch.arange(1 << 14)).numpy())


@pytest.mark.parametrize("axis", ["seed", "sample", "position"])
@pytest.mark.parametrize("token", [0, 1, 49151])
def test_one_token_over_consecutive_keys_is_uniform(axis, token):
    count = 1 << 15
    moving, still = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    words = [moving if axis == name else still for name in ("seed", "sample", "position")]
    g = noise.gumbel(noise.row_key(*words), torch.tensor(token)).numpy()
    assert stats.kstest(uniform_of(g), "uniform").pvalue > 1e-4
    independent(g[:-1], g[1:])


def test_neighbouring_tokens_are_independent():
    g = row(17, size=1 << 16)
    for lag in (1, 2, 3, 16, 4096):
        independent(g[:-lag], g[lag:])


def test_small_temperatures_are_greedy():
    t = torch.tensor([0.0, 1e-6, 9e-6, 1e-4, 0.5, 2.0])
    assert noise.inverse_temperature(t).tolist() == pytest.approx([0, 0, 0, 1e4, 2.0, 0.5], rel=1e-6)
    logits = torch.tensor([0.0, 1.0, 0.5])
    assert torch.equal(reference.match_scores(logits, 1e-6, top_k=1, top_p=0.1), logits)
