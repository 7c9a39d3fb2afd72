"""Verification: greedy, by match, by ratio; checked, and sent to what serves the logits' device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adaptive_spec.kernels import arguments, backend, noise, reference

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    arguments.check_verification(logits, cu, draft, max_depth)
    served_by = backend.backend_of(logits)
    if served_by == "triton":
        from adaptive_spec.kernels import verify

        return verify.verify_greedy(logits, cu, draft, max_depth)
    if served_by == "torch":
        return reference.verify_greedy(logits, cu, draft, max_depth)
    from adaptive_spec.kernels import cpu

    tokens, count = _results(cu, max_depth)
    cpu.verify_greedy(_array(logits.float()), _array(cu), _array(draft), tokens.numpy(), count.numpy())
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
    arguments.check_verification(logits, cu, draft, max_depth)
    sampling = (temperature, top_k, top_p, seed, sample_index, position)
    arguments.check_sampling(*sampling, batch=cu.shape[0] - 1, device=logits.device)
    served_by = backend.backend_of(logits)
    if served_by != "cpu":
        if served_by == "triton":
            from adaptive_spec.kernels.verify import verify_match as verify
        else:
            verify = reference.verify_match
        return verify(
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

    tokens, count = _results(cu, max_depth)
    cpu.verify_match(
        _array(logits.float()),
        _array(cu),
        _array(draft),
        *_sampling_arrays(*sampling),
        tokens.numpy(),
        count.numpy(),
    )
    return tokens, count


def verify_ratio(
    logits: Tensor,
    cu: Tensor,
    draft: Tensor,
    max_depth: int,
    *,
    draft_logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """Accept sampled drafts by the ratio of target to draft probability, and replace the first refused.

    Draft x, drawn from q, is accepted with chance min(1, p(x) / q(x)); the token after the accepted ones is drawn
    from max(0, p - q), or from p where all were accepted: each token then follows p exactly (Leviathan et al.,
    2023; Chen et al., 2023). p is the target's softmax at the temperature, truncated as in
    :func:`verify_match`. Draws are those of :mod:`adaptive_spec.kernels.noise`, in streams other than the match
    mode's. A greedy sequence accepts what equals the argmax.

    Parameters
    ----------
    logits, cu, draft, max_depth
        As in :func:`verify_greedy`.
    draft_logits : float tensor, shape (N - B, V)
        What each draft was drawn from: q is their softmax at the sequence's temperature. A drafter that truncates
        sets the logits that it leaves out to minus infinity.
    temperature, top_k, top_p, seed, sample_index, position
        As in :func:`verify_match`.

    Returns
    -------
    tokens, count
        As in :func:`verify_greedy`.

    Raises
    ------
    ValueError
        Naming the argument whose shape, dtype, device or offsets are wrong.
    """
    arguments.check_verification(logits, cu, draft, max_depth)
    arguments.check_logits("draft_logits", draft_logits)
    if draft_logits.shape != (draft.shape[0], logits.shape[1]):
        raise ValueError(
            f"draft_logits must have the shape {[draft.shape[0], logits.shape[1]]}, not {list(draft_logits.shape)}"
        )
    if draft_logits.device != logits.device:
        raise ValueError(f"draft_logits is on {draft_logits.device}, logits on {logits.device}")
    sampling = (temperature, top_k, top_p, seed, sample_index, position)
    arguments.check_sampling(*sampling, batch=cu.shape[0] - 1, device=logits.device)
    served_by = backend.backend_of(logits)
    if served_by != "cpu":
        if served_by == "triton":
            from adaptive_spec.kernels.ratio import verify_ratio as verify
        else:
            verify = reference.verify_ratio
        return verify(
            logits,
            cu,
            draft,
            max_depth,
            draft_logits=draft_logits,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            sample_index=sample_index,
            position=position,
        )
    from adaptive_spec.kernels import cpu_ratio

    tokens, count = _results(cu, max_depth)
    cpu_ratio.verify_ratio(
        _array(logits.float()),
        _array(cu),
        _array(draft),
        _array(draft_logits.float()),
        *_sampling_arrays(*sampling),
        tokens.numpy(),
        count.numpy(),
    )
    return tokens, count


def _array(tensor: Tensor) -> NDArray[Any]:
    """Return the C-contiguous array that numba's signatures ask for, without a copy where it is one."""
    array: NDArray[Any] = tensor.detach().contiguous().numpy()
    return array


def _sampling_arrays(
    temperature: Tensor, top_k: Tensor, top_p: Tensor, seed: Tensor, sample_index: Tensor, position: Tensor
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the sampling parameters as arrays, the temperature as 1/T."""
    inverse = _array(noise.inverse_temperature(temperature))
    return inverse, _array(top_k), _array(top_p), _array(seed), _array(sample_index), _array(position)


def _results(cu: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    """Return the tokens and counts to fill."""
    batch = cu.shape[0] - 1
    return torch.full((batch, max_depth + 1), -1, dtype=torch.int32), torch.empty(batch, dtype=torch.int32)
