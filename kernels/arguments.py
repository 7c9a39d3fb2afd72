"""What the kernels' arguments must be; every error names the argument, and is raised before anything is launched."""

from __future__ import annotations

import torch
from torch import Tensor

from adaptive_spec.kernels import backend

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check_logits(name: str, logits: Tensor) -> None:
    """Check a matrix of logits."""
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"{name} must have the shape [rows, vocabulary], not {list(logits.shape)}")
    if logits.dtype not in FLOATS:
        raise ValueError(f"{name} must be float32, bfloat16 or float16, not {logits.dtype}")


def check_vector(name: str, tensor: Tensor, dtype: torch.dtype, length: int, device: torch.device, of: str) -> None:
    """Check type, length and device of a vector; `of` names the argument whose device is meant."""
    if tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, not {tensor.dtype}")
    if tensor.dim() != 1 or tensor.shape[0] != length:
        raise ValueError(f"{name} must have the shape [{length}], not {list(tensor.shape)}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, {of} on {device}")


def check_offsets(cu: Tensor, rows: int, widest: int | None, device: torch.device, of: str, allowed: str) -> None:
    """Check ``cu``: from 0 to `rows`, rising by 1 to `widest` (named `allowed`) a sequence."""
    if cu.dim() != 1 or cu.shape[0] == 0:
        raise ValueError(f"cu must have the shape [sequences + 1], not {list(cu.shape)}")
    check_vector("cu", cu, torch.int32, cu.shape[0], device, of)
    if not backend.reads_values(cu):
        return
    offsets = cu.cpu().numpy()
    if offsets[0] != 0 or offsets[-1] != rows:
        raise ValueError(f"cu must run from 0 to the {rows} rows of {of}, not {offsets[0]} to {offsets[-1]}")
    width = offsets[1:] - offsets[:-1]
    if len(width) and width.min() < 1:
        raise ValueError(f"cu must rise by at least 1 a sequence; sequence {width.argmin()} has {width.min()} rows")
    if widest is not None and len(width) and width.max() > widest:
        raise ValueError(f"cu gives sequence {width.argmax()} {width.max()} rows; {allowed} allows {widest}")


def check_verification(logits: Tensor, cu: Tensor, draft: Tensor, max_depth: int) -> None:
    """Check what all ways of verification share."""
    check_logits("logits", logits)
    if max_depth < 0:
        raise ValueError(f"max_depth must be 0 or more, not {max_depth}")
    if cu.dim() == 1 and cu.shape[0] and logits.shape[0] < cu.shape[0] - 1:
        raise ValueError(f"logits has {logits.shape[0]} rows for {cu.shape[0] - 1} sequences: each needs one")
    if cu.dim() == 1 and cu.shape[0] and cu.dtype == torch.int32:
        drafts = logits.shape[0] - (cu.shape[0] - 1)
        check_vector("draft", draft, torch.int32, drafts, logits.device, "logits")
    check_offsets(cu, logits.shape[0], max_depth + 1, logits.device, "logits", f"max_depth {max_depth}")


def check_sampling(
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    position: Tensor,
    batch: int,
    device: torch.device,
) -> None:
    """Check the sampling parameters of a batch."""
    for name, tensor, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("seed", seed, torch.int64),
        ("sample_index", sample_index, torch.int64),
        ("position", position, torch.int64),
    ):
        check_vector(name, tensor, dtype, batch, device, "logits")


def check_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, cu: Tensor, kv_len: Tensor, max_width: int | None
) -> None:
    """Check attention's arguments."""
    if q.dim() != 3 or q.shape[2] == 0 or q.stride(2) != 1:
        raise ValueError(f"q must have the shape [rows, heads, head_dim], head_dim contiguous, not {list(q.shape)}")
    if q.dtype not in FLOATS:
        raise ValueError(f"q must be float32, bfloat16 or float16, not {q.dtype}")
    _check_cache("k_cache", k_cache, q.shape[2], q)
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(f"q has {q.shape[1]} heads, no multiple of the {k_cache.shape[2]} heads of k_cache")
    _check_cache("v_cache", v_cache, q.shape[2], q)
    if v_cache.shape != k_cache.shape or v_cache.stride() != k_cache.stride():
        raise ValueError(f"v_cache must be laid out as k_cache, {list(k_cache.shape)}, not {list(v_cache.shape)}")
    widest = None if max_width is None else max_width
    check_offsets(cu, q.shape[0], widest, q.device, "q", f"max_width {max_width}")
    batch = cu.shape[0] - 1
    check_vector("kv_len", kv_len, torch.int32, batch, q.device, "q")
    if block_table.dtype != torch.int32:
        raise ValueError(f"block_table must be torch.int32, not {block_table.dtype}")
    if block_table.dim() != 2 or block_table.shape[0] != batch or (batch and block_table.stride(1) != 1):
        raise ValueError(f"block_table must have the shape [{batch}, blocks], not {list(block_table.shape)}")
    if block_table.device != q.device:
        raise ValueError(f"block_table is on {block_table.device}, q on {q.device}")
    if not (batch and backend.reads_values(kv_len)):
        return
    length, width = kv_len.cpu(), (cu[1:] - cu[:-1]).cpu()
    if bool((length < width).any()):
        b = int((length < width).int().argmax())
        raise ValueError(f"kv_len must count the new rows too; sequence {b} has {width[b]} rows and {length[b]} tokens")
    page = k_cache.shape[1]
    if int(length.max()) > block_table.shape[1] * page:
        raise ValueError(f"kv_len is up to {length.max()}, block_table holds {block_table.shape[1]} blocks of {page}")
    used = torch.arange(block_table.shape[1]) * page < length[:, None]
    blocks = block_table.cpu()[used]
    if int(blocks.min()) < 0 or int(blocks.max()) >= k_cache.shape[0]:
        raise ValueError(
            f"block_table must name blocks 0 to {k_cache.shape[0] - 1}, not {blocks.min()} to {blocks.max()}"
        )


def _check_cache(name: str, cache: Tensor, head_dim: int, q: Tensor) -> None:
    if cache.dim() != 4 or cache.shape[3] != head_dim or 0 in cache.shape or cache.stride(3) != 1:
        raise ValueError(f"{name} must have the shape [blocks, block_size, heads, {head_dim}], not {list(cache.shape)}")
    if cache.dtype != q.dtype:
        raise ValueError(f"{name} must be {q.dtype} as q is, not {cache.dtype}")
    if cache.device != q.device:
        raise ValueError(f"{name} is on {cache.device}, q on {q.device}")


def check_write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Check what is written to the cache."""
    if k.dim() != 3 or (k.shape[0] and not k[0].is_contiguous()):
        raise ValueError(f"k must have the shape [rows, heads, head_dim], rows contiguous, not {list(k.shape)}")
    if k.dtype not in FLOATS:
        raise ValueError(f"k must be float32, bfloat16 or float16, not {k.dtype}")
    if v.shape != k.shape or v.stride() != k.stride() or v.dtype != k.dtype or v.device != k.device:
        raise ValueError(f"v must be like k, {list(k.shape)} {k.dtype}, not {list(v.shape)} {v.dtype}")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _check_cache(name, cache, k.shape[2], k)
        if cache.shape[2] != k.shape[1] or not cache.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous with {k.shape[1]} heads, as k has, not of shape {list(cache.shape)}"
            )
    check_vector("slots", slots, torch.int64, k.shape[0], k.device, "k")
    if len(slots) and backend.reads_values(slots):
        most = k_cache.shape[0] * k_cache.shape[1]
        if int(slots.max()) >= most:
            raise ValueError(f"slots must be under {most}, not {int(slots.max())}")


def check_rotation(
    heads: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    queries: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> None:
    """Check the arguments of rotary position embedding."""
    if heads.dim() != 3 or heads.shape[2] == 0 or heads.shape[2] % 2 or heads.stride(2) != 1:
        raise ValueError(f"heads must have the shape [rows, heads, even head_dim], not {list(heads.shape)}")
    if heads.dtype not in FLOATS:
        raise ValueError(f"heads must be float32, bfloat16 or float16, not {heads.dtype}")
    rows, count, head_dim = heads.shape
    check_vector("positions", positions, torch.int64, rows, heads.device, "heads")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dim() != 2 or table.shape[1] != head_dim // 2 or not table.is_contiguous():
            raise ValueError(f"{name} must have the shape [positions, {head_dim // 2}], not {list(table.shape)}")
        if table.dtype != torch.float32 or table.device != heads.device or len(table) != len(cos):
            raise ValueError(f"{name} must be float32 on {heads.device}, of {len(cos)} positions")
    if not 0 <= queries <= count:
        raise ValueError(f"queries must be 0 to the {count} heads, not {queries}")
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm and k_norm come together")
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        if norm is not None:
            check_vector(name, norm, torch.float32, head_dim, heads.device, "heads")
    if len(positions) and backend.reads_values(positions):
        least, most = int(positions.min()), int(positions.max())
        if least < 0 or most >= len(cos):
            raise ValueError(f"positions must be 0 to {len(cos) - 1}, not {least} to {most}")


def check_allocation(
    survival: Tensor, weight: Tensor, limit: Tensor, verify_seconds: Tensor, draft_seconds: Tensor
) -> None:
    """Check what is allocated, and the cost tables' lengths."""
    if survival.dim() != 2 or survival.shape[1] == 0:
        raise ValueError(f"survival must have the shape [sequences, depths], not {list(survival.shape)}")
    if survival.dtype != torch.float32:
        raise ValueError(f"survival must be torch.float32, not {survival.dtype}")
    batch, depths = survival.shape
    check_vector("weight", weight, torch.float32, batch, survival.device, "survival")
    check_vector("limit", limit, torch.int32, batch, survival.device, "survival")
    for name, tensor, least in (
        ("verify_seconds", verify_seconds, batch * depths + 1),
        ("draft_seconds", draft_seconds, depths + 1),
    ):
        if tensor.dim() != 1 or tensor.shape[0] < least:
            raise ValueError(
                f"{name} must have at least {least} entries for {batch} sequences of depth {depths}, "
                f"not the shape {list(tensor.shape)}"
            )
        check_vector(name, tensor, torch.float32, tensor.shape[0], survival.device, "survival")


def check_cells(odds_against: Tensor, cell: Tensor) -> None:
    """Check the population's levels, and each sequence's cell in them."""
    if odds_against.dim() != 2 or 0 in odds_against.shape or not odds_against.is_contiguous():
        raise ValueError(f"odds_against must have the shape [depths, cells], not {list(odds_against.shape)}")
    if odds_against.dtype != torch.float32:
        raise ValueError(f"odds_against must be torch.float32, not {odds_against.dtype}")
    check_vector("cell", cell, torch.int32, cell.shape[0] if cell.dim() else 0, odds_against.device, "odds_against")
    if len(cell) and backend.reads_values(cell):
        least, most = int(cell.min()), int(cell.max())
        if least < 0 or most >= odds_against.shape[1]:
            raise ValueError(f"cell must be 0 to {odds_against.shape[1] - 1}, not {least} to {most}")


def check_pair(first: str, a: Tensor | None, second: str, b: Tensor | None, batch: int, device: torch.device) -> None:
    """Check two float vectors that come together or not at all."""
    if (a is None) != (b is None):
        raise ValueError(f"{second if a is not None else first} is missing: {first} and {second} come together")
    for name, tensor in ((first, a), (second, b)):
        if tensor is not None:
            check_vector(name, tensor, torch.float32, batch, device, "odds_against")


def check_counts(verified: Tensor, accepted: Tensor, depths: int, batch: int, device: torch.device) -> None:
    """Check drafts judged and kept."""
    check_vector("verified", verified, torch.int32, batch, device, "odds_against")
    check_vector("accepted", accepted, torch.int32, batch, device, "odds_against")
    if batch and backend.reads_values(verified):
        if int(verified.max()) > depths:
            raise ValueError(f"verified must be at most {depths}, not {int(verified.max())}")
        if int(accepted.min()) < 0 or bool((accepted > verified).any()):
            raise ValueError("accepted must lie between 0 and verified")
