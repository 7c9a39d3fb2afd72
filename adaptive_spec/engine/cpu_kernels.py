"""CPU kernels, in numba: rotate queries and keys, write the paged KV cache, and attend over it.

bfloat16 does not exist in numpy, so that cache, projections and results are passed as their *bits*
(uint16, or uint32 for float32); arithmetic is float32 throughout. For each query row the order of all
sums depends on its context length alone, so a row's result is the same whatever else the pass carries.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from adaptive_spec.compiled import compiled, compiled_for_c

TILE = 128  # tokens between two rescalings of the running softmax
_LOG2E = np.float32(1.4426950408889634)
_FAST = {"reassoc", "contract", "nsz", "arcp"}  # NaN and infinity keep their meaning
_part: Any = compiled(fastmath=_FAST, nogil=True, error_model="numpy")


class Word(IntEnum):
    """What a kernel is told: the places of its int64 words, from `REALS` on addresses."""

    CLAIMED = 0
    ITEMS = 1
    ROWS = 2
    SEQUENCES = 3
    HEADS = 4
    KV_HEADS = 5
    HEAD_DIM = 6
    BLOCKS = 7
    BLOCK_SIZE = 8
    TABLE_WIDTH = 9
    PARTS = 10
    WIDEST = 11
    LENGTHS = 12
    NORM_DIM = 13
    REALS = 14
    QKV = 15
    COS = 16
    SIN = 17
    POSITIONS = 18
    SLOTS = 19
    K = 20
    V = 21
    Q_NORM = 22
    K_NORM = 23
    Q = 24
    TABLE = 25
    CU = 26
    KV_LEN = 27
    OUT = 28


_WORDS = len(Word)


@_part
def _rotate(row, first, heads, head_dim, qkv, shift, cos, sin, weight, eps, half, bits, out):  # type: ignore[no-untyped-def]
    """Normalise (if there is a weight) and rotate `heads` heads of one row; float32 results in `out`."""
    values = bits.view(np.float32)
    middle = head_dim // 2
    for h in range(heads):
        base = (first + h) * head_dim
        for d in range(head_dim):
            bits[d] = np.uint32(qkv[row, base + d]) << shift
        if weight.shape[0]:
            total = np.float32(0.0)
            for d in range(head_dim):
                total += values[d] * values[d]
            scale = np.float32(1.0) / np.sqrt(total / np.float32(head_dim) + eps)
            for d in range(head_dim):
                values[d] = values[d] * scale * weight[d]
        for d in range(middle):
            a = values[d]
            b = values[middle + d]
            out[h * head_dim + d] = a * cos[half, d] - b * sin[half, d]
            out[h * head_dim + middle + d] = b * cos[half, d] + a * sin[half, d]


@_part
def _store(bits, shift, count, out, at):  # type: ignore[no-untyped-def]
    """Write float32 bits to `out[at:at+count]`, rounded to nearest even where `out` is bfloat16."""
    for d in range(count):
        u = bits[d]
        if shift:
            u = u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))
        out[at + d] = u >> shift


@_part
def _project_row(row, qkv, shift, cos, sin, position, slot, k_flat, v_flat, q_norm, k_norm, eps, heads, q):  # type: ignore[no-untyped-def]
    """Rotate one row's query into `q` and its key, with its value, into the cache."""
    head_dim = cos.shape[1] * 2
    kv_heads = k_flat.shape[1] // head_dim
    bits = np.empty(head_dim, np.uint32)
    key = np.empty(kv_heads * head_dim, np.float32)
    _rotate(row, 0, heads, head_dim, qkv, shift, cos, sin, q_norm, eps, position, bits, q[row])
    _rotate(row, heads, kv_heads, head_dim, qkv, shift, cos, sin, k_norm, eps, position, bits, key)
    _store(key.view(np.uint32), shift, kv_heads * head_dim, k_flat[slot], 0)
    base = (heads + kv_heads) * head_dim
    for d in range(kv_heads * head_dim):
        v_flat[slot, d] = qkv[row, base + d]


@_part
def _exponentials(scores, count, top, powers):  # type: ignore[no-untyped-def]
    """Replace scores by exp(score - top) and return their sum (2**x by a polynomial, 1e-7 relative)."""
    total = np.float32(0.0)
    floats = powers.view(np.float32)
    for t in range(count):
        x = max((scores[t] - top) * _LOG2E, np.float32(-126.0))
        whole = np.floor(x)
        f = x - whole
        powers[t] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        p = np.float32(2.16138083e-4)
        p = p * f + np.float32(1.24673767e-3)
        p = p * f + np.float32(9.67553258e-3)
        p = p * f + np.float32(5.54852188e-2)
        p = p * f + np.float32(2.40229324e-1)
        p = p * f + np.float32(6.93147063e-1)
        scores[t] = p * f + np.float32(1.0)
    for t in range(count):
        scores[t] *= floats[t]
        total += scores[t]
    return total


@_part
def _load4(cache, table, first, end, head, heads, block_size, shift, bits):  # type: ignore[no-untyped-def]
    """Widen `heads` heads of tokens first..first+3 to float32 bits; tokens from `end` on are zero."""
    head_dim = cache.shape[3]
    for i in range(4):
        token = first + i
        row = bits[i]
        if token < end:
            block = table[token // block_size]
            entries = cache[block, token % block_size]
            for h in range(heads):
                for d in range(head_dim):
                    row[h * head_dim + d] = np.uint32(entries[head + h, d]) << shift
        else:
            for d in range(heads * head_dim):
                row[d] = np.uint32(0)


@_part
def _attend_one(q, k, v, shift, table, first_row, width, length, head, heads, group, scale, out):  # type: ignore[no-untyped-def]
    """Attention of one sequence's rows, for the query heads of key-value heads head..head+heads-1.

    Query r belongs to new row ``r // (heads * group)``; `group` query heads share a key-value head.
    """
    block_size = k.shape[1]
    head_dim = k.shape[3]
    wide = heads * group
    rows = width * wide
    queries = np.empty((rows, head_dim), np.float32)
    result = np.zeros((rows, head_dim), np.float32)
    scores = np.empty((rows, TILE), np.float32)
    top = np.full(rows, np.float32(-1e30))
    total = np.zeros(rows, np.float32)
    powers = np.empty(TILE, np.int32)
    bits = np.empty((4, heads * head_dim), np.uint32)
    four = bits.view(np.float32)
    for r in range(rows):
        base = (head * group + r % wide) * head_dim
        for d in range(head_dim):
            queries[r, d] = q[first_row + r // wide, base + d] * scale
    for start in range(0, length, TILE):
        tokens = min(TILE, length - start)
        for t in range(0, tokens, 4):
            _load4(k, table, start + t, length, head, heads, block_size, shift, bits)
            for h in range(heads):
                at = h * head_dim
                k0, k1 = four[0, at : at + head_dim], four[1, at : at + head_dim]
                k2, k3 = four[2, at : at + head_dim], four[3, at : at + head_dim]
                for j in range(width):
                    for r in range(j * wide + h * group, j * wide + (h + 1) * group):
                        s0 = np.float32(0.0)
                        s1 = np.float32(0.0)
                        s2 = np.float32(0.0)
                        s3 = np.float32(0.0)
                        for d in range(head_dim):
                            x = queries[r, d]
                            s0 += x * k0[d]
                            s1 += x * k1[d]
                            s2 += x * k2[d]
                            s3 += x * k3[d]
                        scores[r, t] = s0
                        scores[r, t + 1] = s1
                        scores[r, t + 2] = s2
                        scores[r, t + 3] = s3
        for r in range(rows):
            seen = min(tokens, length - width + r // wide + 1 - start)
            if seen > 0:
                highest = top[r]
                for t in range(seen):
                    highest = max(highest, scores[r, t])
                fade = np.exp(top[r] - highest) if start else np.float32(0.0)
                total[r] = total[r] * fade + _exponentials(scores[r], seen, highest, powers)
                top[r] = highest
                if start:
                    for d in range(head_dim):
                        result[r, d] *= fade
            for t in range(max(seen, 0), TILE):
                scores[r, t] = np.float32(0.0)
        for t in range(0, tokens, 4):
            _load4(v, table, start + t, length, head, heads, block_size, shift, bits)
            for h in range(heads):
                at = h * head_dim
                v0, v1 = four[0, at : at + head_dim], four[1, at : at + head_dim]
                v2, v3 = four[2, at : at + head_dim], four[3, at : at + head_dim]
                for j in range(width):
                    for r in range(j * wide + h * group, j * wide + (h + 1) * group):
                        p0 = scores[r, t]
                        p1 = scores[r, t + 1]
                        p2 = scores[r, t + 2]
                        p3 = scores[r, t + 3]
                        for d in range(head_dim):
                            result[r, d] += p0 * v0[d] + p1 * v1[d] + p2 * v2[d] + p3 * v3[d]
    for r in range(rows):
        inverse = np.float32(1.0) / total[r]
        for d in range(head_dim):
            result[r, d] *= inverse
        base = (head * group + r % wide) * head_dim
        _store(result[r].view(np.uint32), shift, head_dim, out[first_row + r // wide], base)


def _claim_typer(typing_context, words):  # type: ignore[no-untyped-def]
    """Add one to the first word, atomically, and return what it was: the next item of work to do."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", arguments[0], ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(words), generate


_claim: Any = intrinsic(_claim_typer)


def _pointer_typer(typing_context, address):  # type: ignore[no-untyped-def]
    """Turn an address into a pointer."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


_pointer: Any = intrinsic(_pointer_typer)


def _compile(bits: Any, shift: int) -> tuple[Any, Any]:
    """Compile both kernels for one width of entries; their ``address`` is a ``void (*)(int64_t *words)``.

    Any number of threads may run the same call: each claims one item of work after the other.
    """
    amount = np.uint32(shift)
    signature = types.void(types.CPointer(types.int64))  # type: ignore[no-untyped-call]

    @compiled_for_c(signature)
    def project(words):  # type: ignore[no-untyped-def]
        """Rotate rows and write their keys and values into the cache; an item is eight rows."""
        w = carray(words, _WORDS)
        rows, heads, kv_heads, head_dim = w[Word.ROWS], w[Word.HEADS], w[Word.KV_HEADS], w[Word.HEAD_DIM]
        slots, half = w[Word.BLOCKS] * w[Word.BLOCK_SIZE], head_dim // 2
        reals = carray(_pointer(w[Word.REALS]), (2,), np.float32)
        qkv = carray(_pointer(w[Word.QKV]), (rows, (heads + 2 * kv_heads) * head_dim), bits)
        cos = carray(_pointer(w[Word.COS]), (w[Word.LENGTHS], half), np.float32)
        sin = carray(_pointer(w[Word.SIN]), (w[Word.LENGTHS], half), np.float32)
        positions = carray(_pointer(w[Word.POSITIONS]), (rows,), np.int64)
        slot = carray(_pointer(w[Word.SLOTS]), (rows,), np.int64)
        k = carray(_pointer(w[Word.K]), (slots, kv_heads * head_dim), bits)
        v = carray(_pointer(w[Word.V]), (slots, kv_heads * head_dim), bits)
        q_norm = carray(_pointer(w[Word.Q_NORM]), (w[Word.NORM_DIM],), np.float32)
        k_norm = carray(_pointer(w[Word.K_NORM]), (w[Word.NORM_DIM],), np.float32)
        q = carray(_pointer(w[Word.Q]), (rows, heads * head_dim), np.float32)
        while True:
            item = _claim(words)
            if item >= w[Word.ITEMS]:
                break
            for row in range(item * 8, min(item * 8 + 8, rows)):
                _project_row(
                    row, qkv, amount, cos, sin, positions[row], slot[row], k, v, q_norm, k_norm, reals[0], heads, q
                )  # fmt: skip

    @compiled_for_c(signature)
    def attend(words):  # type: ignore[no-untyped-def]
        """Attend for every sequence of at most `widest` rows; an item is some heads of one sequence."""
        w = carray(words, _WORDS)
        rows, sequences, heads, kv_heads, head_dim = (
            w[Word.ROWS],
            w[Word.SEQUENCES],
            w[Word.HEADS],
            w[Word.KV_HEADS],
            w[Word.HEAD_DIM],
        )
        parts = w[Word.PARTS]
        reals = carray(_pointer(w[Word.REALS]), (2,), np.float32)
        k = carray(_pointer(w[Word.K]), (w[Word.BLOCKS], w[Word.BLOCK_SIZE], kv_heads, head_dim), bits)
        v = carray(_pointer(w[Word.V]), (w[Word.BLOCKS], w[Word.BLOCK_SIZE], kv_heads, head_dim), bits)
        q = carray(_pointer(w[Word.Q]), (rows, heads * head_dim), np.float32)
        table = carray(_pointer(w[Word.TABLE]), (sequences, w[Word.TABLE_WIDTH]), np.int32)
        cu = carray(_pointer(w[Word.CU]), (sequences + 1,), np.int32)
        kv_len = carray(_pointer(w[Word.KV_LEN]), (sequences,), np.int32)
        out = carray(_pointer(w[Word.OUT]), (rows, heads * head_dim), bits)
        while True:
            item = _claim(words)
            if item >= w[Word.ITEMS]:
                break
            b = item // parts
            part = item % parts
            width = np.int64(cu[b + 1] - cu[b])
            if 0 < width <= w[Word.WIDEST]:
                head = part * kv_heads // parts
                count = (part + 1) * kv_heads // parts - head
                _attend_one(
                    q, k, v, amount, table[b], np.int64(cu[b]), width, np.int64(kv_len[b]),
                    head, count, heads // kv_heads, reals[1], out,
                )  # fmt: skip

    return project, attend


@cache
def kernels(itemsize: int) -> tuple[Any, Any]:
    """Return the compiled (project, attend) for entries of 2 (bfloat16) or 4 (float32) bytes."""
    return _compile(np.uint16, 16) if itemsize == 2 else _compile(np.uint32, 0)
