"""Verification in plain torch: the definition that every other backend is tested against, on any device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from adaptive_spec.kernels import noise

NEG_INF = float("-inf")


class NucleusEdge(NamedTuple):
    """How near a row's top-k / top-p cut is to falling elsewhere; infinite where nothing is cut.

    Attributes
    ----------
    probability : float
        Distance of ``top_p`` to the nearer of the cumulative probabilities without and with the last
        token kept.
    logit : float
        The least gap, in scaled logits, between the last token kept and the first one dropped, over both
        cuts (0 for tokens that tie across a top-k edge: all of them are kept, but rounding may part them).
    """

    probability: float
    logit: float

    def near(self, tolerance: float = 1e-4) -> bool:
        """Whether rounding of the size `tolerance` could change the set."""
        return min(self.probability, self.logit) < tolerance


def _clean(logits: Tensor) -> Tensor:
    """Return float32 logits in which NaN, which must never win, is minus infinity."""
    x = logits.float()
    return torch.where(torch.isnan(x), NEG_INF, x)


def _scaled(logits_row: Tensor, temperature: float) -> Tensor:
    """Return logit * (1/T), or the logits themselves where the temperature means greedy."""
    x = _clean(logits_row)
    inverse = noise.inverse_temperature(torch.tensor(temperature, device=x.device))
    return x if float(inverse) == 0.0 else x * inverse


def _masses(x: Tensor) -> Tensor:
    """Return softmax weights in float64 relative to the row's largest, infinities included."""
    difference = torch.where(x == x.max(), 0.0, x.double() - x.max().double())
    return torch.exp(difference)


def _top_k_threshold(x: Tensor, top_k: int) -> float:
    """Return the k-th largest value: tokens that tie with it are all kept, as in vLLM."""
    return float(torch.topk(x, top_k).values[-1]) if 0 < top_k < len(x) else NEG_INF


def _top_p_threshold(x: Tensor, top_p: float) -> float:
    """Return the least value above which strictly less than `top_p` of the mass lies."""
    if top_p >= 1.0:
        return NEG_INF
    values, inverse = torch.unique(x, sorted=True, return_inverse=True)  # ascending
    mass = torch.zeros(len(values), dtype=torch.float64, device=x.device)
    mass.index_add_(0, inverse, _masses(x))
    above = mass.flip(0).cumsum(0) - mass.flip(0)  # strictly greater, values descending
    keep = above < top_p * mass.sum()
    keep[0] = True
    return float(values.flip(0)[keep][-1])


def _thresholds(x: Tensor, top_k: int, top_p: float) -> tuple[float, float]:
    """Return the least scaled logits that top-k, and top-p on what is left, keep."""
    k_threshold = _top_k_threshold(x, top_k)
    p_threshold = _top_p_threshold(torch.where(x >= k_threshold, x, NEG_INF), _float32(top_p))
    return k_threshold, p_threshold


def _float32(value: float) -> float:
    """Round to float32, in which `top_p` reaches every backend."""
    return float(torch.tensor(value, dtype=torch.float32))


def match_scores(
    logits_row: Tensor,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    sample_index: int = 0,
    position: int = 0,
) -> Tensor:
    """Return the scores whose argmax is the token that match mode emits for one row.

    The candidates are the tokens whose scaled logit is at least the k-th largest and above which, among
    those, strictly less than `top_p` of the probability lies: top-k first, then top-p on what is left
    renormalised, as in vLLM. Tokens with equal logits are kept or dropped together.

    Parameters
    ----------
    logits_row : tensor, shape (V,)
    temperature : float
        Under 1e-5 it means greedy: no noise and no truncation.
    top_k : int
        0 or negative: off.
    top_p : float
        1: off.
    seed, sample_index, position : int
        What the noise is keyed by, beside the token.

    Returns
    -------
    float32 tensor, shape (V,)
        ``logit / T + Gumbel noise``; minus infinity outside the set.
    """
    x = _scaled(logits_row, temperature)
    if temperature < noise.GREEDY_TEMPERATURE:
        return x
    device = x.device
    words = torch.tensor([seed, sample_index, position], dtype=torch.int64, device=device)
    key = noise.row_key(words[0], words[1], words[2])
    scores = x + noise.gumbel(key, torch.arange(len(x), device=device))
    threshold = max(_thresholds(x, top_k, top_p))
    return torch.where(x >= threshold, scores, NEG_INF)


def nucleus_edge(logits_row: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> NucleusEdge:
    """Return how near the row's truncation is to a different set, so that tests can judge near-ties."""
    probability = logit = math.inf
    if temperature < noise.GREEDY_TEMPERATURE:
        return NucleusEdge(probability, logit)
    x = _scaled(logits_row, temperature)
    k_threshold, p_threshold = _thresholds(x, top_k, top_p)
    if 0 < top_k < len(x):
        edge = torch.topk(x, top_k + 1).values
        logit = float(edge[-2] - edge[-1])
    if top_p < 1.0:
        within = torch.where(x >= k_threshold, x, NEG_INF)
        mass = _masses(within) / _masses(within).sum()
        above = float(mass[within > p_threshold].sum())
        kept = float(mass[within >= p_threshold].sum())
        p = _float32(top_p)
        probability = min(abs(p - above), abs(p - kept))
        dropped = within[(within < p_threshold) & (within > NEG_INF)]
        if len(dropped):
            logit = min(logit, p_threshold - float(dropped.max()))
    return NucleusEdge(probability, logit)


def accept_matches(tokens: Tensor, cu: Tensor, draft: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    """Keep each sequence's tokens up to the first that differs from its draft.

    Parameters
    ----------
    tokens : int tensor, shape (N,)
        The target's token of every row.
    cu, draft, max_depth
        As in :func:`verify_match`.

    Returns
    -------
    tuple of int32 tensors, shapes (B, max_depth + 1) and (B,)
        Emitted tokens padded with -1, and how many were emitted: accepted drafts plus one.
    """
    device = tokens.device
    first = cu[:-1].long()
    depth = (cu[1:] - cu[:-1]).long() - 1
    j = torch.arange(max_depth + 1, device=device)
    is_row = j <= depth[:, None]
    is_draft = j < depth[:, None]
    emitted = tokens.long()[torch.where(is_row, first[:, None] + j, 0)]
    offset = (first - torch.arange(len(first), device=device))[:, None] + j
    padded = torch.cat([draft.long(), draft.new_full((1,), -1).long()])
    drafted = padded[torch.where(is_draft, offset, len(draft))]
    matches = is_draft & (emitted == drafted)
    accepted = matches.long().cumprod(1).sum(1)
    return (
        torch.where(j <= accepted[:, None], emitted, -1).int(),
        (accepted + 1).int(),
    )


def verify_greedy(logits: Tensor, cu: Tensor, draft: Tensor, max_depth: int) -> tuple[Tensor, Tensor]:
    """Verify drafts against the argmax of each row; see :func:`adaptive_spec.kernels.ops.verify_greedy`."""
    x = _clean(logits)
    # argmax alone leaves ties open on some devices: take the lowest token id.
    vocabulary = x.shape[1]
    token = torch.arange(vocabulary, device=x.device)
    tokens = torch.where(x == x.amax(1, keepdim=True), token, vocabulary).amin(1)
    return accept_matches(tokens, cu, draft, max_depth)


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
    """Verify drafts in match mode; see :func:`adaptive_spec.kernels.ops.verify_match`."""
    vocabulary = logits.shape[1]
    token = torch.arange(vocabulary, device=logits.device)
    tokens = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    for b in range(len(cu) - 1):
        for row in range(int(cu[b]), int(cu[b + 1])):
            scores = match_scores(
                logits[row],
                float(temperature[b]),
                int(top_k[b]),
                float(top_p[b]),
                int(seed[b]),
                int(sample_index[b]),
                int(position[b]) + row - int(cu[b]),
            )
            tokens[row] = torch.where(scores == scores.max(), token, vocabulary).min()
    return accept_matches(tokens, cu, draft, max_depth)


def _log_softmax(logits_row: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Return log p of the truncated distribution in float64; minus infinity everywhere if there is none."""
    x = _scaled(logits_row, temperature).clamp(max=torch.finfo(torch.float32).max)
    if not bool((x > NEG_INF).any()):
        return x.double()
    kept = torch.where(x >= max(_thresholds(x, top_k, top_p)), x, NEG_INF)
    return torch.log_softmax(kept.double(), 0)


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
    """Verify sampled drafts; see :func:`adaptive_spec.kernels.ops.verify_ratio`."""
    vocabulary, device = logits.shape[1], logits.device
    token = torch.arange(vocabulary, device=device)
    tokens = torch.full((len(cu) - 1, max_depth + 1), -1, dtype=torch.int32, device=device)
    count = torch.empty(len(cu) - 1, dtype=torch.int32, device=device)

    def lowest_best(scores: Tensor) -> int:
        return int(torch.where(scores == scores.max(), token, vocabulary).min())

    for b in range(len(cu) - 1):
        first, depth = int(cu[b]), int(cu[b + 1] - cu[b]) - 1
        heat = float(temperature[b])
        for j in range(depth + 1):
            row = logits[first + j]
            x = int(draft[first - b + j]) if j < depth else -1
            if heat < noise.GREEDY_TEMPERATURE:
                own = lowest_best(_clean(row))
                accept = x == own
            else:
                where = (seed[b], sample_index[b], position[b] + j)
                log_p = _log_softmax(row, heat, int(top_k[b]), float(top_p[b]))
                log_q = torch.full_like(log_p, NEG_INF)
                accept = False
                if j < depth:
                    log_q = _log_softmax(draft_logits[first - b + j], heat, 0, 1.0)
                if 0 <= x < vocabulary:
                    key = noise.row_key(*where, stream=noise.ACCEPT_STREAM)
                    u = noise.uniform(*noise.random_words(key, torch.zeros((), dtype=torch.int64, device=device)))
                    p, q = float(log_p[x].exp()), float(log_q[x].exp())
                    accept = p > 0.0 and float(u) * q <= p
                own = -1
                if not accept:
                    g = noise.gumbel(noise.row_key(*where, stream=noise.RESIDUAL_STREAM), token)
                    left = log_p.exp() - log_q.exp()
                    some = bool((left > 0.0).any())  # else p and q are equal, but for rounding
                    own = lowest_best((torch.where(left > 0.0, left.log(), NEG_INF) if some else log_p) + g)
            tokens[b, j] = x if accept else own
            if not accept:
                count[b] = j + 1
                break
    return tokens, count
