"""Floats as integers of the same order, and a score packed with its token, so that a maximum breaks ties."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import triton
import triton.language as tl

NEG_INF = tl.constexpr(float("-inf"))
LOWEST_KEY = tl.constexpr(-(1 << 31))  # of no float
NEG_INF_KEY = tl.constexpr(-0x7F800001)
NOTHING = tl.constexpr(-(1 << 63))  # less than every packed score
TOKEN_MOST = tl.constexpr(0x7FFFFFFF)


@triton.jit
def clean(x):
    """Return float32 logits in which NaN, which must never win, is minus infinity."""
    x = x.to(tl.float32)
    return tl.where(x == x, x, NEG_INF)


@triton.jit
def key_of(x):
    """Return int32 numbers in the order of the float32 ones, which are not NaN; both zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """Undo :func:`key_of`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pack(score, token):
    """Return int64 numbers that rise with the score and, between equal ones, as the token falls."""
    return (key_of(score).to(tl.int64) << 32) | (token ^ TOKEN_MOST).to(tl.int64)


@triton.jit
def unpack_token(packed):
    """Return the token of a packed score."""
    return packed.to(tl.int32) ^ TOKEN_MOST
