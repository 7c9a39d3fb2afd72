"""Hardware: peak arithmetic, memory bandwidth and memory of machines, each figure with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

DTYPE_BYTES: Mapping[str, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
}


@dataclass(frozen=True)
class Hardware:
    """One machine, or one accelerator of it.

    Attributes
    ----------
    name : str
    flops_per_second : mapping of dtype to float
        Dense peak (without structured sparsity) of matrix products in each dtype, with float32
        accumulation where the vendor distinguishes.
    bytes_per_second : float
        Peak memory bandwidth.
    memory_bytes : float
    launch_seconds : float
        Time of a pass in which neither arithmetic nor memory works: kernel gaps and host code. No vendor
        gives it; it is an assumption, and `sources` says which.
    sources : mapping
        Where each figure comes from, under ``flops_per_second``, ``bytes_per_second``, ``memory_bytes``
        and ``launch_seconds``.
    """

    name: str
    flops_per_second: Mapping[str, float]
    bytes_per_second: float
    memory_bytes: float
    launch_seconds: float
    sources: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.flops_per_second:
            raise ValueError(f"hardware {self.name!r}: flops_per_second names no dtype")
        for dtype, value in self.flops_per_second.items():
            _check(self.name, f"flops_per_second[{dtype!r}]", value, value > 0)
        _check(self.name, "bytes_per_second", self.bytes_per_second, self.bytes_per_second > 0)
        _check(self.name, "memory_bytes", self.memory_bytes, self.memory_bytes > 0)
        _check(self.name, "launch_seconds", self.launch_seconds, self.launch_seconds >= 0, "0 or more")

    def peak(self, dtype: str) -> float:
        """Dense peak FLOP/s in `dtype`; ValueError names those that the machine has."""
        try:
            return self.flops_per_second[dtype]
        except KeyError:
            known = ", ".join(sorted(self.flops_per_second))
            raise ValueError(f"{self.name} has no peak for dtype {dtype!r}; it has {known}") from None


def _check(name: str, field: str, value: float, in_range: bool, range_text: str = "positive") -> None:
    if not (math.isfinite(value) and in_range):
        raise ValueError(f"hardware {name!r}: {field} is {value}; it must be finite and {range_text}")


_GPU_LAUNCH = "assumption: a pass of some 300 kernels replayed from a captured graph, about 1 us of dead time each"


def _gpu(name: str, flops: Mapping[str, float], bandwidth: float, memory: float, source: str, **other: str) -> Hardware:
    sources = dict.fromkeys(("flops_per_second", "bytes_per_second", "memory_bytes"), source)
    sources["launch_seconds"] = _GPU_LAUNCH
    return Hardware(name, dict(flops), bandwidth, memory, 3e-4, sources | other)


_HOPPER = {"bfloat16": 989.4e12, "float16": 989.4e12, "fp8": 1978.9e12, "int8": 1978.9e12, "float32": 66.9e12}
_HOPPER_FLOPS = "NVIDIA H100 Tensor Core GPU Architecture whitepaper (2022), H100 SXM5, dense"

HARDWARE: Mapping[str, Hardware] = {
    entry.name: entry
    for entry in (
        _gpu(
            "A100-SXM-80GB",
            {"bfloat16": 312e12, "float16": 312e12, "int8": 624e12, "float32": 19.5e12},
            2.039e12,
            80e9,
            "NVIDIA A100 80GB Tensor Core GPU datasheet (2021), SXM, dense",
        ),
        _gpu(
            "H100-SXM",
            _HOPPER,
            3.35e12,
            80e9,
            "NVIDIA H100 Tensor Core GPU datasheet (2023), SXM",
            flops_per_second=_HOPPER_FLOPS + "; the datasheet's 1,979 and 3,958 are with sparsity",
        ),
        _gpu(
            "H200-SXM",
            _HOPPER,
            4.8e12,
            141e9,
            "NVIDIA H200 Tensor Core GPU datasheet (2023), SXM",
            flops_per_second=_HOPPER_FLOPS + "; the H200 has the same chip and the same peaks",
        ),
        _gpu(
            "B200",
            {
                "bfloat16": 2250e12,
                "float16": 2250e12,
                "fp8": 4500e12,
                "int8": 4500e12,
                "fp4": 9000e12,
                "float32": 80e12,
            },
            8e12,
            180e9,
            "NVIDIA DGX B200 datasheet (2024): 64 TB/s and 1,440 GB over eight",
            flops_per_second="NVIDIA Blackwell Architecture Technical Brief (2024), HGX B200, dense, per GPU",
        ),
        _gpu(
            "MI300X",
            {
                "bfloat16": 1307.4e12,
                "float16": 1307.4e12,
                "fp8": 2614.9e12,
                "int8": 2614.9e12,
                "float32": 163.4e12,
            },
            5.3e12,
            192e9,
            "AMD Instinct MI300X Accelerator data sheet (2023), dense",
        ),
        _gpu(
            "RTX-4090",
            {
                "bfloat16": 165.2e12,
                "float16": 165.2e12,
                "fp8": 330.3e12,
                "int8": 660.6e12,
                "float32": 82.6e12,
            },
            1.008e12,
            24e9,
            "NVIDIA Ada GPU Architecture whitepaper (2022), GeForce RTX 4090, dense, float32 accumulation",
        ),
        Hardware(
            name="generic-CPU",
            flops_per_second={"float32": 768e9, "bfloat16": 768e9},
            bytes_per_second=76.8e9,
            memory_bytes=32e9,
            launch_seconds=5e-4,
            sources={
                "flops_per_second": (
                    "assumption: 8 cores at 3 GHz with two 256-bit FMA units (32 float32 FLOP a cycle; Intel "
                    "64 and IA-32 Architectures Optimization Reference Manual, 2023); bfloat16 is widened"
                ),
                "bytes_per_second": "two 64-bit channels of DDR5-4800 (JEDEC JESD79-5, 2020)",
                "memory_bytes": "assumption: two modules of 16 GB",
                "launch_seconds": "assumption: half a millisecond of operator dispatch a pass",
            },
        ),
    )
}


def hardware(name: str) -> Hardware:
    """Find a machine of the table by name; case, spaces, hyphens and underscores don't matter.

    Raises
    ------
    KeyError
        If none has that name; the message gives the nearest and lists all.
    """
    by_key = {_key(known): entry for known, entry in HARDWARE.items()}
    key = _key(name)
    if key in by_key:
        return by_key[key]
    near = get_close_matches(key, by_key, n=1, cutoff=0.3)
    hint = f"; the nearest is {by_key[near[0]].name!r}" if near else ""
    raise KeyError(f"no hardware is called {name!r}{hint}; known are {', '.join(HARDWARE)}")


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
