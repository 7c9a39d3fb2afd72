"""The Triton kernels draw the very bits of the noise's definition."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from adaptive_spec.kernels import noise


def _twins(device, seed, sample, position, size, stream, first=0):
    import triton_noise_probe

    out = triton_noise_probe.probe(seed, sample, position, size, stream, first, device)
    words = torch.tensor([seed, sample, position])
    key = noise.row_key(words[0], words[1], words[2], stream)
    token = torch.arange(first, first + size)
    return out, noise.random_words(key, token), noise.gumbel(key, token)


@pytest.mark.parametrize("stream", [noise.MATCH_STREAM, noise.RESIDUAL_STREAM])
@pytest.mark.parametrize(
    ("seed", "sample", "position"),
    [(0, 0, 0), (-1, 0, 1), (2**63 - 1, 3, 2**40), (-(2**63), -5, -7), (1234567890123, 2, 77)],
)
def test_the_same_bits_for_any_key(device, seed, sample, position, stream):
    (high, low, g, bound), words, exact = _twins(device, seed, sample, position, 4096, stream)
    assert torch.equal(high.long() & noise.MASK_32, words[0])
    assert torch.equal(low.long() & noise.MASK_32, words[1])
    assert torch.equal(g.view(torch.int32), exact.view(torch.int32))
    assert bool((bound >= g).all())
    assert float((bound - g)[g > 3].max()) < 0.06  # tight where it matters


def test_the_same_bits_over_a_large_vocabulary(device):
    """In many programs, the last of them partly empty."""
    (_, _, g, bound), _, exact = _twins(device, -7, 3, 11, (1 << 20) - 5, noise.MATCH_STREAM)
    assert torch.equal(g.view(torch.int32), exact.view(torch.int32))
    assert bool((bound >= g).all())


def test_both_tails_and_their_bound(device):
    import triton_noise_probe

    words = [0, 1, 2, 3, 1000, 1 << 16, (1 << 27) - 1, 1 << 27, (1 << 27) + 1, 1 << 31]
    words += [noise.MASK_32 - w for w in words]
    high = torch.tensor(words, dtype=torch.int64)
    for k0 in (0, 1, 0x9E3779B9, noise.MASK_32):
        g, bound = triton_noise_probe.of_words(high, k0, device)
        low = noise._mix32(high ^ k0 ^ noise.GOLDEN_32)
        exact = noise.gumbel_of_words(high, low)
        assert torch.equal(g.view(torch.int32), exact.view(torch.int32))
        assert bool((bound >= g).all())


def test_inverse_temperature_is_the_definitions(device):
    import triton_noise_probe

    t = torch.rand(512, generator=torch.Generator().manual_seed(0)) * 3
    t[:6] = torch.tensor([0.0, 1e-6, 9.9e-6, 1e-5, 1.0000001e-5, 1.0])
    assert torch.equal(triton_noise_probe.inverse(t, device), noise.inverse_temperature(t))
