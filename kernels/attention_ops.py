"""Attention over the paged cache, and writing to it; checked, and sent to what serves the device."""

from __future__ import annotations

from torch import Tensor

from adaptive_spec.kernels import arguments, backend, cpu_attention, reference_attention


def verify_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu: Tensor,
    kv_len: Tensor,
    scale: float,
    *,
    max_width: int | None = None,
) -> Tensor:
    """Attend causally for ragged new rows over a paged cache; decoding sequences and prefill chunks in one call.

    Row j of a sequence's w new rows sees its first ``kv_len - w + j + 1`` tokens, which are in the cache.

    Parameters
    ----------
    q : float32, bfloat16 or float16 tensor, shape (N, HQ, D)
        Rotated queries; sequence b owns rows ``cu[b] .. cu[b+1] - 1``.
    k_cache, v_cache : tensor, shape (P, S, HKV, D)
        Keys and values in blocks of S tokens, same type and layout; HKV divides HQ.
    block_table : int32 tensor, shape (B, any)
        Blocks of each sequence in order; what follows a sequence's last is ignored.
    cu : int32 tensor, shape (B + 1,)
        Rises from 0 to N by at least 1.
    kv_len : int32 tensor, shape (B,)
        Tokens of each sequence in the cache, the new rows included.
    scale : float
        What scores are multiplied by.
    max_width : int, optional
        No sequence has more rows; lets a GPU use smaller tiles where all are narrow.

    Returns
    -------
    tensor, shape (N, HQ, D)

    Raises
    ------
    ValueError
        Naming the argument whose shape, dtype, device or values are wrong.
    """
    arguments.check_attention(q, k_cache, v_cache, block_table, cu, kv_len, max_width)
    served_by = backend.backend_of(q)
    if served_by == "triton":
        from adaptive_spec.kernels.attention import verify_attention as attend
    else:
        attend = reference_attention.verify_attention if served_by == "torch" else cpu_attention.verify_attention
    return attend(q, k_cache, v_cache, block_table, cu, kv_len, scale, max_width=max_width)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write new keys and values to their slots of the paged cache, in place.

    Parameters
    ----------
    k, v : tensor, shape (N, HKV, D)
        Rotated keys, and values.
    k_cache, v_cache : tensor, shape (P, S, HKV, D)
        Contiguous.
    slots : int64 tensor, shape (N,)
        ``block * S + offset``, all different; a negative one is not written (padding of a captured graph).

    Raises
    ------
    ValueError
        Naming the argument whose shape, dtype, device or values are wrong.
    """
    arguments.check_write_kv(k, v, k_cache, v_cache, slots)
    if backend.backend_of(k) == "triton":
        from adaptive_spec.kernels import attention

        attention.write_kv(k, v, k_cache, v_cache, slots)
    else:
        reference_attention.write_kv(k, v, k_cache, v_cache, slots)
