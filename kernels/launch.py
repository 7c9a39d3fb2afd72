"""How kernels are launched: the shapes of their tiles on a GPU and in Triton's interpreter."""

from functools import cache
from typing import NamedTuple

import torch
import triton

# Kernels are declared with `do_not_specialize` for every number that changes from step to step (sequences, splits,
# tiles): Triton would compile one for 1, one for multiples of 16 and one for the rest, in the midst of serving.

# No fused multiply-adds: the noise must have the same bits on every backend.
EXACT = {"enable_fp_fusion": False}

BLOCK = 4096  # tokens that a program looks at together
BUSY_BLOCK = 2048  # where more is kept of each token than its logit: hash and noise, sums, keys
WARPS = 8
SPLITS_MOST = 32
PROGRAMS_EACH = 4  # that a multiprocessor should have to choose from
PROCESSORS_ASSUMED = 132


def registers(most: int) -> dict[str, int]:
    """Launch option that allows a thread so many registers.

    Left alone, NVIDIA's assembler spills a few to fit one more program on a multiprocessor. AMD has no such option.
    """
    return {"maxnreg": most} if torch.version.hip is None else {}


class Tiling(NamedTuple):
    """How the vocabulary of one row is cut.

    Attributes
    ----------
    block : int
        Tokens of a tile, a power of two.
    splits : int
        Programs of a row, at most SPLITS_MOST.
    tiles : int
        Tiles of a program.
    """

    block: int
    splits: int
    tiles: int


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (``TRITON_INTERPRET=1`` when they were imported)."""
    from triton.runtime.interpreter import InterpretedFunction

    from adaptive_spec.kernels import triton_noise

    return isinstance(triton_noise.mix32, InterpretedFunction)


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    if device.type != "cuda":
        return PROCESSORS_ASSUMED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def dot_precision() -> str:
    """How float32 matrices are multiplied: on NVIDIA in three TF32 parts, some 1e-6 from IEEE; AMD has IEEE units."""
    return "tf32x3" if torch.version.hip is None else "ieee"


def tiling(rows: int, vocabulary: int, device: torch.device, most: int = BLOCK) -> Tiling:
    """Cut rows in tiles of `most` tokens, so that the device is full even where there are few rows."""
    if interpreted():  # where each tile costs milliseconds, whatever its size
        block = min(triton.next_power_of_2(vocabulary), 32768)
        return Tiling(block, 1, triton.cdiv(vocabulary, block))
    tiles = triton.cdiv(vocabulary, most)
    splits = 1
    while splits < min(SPLITS_MOST, tiles) and rows * splits < PROGRAMS_EACH * processors(device):
        splits *= 2
    each = triton.cdiv(tiles, splits)
    return Tiling(most, triton.cdiv(tiles, each), each)
