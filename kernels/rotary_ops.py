"""Rotary position embedding, checked, and sent to what serves the device."""

from __future__ import annotations

from torch import Tensor

from adaptive_spec.kernels import arguments, backend, reference_rotary


def rotate(
    heads: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    queries: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Normalise query and key heads, where the model does, and turn them to their positions; in place, in float32.

    The halves a and b of a head become ``a cos - b sin`` and ``b cos + a sin`` (the form of GPT-NeoX and Llama).

    Parameters
    ----------
    heads : float32, bfloat16 or float16 tensor, shape (N, H, D)
        Query heads and then key heads of each row; D contiguous and even. Overwritten.
    positions : int64 tensor, shape (N,)
        Rows of the tables.
    cos, sin : float32 tensor, shape (L, D / 2)
    queries : int
        How many of the heads are queries.
    q_norm, k_norm : float32 tensor, shape (D,), optional
        Weights of the heads' root-mean-square norm; both or none.
    eps : float
        Of the norm.

    Raises
    ------
    ValueError
        Naming the argument whose shape, dtype, device or values are wrong.
    """
    arguments.check_rotation(heads, positions, cos, sin, queries, q_norm, k_norm)
    if backend.backend_of(heads) == "triton":
        from adaptive_spec.kernels.rotary import rotate as turn
    else:
        turn = reference_rotary.rotate
    turn(heads, positions, cos, sin, queries=queries, q_norm=q_norm, k_norm=k_norm, eps=eps)
