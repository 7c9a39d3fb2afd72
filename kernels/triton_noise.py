"""The noise of :mod:`adaptive_spec.kernels.noise` in Triton, the same bits for the same key and token.

Kernels that call it must be launched with ``enable_fp_fusion=False``: a fused multiply-add rounds once where the
definition rounds twice.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl

from adaptive_spec.kernels import noise

MASK_32 = tl.constexpr(noise.MASK_32)
GOLDEN_32 = tl.constexpr(noise.GOLDEN_32)
GOLDEN_64 = tl.constexpr(noise.GOLDEN_64)
MASK_64 = tl.constexpr((1 << 64) - 1)
A1, F1 = (tl.constexpr(value) for value in noise.MIX_32[0])
A2, F2 = (tl.constexpr(value) for value in noise.MIX_32[1])
A3, F3 = (tl.constexpr(value) for value in noise.MIX_32[2])
B1, G1 = (tl.constexpr(value) for value in noise.MIX_64[0])
B2, G2 = (tl.constexpr(value) for value in noise.MIX_64[1])
B3, G3 = (tl.constexpr(value) for value in noise.MIX_64[2])
SERIES_BELOW = tl.constexpr(noise.SERIES_BELOW)
S0, S1, S2, S3, S4 = (tl.constexpr(value) for value in noise.SERIES)
P0, P1, P2, P3, P4, P5, P6, P7, P8 = (tl.constexpr(value) for value in noise.LOG_POLYNOMIAL)
LN2_HIGH, LN2_LOW = tl.constexpr(noise.LN2_HIGH), tl.constexpr(noise.LN2_LOW)
SQRT_HALF = tl.constexpr(noise.SQRT_HALF)
GUMBEL_MAX = tl.constexpr(noise.GUMBEL_MAX)
GREEDY_TEMPERATURE = tl.constexpr(noise.GREEDY_TEMPERATURE)
UNIT_32, UNIT_64 = tl.constexpr(2.0**-32), tl.constexpr(2.0**-64)
MINUS_LN2 = tl.constexpr(-0.6931471805599453)
# -log of an upper word's unit, and a hundred times what rounding and hardware logarithm could take from a bound.
BOUND_OF_ONE = tl.constexpr(32 * 0.6931471805599453 + 1e-3)


@triton.jit
def mix32(h):
    """Permute 32-bit words."""
    h = (h ^ (h >> A1)) * F1
    h = (h ^ (h >> A2)) * F2
    return (h ^ (h >> A3)) * F3


@triton.jit
def mix64(h):
    """Permute 64-bit words."""
    h = (h ^ (h >> B1)) * G1
    h = (h ^ (h >> B2)) * G2
    return (h ^ (h >> B3)) * G3


@triton.jit
def row_key(seed, sample_index, position, STREAM: tl.constexpr):
    """Hash what identifies a row (int64) to two uint32 keys."""
    start: tl.constexpr = GOLDEN_64 * STREAM & MASK_64
    h = mix64(seed.to(tl.uint64) + start)
    h = mix64(mix64(h ^ sample_index.to(tl.uint64)) ^ position.to(tl.uint64))
    return (h & MASK_32).to(tl.uint32), (h >> 32).to(tl.uint32)


@triton.jit
def high_word(k0, k1, token):
    """Return the upper 32 of a token's random bits."""
    return mix32(mix32(token.to(tl.uint32) ^ k0) ^ k1)


@triton.jit
def low_word(k0, high):
    """Return the lower 32 of a token's random bits."""
    return mix32(high ^ k0 ^ GOLDEN_32)


@triton.jit
def uniform(high, low):
    """Return the uniform of 64 bits in float32, relatively exact near 0."""
    return high.to(tl.float32) * UNIT_32 + (low.to(tl.float32) + 0.5) * UNIT_64


@triton.jit
def log(x):
    """Return the natural logarithm of positive normal float32 numbers, rounded as the definition rounds."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - 126
    m = ((bits & 0x007FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    small = m < SQRT_HALF
    e = tl.where(small, exponent - 1, exponent).to(tl.float32)
    m = tl.where(small, m + m, m) - 1.0
    z = m * m
    p = m * P0 + P1
    p = p * m + P2
    p = p * m + P3
    p = p * m + P4
    p = p * m + P5
    p = p * m + P6
    p = p * m + P7
    p = p * m + P8
    y = p * m * z
    y = y + e * LN2_LOW
    y = y - z * 0.5
    return (m + y) + e * LN2_HIGH


@triton.jit
def gumbel(k0, high):
    """Return the noise of tokens whose upper words are known already."""
    low = low_word(k0, high)
    u = uniform(high, low)
    p = u * S0 + S1
    p = p * u + S2
    p = p * u + S3
    p = p * u + S4
    exponential = tl.where(high < SERIES_BELOW, p * u, -log(uniform(high ^ MASK_32, low ^ MASK_32)))
    return -log(exponential)


@triton.jit
def gumbel_bound(high):
    """Return a number that no noise with this upper word exceeds: ``-log(u)``, since ``-log(1 - u) >= u``."""
    bound = tl.log2(high.to(tl.float32)) * MINUS_LN2 + BOUND_OF_ONE
    return tl.where(high == 0, GUMBEL_MAX, bound)


@triton.jit
def inverse_temperature(temperature):
    """Return 1/T, correctly rounded, and 0 where T means greedy."""
    greedy = temperature < GREEDY_TEMPERATURE
    return tl.where(greedy, 0.0, tl.div_rn(1.0, tl.where(greedy, 1.0, temperature)))
