"""The kernels' front door: checks the arguments, and sends each call to the backend of the logits' device.

Layout of every ragged argument: sequence b of B owns rows ``cu[b] .. cu[b+1] - 1`` of the target's logits, its
depth plus one. Row ``cu[b] + j`` scores draft j; the last row is the bonus row. Drafts are packed without
padding, so draft j of sequence b is ``draft[cu[b] - b + j]``. A draft id outside the vocabulary (-1, say) is
never accepted.

Tokens that may not be emitted (end of text before ``min_tokens``) are the caller's to mask: set their logits to
minus infinity in place, in every row whose output position is too early. NaN counts as minus infinity, and a
row with nothing else yields token 0.

CPU logits go to numba (imported at the first call), others to the torch reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adaptive_spec.kernels import noise, reference

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def verify_greedy(logits: Tensor, cu: Tensor, draft: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    """Accept each sequence's drafts while they equal the argmax of their rows.

    Parameters
    ----------
    logits : float32, bfloat16 or float16 tensor, shape (N, V)
    cu : int32 tensor, shape (B + 1,)
        First row of each sequence; rises from 0 to N by at least 1 and at most ``max_depth + 1``.
    draft : int32 tensor, shape (N - B,)
    max_depth : int
        Sets the width of the result.

    Returns
    -------
    tokens : int32 tensor, shape (B, max_depth + 1)
        Accepted drafts and then the target's own token, padded with -1. Ties go to the lowest token id.
    count : int32 tensor, shape (B,)
        Tokens emitted: accepted drafts plus one.

    Raises
    ------
    ValueError
        Naming the argument whose shape, dtype, device or offsets are wrong.
    """
    _check_logits(logits, cu, draft, max_depth)
    if logits.device.type != "cpu":
        return reference.verify_greedy(logits, cu, draft, max_depth)
    from adaptive_spec.kernels import cpu

    rows, offsets, drafts, tokens, count = _cpu_arrays(logits, cu, draft, max_depth)
    cpu.verify_greedy(rows, offsets, drafts, tokens.numpy(), count.numpy())
    return tokens, count


def verify_match(
    logits: Tensor,
    cu: Tensor,
    draft: Tensor,
    max_depth: int,
    *,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sample every row with noise that depends on the request alone; accept drafts while they are the sample.

    Each row's token is ``argmax(logit / T + Gumbel noise)`` over its top-k / top-p set, which is a draw from
    the softmax (Gumbel-max). The noise is keyed by seed, sample index, output position and token id
    (:mod:`adaptive_spec.kernels.noise`), so the text does not depend on drafts, depths or batch. For a draft that is
    a function of the text, acceptance is as likely as under the rule of Leviathan et al. (2023) and Chen et
    al. (2023). The set is defined in :func:`adaptive_spec.kernels.reference.match_scores`.

    Parameters
    ----------
    logits, cu, draft, max_depth
        As in :func:`verify_greedy`.
    temperature : float32 tensor, shape (B,)
        0 (anything under 1e-5) is greedy.
    top_k : int32 tensor, shape (B,)
        0 or negative: off.
    top_p : float32 tensor, shape (B,)
        1: off.
    seed, sample_index : int64 tensor, shape (B,)
    position : int64 tensor, shape (B,)
        Output position of row ``cu[b]``; row ``cu[b] + j`` has ``position[b] + j``.

    Returns
    -------
    tokens, count
        As in :func:`verify_greedy`.

    Raises
    ------
    ValueError
        Naming the argument whose shape, dtype, device or offsets are wrong.
    """
    _check_logits(logits, cu, draft, max_depth)
    batch = cu.shape[0] - 1
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("seed", seed, torch.int64),
        ("sample_index", sample_index, torch.int64),
        ("position", position, torch.int64),
    ):
        _check_vector(name, tensor, dtype, batch, logits.device)
    if logits.device.type != "cpu":
        return reference.verify_match(
            logits,
            cu,
            draft,
            max_depth,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            sample_index=sample_index,
            position=position,
        )
    from adaptive_spec.kernels import cpu

    rows, offsets, drafts, tokens, count = _cpu_arrays(logits, cu, draft, max_depth)
    cpu.verify_match(
        rows,
        offsets,
        drafts,
        _array(noise.inverse_temperature(temperature)),
        _array(top_k),
        _array(top_p),
        _array(seed),
        _array(sample_index),
        _array(position),
        tokens.numpy(),
        count.numpy(),
    )
    return tokens, count


def _array(tensor: Tensor) -> NDArray[Any]:
    """Return the C-contiguous array that numba's signatures ask for, without a copy where it is one."""
    array: NDArray[Any] = tensor.detach().contiguous().numpy()
    return array


def _cpu_arrays(
    logits: Tensor, cu: Tensor, draft: Tensor, max_depth: int
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32], Tensor, Tensor]:
    """Return logits, offsets and drafts as arrays, and the tensors to fill; check the offsets' values."""
    offsets = _array(cu)
    rows = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != len(logits):
        raise ValueError(f"cu must run from 0 to the {len(logits)} rows of logits, not {offsets[0]} to {offsets[-1]}")
    if len(rows) and rows.min() < 1:
        raise ValueError(f"cu must rise by at least 1 a sequence; sequence {rows.argmin()} has {rows.min()} rows")
    if len(rows) and rows.max() > max_depth + 1:
        raise ValueError(
            f"cu gives sequence {rows.argmax()} {rows.max()} rows; max_depth {max_depth} allows {max_depth + 1}"
        )
    tokens = torch.full((len(rows), max_depth + 1), -1, dtype=torch.int32)
    count = torch.empty(len(rows), dtype=torch.int32)
    return _array(logits.float()), offsets, _array(draft), tokens, count


def _check_logits(logits: Tensor, cu: Tensor, draft: Tensor, max_depth: int) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must have the shape [rows, vocabulary], not {list(logits.shape)}")
    if logits.dtype not in _FLOATS:
        raise ValueError(f"logits must be float32, bfloat16 or float16, not {logits.dtype}")
    if max_depth < 0:
        raise ValueError(f"max_depth must be 0 or more, not {max_depth}")
    if cu.dim() != 1 or cu.shape[0] == 0:
        raise ValueError(f"cu must have the shape [sequences + 1], not {list(cu.shape)}")
    _check_vector("cu", cu, torch.int32, cu.shape[0], logits.device)
    drafts = logits.shape[0] - (cu.shape[0] - 1)
    if drafts < 0:
        raise ValueError(f"logits has {logits.shape[0]} rows for {cu.shape[0] - 1} sequences: each needs one")
    _check_vector("draft", draft, torch.int32, drafts, logits.device)


def _check_vector(name: str, tensor: Tensor, dtype: torch.dtype, length: int, device: torch.device) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, not {tensor.dtype}")
    if tensor.dim() != 1 or tensor.shape[0] != length:
        raise ValueError(f"{name} must have the shape [{length}], not {list(tensor.shape)}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, logits on {device}")
