"""Rotary embedding: the kernel and the definition agree on any heads, norm and type; what else lies there stays."""

from __future__ import annotations

import pytest
import torch

from adaptive_spec.kernels import ops, reference_rotary

LENGTH = 40


def problem(dtype, queries, keys, head_dim, norm, rows=7):
    """Heads amid a projection's values, that are to stay; positions anywhere."""
    g = torch.Generator().manual_seed(queries * 100 + head_dim)
    projected = torch.randn(rows, queries + 2 * keys, head_dim, generator=g).to(dtype)
    angles = torch.rand(LENGTH, head_dim // 2, generator=g) * 6
    norms = {}
    if norm:
        norms = {name: torch.randn(head_dim, generator=g) for name in ("q_norm", "k_norm")} | {"eps": 1e-2}
    positions = torch.randint(0, LENGTH, (rows,), generator=g)
    return projected, positions, angles.cos(), angles.sin(), norms


def by_the_letter(projected, positions, cos, sin, queries, keys, norms):
    """In float64, head by head, as complex numbers."""
    out = projected.double().clone()
    half = projected.shape[2] // 2
    for row, position in enumerate(positions.tolist()):
        turn = torch.complex(cos[position].double(), sin[position].double())
        for head in range(queries + keys):
            x = out[row, head].clone()
            if norms:
                x = (
                    x
                    / ((x * x).mean() + norms["eps"]).sqrt()
                    * norms["q_norm" if head < queries else "k_norm"].double()
                )
            turned = torch.complex(x[:half], x[half:]) * turn
            out[row, head] = torch.cat((turned.real, turned.imag))
    return out


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    ("dtype", "queries", "keys", "head_dim", "tolerance"),
    [
        (torch.float32, 4, 2, 64, 1e-5),
        (torch.float32, 30, 5, 8, 1e-5),
        (torch.float32, 1, 1, 96, 1e-5),
        (torch.bfloat16, 9, 3, 128, 4e-2),
        (torch.float16, 2, 1, 6, 5e-3),
    ],
)
def test_heads_are_turned_in_place(device, dtype, queries, keys, head_dim, tolerance, norm):
    from adaptive_spec.kernels import rotary

    projected, positions, cos, sin, norms = problem(dtype, queries, keys, head_dim, norm)
    want = by_the_letter(projected, positions, cos, sin, queries, keys, norms)
    for function in (rotary.rotate, reference_rotary.rotate):
        got = projected.clone().to(device)
        on_device = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in norms.items()}
        function(
            got[:, : queries + keys], positions.to(device), cos.to(device), sin.to(device), queries=queries, **on_device
        )
        torch.testing.assert_close(got.double().cpu(), want, atol=tolerance, rtol=tolerance)
        assert torch.equal(got[:, queries + keys :].cpu(), projected[:, queries + keys :])


def test_no_rows(device):
    from adaptive_spec.kernels import rotary

    _, _, cos, sin, _ = problem(torch.float32, 2, 1, 8, False)
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    rotary.rotate(torch.zeros(0, 3, 8, device=device), nothing, cos.to(device), sin.to(device), queries=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": torch.zeros(7, 3, 7)}, "heads must have the shape"),
        ({"heads": torch.zeros(7, 3, 8, dtype=torch.float64)}, "heads must be float32"),
        ({"positions": torch.zeros(7, dtype=torch.int32)}, "positions must be torch.int64"),
        ({"positions": torch.full((7,), LENGTH)}, "positions must be 0 to 39, not 40 to 40"),
        ({"cos": torch.zeros(LENGTH, 3)}, r"cos must have the shape \[positions, 4\]"),
        ({"sin": torch.zeros(LENGTH - 1, 4)}, "sin must be float32 on cpu, of 40 positions"),
        ({"queries": 4}, "queries must be 0 to the 3 heads, not 4"),
        ({"q_norm": torch.ones(8)}, "q_norm and k_norm come together"),
        ({"q_norm": torch.ones(8), "k_norm": torch.ones(6)}, "k_norm must have the shape"),
    ],
)
def test_bad_arguments_are_named(change, message):
    _, positions, cos, sin, _ = problem(torch.float32, 2, 1, 8, False)
    arguments = {"heads": torch.zeros(7, 3, 8), "positions": positions, "cos": cos, "sin": sin, "queries": 2, **change}
    with pytest.raises(ValueError, match=message):
        ops.rotate(**arguments)
