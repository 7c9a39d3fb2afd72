"""Counter-based Gumbel noise of match mode, defined once so that every backend draws the same bits.

The noise of a token is a pure function of (request seed, sample index, output position, stream, token id):
no generator state, no order of evaluation, no dependence on tiling. A row's four words are hashed to two
32-bit keys; two keyed 32-bit permutations of the token id give 32 random bits, a third 32 more, so that
both tails of the uniform are resolved to 2**-64 (a token of probability 1e-12 is still drawn as often as
it should be).

The logarithms are spelled out as float32 additions and multiplications: on a backend that rounds each of
them on its own (IEEE 754, no fused multiply-add) the noise is the same to the last bit. Triton twins must
be launched with ``enable_fp_fusion=False``.

Sources: the 32-bit mixer is the best two-multiply permutation of C. Wellons' hash-prospector; the 64-bit one
is the finaliser of SplitMix64 (Steele, Lea, Flood 2014; Stafford's variant 13); the polynomial for the
logarithm is that of Cephes' ``logf`` (S. Moshier).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Streams keep noise of different purposes apart under one seed.
MATCH_STREAM = 1
ACCEPT_STREAM = 2  # ratio mode: whether a draft is accepted
RESIDUAL_STREAM = 3  # ratio mode: the token after the accepted drafts
DRAFT_STREAM = 4  # ratio mode: for who draws the drafts; coupled mode draws them with MATCH_STREAM

# No noise is larger: -log of the smallest exponential, 2**-65, is 45.0546.
GUMBEL_MAX = 45.0625

# A temperature under this is greedy (vLLM's sampling epsilon).
GREEDY_TEMPERATURE = 1e-5

GOLDEN_64 = 0x9E3779B97F4A7C15
MIX_64 = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
GOLDEN_32 = 0x9E3779B9
MIX_32 = ((16, 0x21F0AAAD), (15, 0xD35A2D97), (15, 1))
MASK_32 = 0xFFFFFFFF


def _float32(value: float) -> float:
    """Round a constant to float32, so that no backend sees other bits."""
    return float(np.float32(value))


# -log1p(-u) by its series where the top word of u is below SERIES_BELOW (u < 1/32); else -log(1 - u).
SERIES_BELOW = 1 << 27
SERIES = tuple(_float32(1 / n) for n in (5, 4, 3, 2, 1))  # highest power first
LOG_POLYNOMIAL = tuple(
    _float32(c)
    for c in (
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
)
LN2_HIGH = 0.693359375  # exact in float32 with bits to spare: exponent * LN2_HIGH is exact
LN2_LOW = _float32(-2.12194440e-4)
SQRT_HALF = _float32(0.70710678118654752)


def _signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned 64-bit constant."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _mix64(h: Tensor) -> Tensor:
    for shift, factor in MIX_64:
        h = (h ^ ((h >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return h


def _mix32(h: Tensor) -> Tensor:
    """Permute 32-bit words that are held in int64."""
    for shift, factor in MIX_32:
        h = ((h ^ (h >> shift)) * factor) & MASK_32
    return h


def row_key(seed: Tensor, sample_index: Tensor, position: Tensor, stream: int = MATCH_STREAM) -> tuple[Tensor, Tensor]:
    """Hash what identifies a row to two 32-bit keys.

    Parameters
    ----------
    seed, sample_index, position : int64 tensor, shape (R,)
        The request's seed, the index of the sample within the request (``n`` > 1), and the output
        position of the token that the row yields.
    stream : int
        Purpose of the noise.

    Returns
    -------
    tuple of int64 tensors, shape (R,)
        Keys in [0, 2**32).
    """
    h = _mix64(seed.long() + _signed(GOLDEN_64 * stream & (1 << 64) - 1))
    h = _mix64(_mix64(h ^ sample_index.long()) ^ position.long())
    return h & MASK_32, (h >> 32) & MASK_32


def random_words(key: tuple[Tensor, Tensor], token: Tensor) -> tuple[Tensor, Tensor]:
    """Return 64 random bits of each token as a high and a low 32-bit word (int64 tensors)."""
    high = _mix32(_mix32(token.long() ^ key[0]) ^ key[1])
    return high, _mix32(high ^ key[0] ^ GOLDEN_32)


def uniform(high: Tensor, low: Tensor) -> Tensor:
    """Return (high + (low + 1/2) / 2**32) / 2**32 in float32: in [2**-65, 1], relatively exact near 0."""
    return high.float() * 2.0**-32 + (low.float() + 0.5) * 2.0**-64


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of positive normal float32 numbers, within 2 ulp."""
    bits = x.view(torch.int32)
    exponent = (bits >> 23) - 126
    m = ((bits & 0x007FFFFF) | 0x3F000000).view(torch.float32)  # [0.5, 1)
    small = m < SQRT_HALF
    e = torch.where(small, exponent - 1, exponent).float()
    m = torch.where(small, m + m, m) - 1.0
    z = m * m
    p = torch.full_like(m, LOG_POLYNOMIAL[0])
    for c in LOG_POLYNOMIAL[1:]:
        p = p * m + c
    y = p * m * z
    y = y + e * LN2_LOW
    y = y - z * 0.5
    return (m + y) + e * LN2_HIGH


def gumbel_of_words(high: Tensor, low: Tensor) -> Tensor:
    """Map 64 random bits to a standard Gumbel number in float32, precise in both tails."""
    u = uniform(high, low)
    p = torch.full_like(u, SERIES[0])
    for c in SERIES[1:]:
        p = p * u + c
    # 1 - u is the uniform of the complemented bits: nothing cancels.
    exponential = torch.where(high < SERIES_BELOW, p * u, -log(uniform(high ^ MASK_32, low ^ MASK_32)))
    return -log(exponential)


def gumbel(key: tuple[Tensor, Tensor], token: Tensor) -> Tensor:
    """Return the noise of each token (float32) under keys that broadcast against it."""
    return gumbel_of_words(*random_words(key, token))


def inverse_temperature(temperature: Tensor) -> Tensor:
    """Return 1/T in float32, and 0 where T is so small that it means greedy.

    Scores are ``logit * (1/T)`` on every backend: a division would be rounded differently on GPUs.
    """
    t = temperature.float()
    greedy = t < GREEDY_TEMPERATURE
    return torch.where(greedy, 0.0, 1.0 / torch.where(greedy, 1.0, t))
