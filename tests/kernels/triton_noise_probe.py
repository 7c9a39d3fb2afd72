"""Small kernels that write out what the noise's Triton functions return."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from adaptive_spec.kernels import launch
from adaptive_spec.kernels.triton_noise import (
    gumbel,
    gumbel_bound,
    high_word,
    inverse_temperature,
    low_word,
    row_key,
)

TILE = 1024  # tokens of a program; the interpreter, in which each takes milliseconds, has one for all


@triton.jit
def _probe_kernel(
    key_ptr, high_ptr, low_ptr, gumbel_ptr, bound_ptr, first, size, STREAM: tl.constexpr, TILE: tl.constexpr
):
    k0, k1 = row_key(tl.load(key_ptr), tl.load(key_ptr + 1), tl.load(key_ptr + 2), STREAM)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = i < size
    high = high_word(k0, k1, first + i)
    tl.store(high_ptr + i, high.to(tl.int32, bitcast=True), mask=mask)
    tl.store(low_ptr + i, low_word(k0, high).to(tl.int32, bitcast=True), mask=mask)
    tl.store(gumbel_ptr + i, gumbel(k0, high), mask=mask)
    tl.store(bound_ptr + i, gumbel_bound(high), mask=mask)


@triton.jit
def _words_kernel(high_ptr, k0_ptr, gumbel_ptr, bound_ptr, size, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    high = tl.load(high_ptr + i, mask=i < size, other=0).to(tl.uint32)
    k0 = tl.load(k0_ptr).to(tl.uint32)
    tl.store(gumbel_ptr + i, gumbel(k0, high), mask=i < size)
    tl.store(bound_ptr + i, gumbel_bound(high), mask=i < size)


@triton.jit
def _inverse_kernel(temperature_ptr, out_ptr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out_ptr + i, inverse_temperature(tl.load(temperature_ptr + i)))


def probe(seed, sample, position, size, stream, first, device):
    key = torch.tensor([seed, sample, position], device=device)
    high, low = (torch.empty(size, dtype=torch.int32, device=device) for _ in range(2))
    g, bound = (torch.empty(size, dtype=torch.float32, device=device) for _ in range(2))
    tile = triton.next_power_of_2(size) if launch.interpreted() else TILE
    _probe_kernel[(triton.cdiv(size, tile),)](
        key, high, low, g, bound, first, size, STREAM=stream, TILE=tile, **launch.EXACT
    )
    return high.cpu(), low.cpu(), g.cpu(), bound.cpu()


def of_words(high, k0, device):
    g, bound = (torch.empty(len(high), dtype=torch.float32, device=device) for _ in range(2))
    _words_kernel[(1,)](
        high.to(device),
        torch.tensor([k0], device=device),
        g,
        bound,
        len(high),
        SIZE=triton.next_power_of_2(len(high)),
        **launch.EXACT,
    )
    return g.cpu(), bound.cpu()


def inverse(temperature, device):
    out = torch.empty_like(temperature, device=device)
    _inverse_kernel[(1,)](temperature.to(device), out, SIZE=len(temperature), **launch.EXACT)
    return out.cpu()
