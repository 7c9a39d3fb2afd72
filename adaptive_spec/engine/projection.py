"""Projection: a linear layer whose weight is packed once for the CPU's matrix kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# oneDNN lays the weight out for passes of about this many rows; any number may follow.
_PACKED_FOR_ROWS = 16
# It compiles a kernel for every number of rows that it meets, some milliseconds each. Decoding passes get theirs
# beforehand; above so many rows, where prompts are, passes are filled up to a multiple.
_EACH_UNTIL = 128
_ROWS_TOGETHER = 16


class Projection:
    """``x @ weight.T + bias``, alone or fused with the element-wise operation that follows it.

    On a CPU the weight is packed with oneDNN, which is 1.5 to 2 times as fast for the few rows of a
    decoding pass as a plain linear layer, and makes the passes of 2 to 8 rows nearly as cheap as one of
    a single row. Elsewhere, and where torch was built without oneDNN, it is torch's linear layer.

    Parameters
    ----------
    weight : Tensor, shape (out, in)
    bias : Tensor, shape (out,), optional
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._bias = bias
        self._packed = _can_pack(weight)
        self._weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_FOR_ROWS) if self._packed else weight
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Return the projection of `x`, shape (rows, in)."""
        return self._unary(x, "none") if self._packed else F.linear(x, self._weight, self._bias)

    def silu(self, x: Tensor) -> Tensor:
        """Return silu of the projection."""
        return self._unary(x, "swish") if self._packed else F.silu(F.linear(x, self._weight, self._bias))

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the projection plus `other`, shape (rows, out)."""
        return self._binary(x, other, "add") if self._packed else F.linear(x, self._weight, self._bias) + other

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the projection times `other`, shape (rows, out)."""
        return self._binary(x, other, "mul") if self._packed else F.linear(x, self._weight, self._bias) * other

    def _unary(self, x: Tensor, name: str) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(_filled(x), self._weight, self._bias, name, [], "")
        return result[: len(x)]

    def _binary(self, x: Tensor, other: Tensor, name: str) -> Tensor:
        full, others = _filled(x), _filled(other)
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(full, others, self._weight, self._bias, name)
        return result[: len(x)]


def _filled(x: Tensor) -> Tensor:
    """`x`, with rows of zeros where it has many, so that prompts of all lengths share a few compiled kernels."""
    missing = -len(x) % _ROWS_TOGETHER
    return F.pad(x, (0, 0, 0, missing)) if missing and len(x) > _EACH_UNTIL else x


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.float32:
        return True
    return weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
