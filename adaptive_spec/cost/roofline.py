"""Roofline: what a pass costs on paper, from the machine and the model's geometry."""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec.cost.curve import CurveCost
from adaptive_spec.cost.draft import DraftCost
from adaptive_spec.cost.geometry import ModelGeometry
from adaptive_spec.cost.hardware import DTYPE_BYTES, Hardware
from adaptive_spec.step import FloatArray, IntArray


class Roofline(CurveCost):
    """Launch overhead, plus the slower of memory and arithmetic (Williams, Waterman and Patterson, 2009).

    ::

        V(T) = launch + max(weights(T) / bandwidth, 2 P T / peak) + max(KV / bandwidth, attention / peak)

    The weights are read once a pass; of a mixture of experts only the expected distinct ones, which
    grow with T. Attention is a kernel of its own that runs after the matrix products, not under them,
    so it has its own maximum; it reads the whole KV cache of the batch, and its arithmetic counts only
    when a pass carries very many positions per sequence. Sliding windows are not modelled.

    Parameters
    ----------
    hardware : Hardware
    geometry : ModelGeometry
    dtype : str
        Of weights and arithmetic: ``bfloat16``, ``float16``, ``float32``, ``fp8``, ``int8`` or ``fp4``,
        as far as the machine has a peak for it.
    smoothing : float
        Half-width of the rounded corner of the first maximum, as a share of the ridge point: 0 is sharp,
        0.5 rounds a dense model's corner between 0.5 and 1.5 times the ridge and changes nothing outside;
        at the ridge itself it adds smoothing / 4 of the memory time.
    bytes_per_parameter, kv_bytes_per_value : float, optional
        Where weights or KV cache are stored in another size than `dtype`'s.
    memory_efficiency, compute_efficiency : float
        Shares of the peaks that are really reached, in (0, 1].
    draft_cost : DraftCost, optional
        Free if not given.
    """

    def __init__(
        self,
        hardware: Hardware,
        geometry: ModelGeometry,
        dtype: str = "bfloat16",
        smoothing: float = 0.0,
        *,
        bytes_per_parameter: float | None = None,
        kv_bytes_per_value: float | None = None,
        memory_efficiency: float = 1.0,
        compute_efficiency: float = 1.0,
        draft_cost: DraftCost | None = None,
    ) -> None:
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {dtype!r} is unknown; known are {', '.join(DTYPE_BYTES)}")
        if not 0.0 <= smoothing <= 1.0:
            raise ValueError(f"smoothing is {smoothing}; it must lie in 0..1")
        for name, share in (
            ("memory_efficiency", memory_efficiency),
            ("compute_efficiency", compute_efficiency),
        ):
            if not 0.0 < share <= 1.0:
                raise ValueError(f"{name} is {share}; it must lie above 0 and at most at 1")
        self.hardware = hardware
        self.geometry = geometry
        self.dtype = dtype
        self.smoothing = smoothing
        self.bytes_per_parameter = _size("bytes_per_parameter", bytes_per_parameter, dtype)
        self.kv_bytes_per_value = _size("kv_bytes_per_value", kv_bytes_per_value, dtype)
        self.bytes_per_second = hardware.bytes_per_second * memory_efficiency
        self.flops_per_second = hardware.peak(dtype) * compute_efficiency
        kv_bytes = geometry.kv_values_per_token * self.kv_bytes_per_value
        super().__init__(draft_cost or DraftCost.free(), kv_bytes / self.bytes_per_second)

    @classmethod
    def from_numbers(
        cls,
        parameters: float,
        bytes_per_second: float,
        flops_per_second: float,
        *,
        launch_seconds: float = 0.0,
        bytes_per_parameter: float = 2.0,
        smoothing: float = 0.0,
        draft_cost: DraftCost | None = None,
    ) -> Roofline:
        """A dense model and a machine given by their numbers alone; the KV cache is not counted."""
        machine = Hardware(
            name="by numbers",
            flops_per_second={"bfloat16": flops_per_second},
            bytes_per_second=bytes_per_second,
            memory_bytes=parameters * bytes_per_parameter,
            launch_seconds=launch_seconds,
            sources=dict.fromkeys(("flops_per_second", "bytes_per_second", "memory_bytes", "launch_seconds"), "given"),
        )
        return cls(
            machine,
            ModelGeometry.dense(parameters),
            smoothing=smoothing,
            bytes_per_parameter=bytes_per_parameter,
            draft_cost=draft_cost,
        )

    def weight_bytes(self, positions: FloatArray | float = 1) -> FloatArray:
        """Bytes of weights that a pass over `positions` is expected to read."""
        return self.geometry.read_parameters(positions) * self.bytes_per_parameter

    def memory_seconds(self, positions: FloatArray | float) -> FloatArray:
        """Seconds of reading the weights in a pass over `positions`."""
        return self.weight_bytes(positions) / self.bytes_per_second

    def compute_seconds(self, positions: FloatArray | float) -> FloatArray:
        """Seconds of the matrix products of a pass over `positions`."""
        flops = 2.0 * self.geometry.multiplied_parameters * np.asarray(positions, dtype=float)
        return np.asarray(flops / self.flops_per_second)

    @property
    def ridge_point(self) -> float:
        """Positions at which arithmetic takes as long as memory; below it, positions are nearly free."""
        # Memory time is concave in T and positive at 0, arithmetic linear through 0: they cross once.
        high = 1.0
        while self.compute_seconds(high) < self.memory_seconds(high):
            high *= 2.0
        low = 0.0
        for _ in range(100):
            middle = 0.5 * (low + high)
            if self.compute_seconds(middle) < self.memory_seconds(middle):
                low = middle
            else:
                high = middle
        return high

    def curve(self, positions: IntArray) -> FloatArray:
        """Seconds of a pass over each of `positions` with an empty KV cache."""
        count = np.asarray(positions, dtype=float)
        memory, compute = self.memory_seconds(count), self.compute_seconds(count)
        seconds = np.maximum(memory, compute)
        if self.smoothing:
            width = self.smoothing * memory
            seconds = seconds + np.maximum(width - np.abs(memory - compute), 0.0) ** 2 / (4.0 * width)
        return np.asarray(seconds + self.hardware.launch_seconds)

    def context_seconds(self, positions: IntArray, context: float, sequences: int) -> float | FloatArray:
        """Seconds of attention at each of `positions` over a KV cache of `context` tokens in all."""
        memory = context * self.context_seconds_per_token
        each = self._attention_seconds(context, sequences)
        return np.asarray(np.maximum(memory, np.asarray(positions, dtype=float) * each))

    def _attention_seconds(self, context: float, sequences: int) -> float:
        """Seconds of attention's arithmetic for each position, each over one sequence's mean context."""
        return self.geometry.attention_flops * context / (max(sequences, 1) * self.flops_per_second)

    def _with_context(self, seconds: FloatArray, first: int, context: float, sequences: int) -> FloatArray:
        memory = context * self.context_seconds_per_token
        each = self._attention_seconds(context, sequences)
        if (first + len(seconds) - 1) * each <= memory:
            return seconds + memory
        return seconds + np.maximum(memory, self._positions[first : first + len(seconds)] * each)

    def __repr__(self) -> str:
        return (
            f"Roofline({self.hardware.name}, {self.geometry.model_type}, {self.dtype}: "
            f"{float(self.weight_bytes(1)) / 1e9:.3g} GB a pass, ridge at {self.ridge_point:.3g} positions)"
        )


def _size(name: str, value: float | None, dtype: str) -> float:
    if value is None:
        return DTYPE_BYTES[dtype]
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}; it must be finite and positive")
    return float(value)
