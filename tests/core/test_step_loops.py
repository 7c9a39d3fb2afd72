"""The compiled loops: the same as the Python they were compiled from, and loaded only where steps are taken."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec import step_loops
from adaptive_spec.compiled import compiled

DEPTHS, CELLS, ROWS = 5, 6, 12


def arguments(seed: int, sequences: int, effect: bool) -> list[Any]:
    """What :func:`learn_step` may be given."""
    rng = np.random.default_rng(seed)
    beta = rng.normal(0.0, 2.0, (DEPTHS, CELLS))
    verified = rng.integers(0, DEPTHS + 1, sequences)
    accepted = rng.integers(0, verified + 1)
    tables = (rng.normal(size=ROWS), rng.uniform(2.0, 20.0, ROWS), rng.uniform(0.0, 3.0, (2, ROWS)))
    return [
        np.exp(-beta), beta, rng.uniform(0.0, 9.0, (DEPTHS, CELLS)), rng.integers(0, 40, (DEPTHS, CELLS)),
        41, 1.3, 0.05, rng.permutation(ROWS)[:sequences], rng.integers(0, CELLS, sequences), verified, accepted,
        *(tables if effect else (np.zeros(0), np.zeros(0), np.zeros((2, 0)))), rng.uniform(0.1, 2.0), 0.95,
        bool(rng.integers(2)),
    ]  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), sequences=st.integers(1, ROWS), effect=st.booleans())
def test_learning_compiled_is_learning_in_python(seed: int, sequences: int, effect: bool) -> None:
    given_, plain = arguments(seed, sequences, effect), arguments(seed, sequences, effect)
    np.testing.assert_allclose(
        step_loops.learn_step(*given_), cast(Any, step_loops.learn_step).py_func(*plain), rtol=1e-12, atol=1e-12
    )
    for mine, theirs in zip(given_, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "value"),
    [("row", ROWS), ("row", -1), ("cell", CELLS), ("cell", -1), ("verified", DEPTHS + 1), ("accepted", DEPTHS + 1),
     ("accepted", -1)],
)  # fmt: skip
def test_what_lies_outside_the_tables_is_refused_and_nothing_learned(name: str, value: int) -> None:
    """Compiled code would read and write beyond its arrays."""
    given_ = arguments(3, 4, True)
    given_[7 + ["row", "cell", "verified", "accepted"].index(name)][2] = value
    before = [np.copy(item) for item in given_]
    with pytest.raises(ValueError, match=r"outside the tables|breaks 0 <= accepted <= verified"):
        step_loops.learn_step(*given_)
    for mine, theirs in zip(given_, before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), sequences=st.integers(1, ROWS))
def test_the_best_prefix_is_the_one_that_is_written_out(seed: int, sequences: int) -> None:
    rng = np.random.default_rng(seed)
    worth = np.cumprod(rng.choice([0.2, 0.5, 0.9, 1.0], (DEPTHS, sequences)), axis=0)
    offered = rng.integers(0, DEPTHS + 1, sequences)
    mask = 2 ** int(worth.size).bit_length() - 1
    keys = np.sort(step_loops.slot_keys(worth, offered, mask))
    slots = sorted(
        (k * sequences + i for k in range(DEPTHS) for i in range(sequences) if k < offered[i]),
        key=lambda slot: (-worth.ravel()[slot], slot),
    )
    assert (keys & mask).tolist() == slots
    verify, draft = rng.uniform(0.5, 2.0, worth.size + 1), float(rng.uniform(0.0, 0.3))
    for price in (np.nan, 0.7 * sequences):
        for cap in range(1, DEPTHS + 1):
            kept = [slot for slot in slots if slot < cap * sequences]
            tokens = sequences + np.concatenate(([0.0], np.cumsum(worth.ravel()[kept])))
            seconds = verify[: len(tokens)] + draft
            values = tokens / seconds if np.isnan(price) else tokens - price * seconds
            best = int(values.argmax())
            depth = np.full(sequences, -1)
            bought, value, worth_bought = step_loops.best_prefix(
                keys, mask, worth, offered, cap, float(sequences), verify, draft, price, depth
            )
            assert (bought, value) == (best, pytest.approx(values[best], rel=1e-13))
            assert worth_bought == pytest.approx(tokens[best], rel=1e-13)
            columns = [slot % sequences for slot in kept[:best]]
            assert depth.tolist() == [columns.count(i) for i in range(sequences)]


def test_numba_is_not_loaded_to_read_a_tuning_file_or_to_register_the_plugin() -> None:
    """vLLM's API server and its workers load the plugin too, and some fail if numba was there before them."""
    code = (
        "import sys; import adaptive_spec.config, adaptive_spec.policy, adaptive_spec.controller;"
        "import adaptive_spec.policies.roofline_budget, adaptive_spec.policies.acceptance_bandit;"
        "import adaptive_spec.vllm_plugin.plugin; from adaptive_spec.config import TuningConfig;"
        "TuningConfig.model_validate({'policy': {'name': 'roofline-budget'}}); assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_where_nothing_can_be_cached_it_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    njit = numba.njit

    def nowhere(*signature: str, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function 'twice': no locator available for file 'a.py'")
        return njit(*signature, **options)

    monkeypatch.setattr(numba, "njit", nowhere)
    assert compiled("int64(int64)")(lambda x: 2 * x)(21) == 42
