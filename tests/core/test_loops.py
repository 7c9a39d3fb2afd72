"""The compiled loops: the same as the Python they were compiled from, and loaded only where steps are taken."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec import loops

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
        loops.learn_step(*given_), cast(Any, loops.learn_step).py_func(*plain), rtol=1e-12, atol=1e-12
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
        loops.learn_step(*given_)
    for mine, theirs in zip(given_, before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


WORTHS = {  # from all slots in one bucket to nearly all of them beyond the last
    "mixed": (0.3, 1.0), "wide": (0.0, 1.0), "rare": (1e-6, 1e-2), "equal": (0.75, 0.75), "near": (0.999, 1.0),
    "nothing": (0.0, 0.0),
}  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    sequences=st.sampled_from([1, 2, 5, 12, 200]),
    kind=st.sampled_from(sorted(WORTHS)),
    machine=st.sampled_from(["flat", "rising", "stairs", "jagged"]),
    weight=st.sampled_from([1.0, 1e-280, 1e9]),
)
def test_the_best_prefix_is_the_one_that_is_written_out(
    seed: int, sequences: int, kind: str, machine: str, weight: float
) -> None:
    rng = np.random.default_rng(seed)
    worth = weight * np.cumprod(rng.uniform(*WORTHS[kind], (DEPTHS, sequences)), axis=0)
    offered = rng.integers(0, DEPTHS + 1, sequences)
    n = np.arange(worth.size + 1)
    verify = {
        "flat": np.ones(len(n)),
        "rising": 1.0 + 0.6 * n / sequences,
        "stairs": 1.0 + 0.5 * (n // max(worth.size // 5, 1)),
        "jagged": rng.uniform(0.5, 2.0, len(n)),
    }[machine]
    draft = float(rng.uniform(0.0, 0.3))
    slots = [k * sequences + i for k in range(DEPTHS) for i in range(sequences) if k < offered[i]]
    slots.sort(key=lambda slot: (-worth.ravel()[slot], slot))
    for price in (np.nan, 0.7 * sequences * weight):
        for cap in range(1, DEPTHS + 1):
            kept = [slot for slot in slots if slot < cap * sequences]
            tokens = sequences * weight + np.concatenate(([0.0], np.cumsum(worth.ravel()[kept])))
            seconds = verify[: len(tokens)] + draft
            values = tokens / seconds if np.isnan(price) else tokens - price * seconds
            depth = np.full(sequences, -1)
            bought, value, worth_bought = loops.best_prefix(
                worth, offered, cap, sequences * weight, verify, draft, price, depth
            )
            scale = float(np.abs(values).max())
            assert value == pytest.approx(float(values.max()), abs=1e-12 * scale)
            assert value == pytest.approx(float(values[bought]), abs=1e-12 * scale)
            assert worth_bought == pytest.approx(float(tokens[bought]), rel=1e-12)
            assert bought == depth.sum()
            assert (depth >= 0).all()
            assert (depth <= np.minimum(offered, cap)).all()
            gained = worth[np.arange(DEPTHS)[:, None] < depth].sum()
            assert sequences * weight + gained == pytest.approx(worth_bought, rel=1e-12)


def test_of_equal_objectives_the_one_with_fewer_slots_is_taken() -> None:
    """Inside a bucket, where these slots all are, as at its ends."""
    worth = np.array([[2.0, 2.0, 2.0, 2.0]])
    offered, depth = np.ones(4, dtype=np.int64), np.empty(4, dtype=np.int64)
    for seconds, fewest in (([1, 1.5, 2, 2.5, 3], 0), ([2, 1.5, 2, 2.5, 3], 1), ([2, 2, 1, 1.25, 1.5], 2)):
        bought, value, _ = loops.best_prefix(worth, offered, 1, 4.0, np.array(seconds, float), 0.0, np.nan, depth)
        assert value == 12.0 / seconds[-1]
        assert (bought, depth.sum()) == (fewest, fewest)


def test_numba_is_not_loaded_to_read_a_tuning_file_or_to_register_the_plugin() -> None:
    """vLLM's API server and its workers load the plugin too, and some fail if numba was there before them."""
    code = (
        "import sys; import adaptive_spec.config, adaptive_spec.policy, adaptive_spec.controller;"
        "import adaptive_spec.policies.roofline_budget, adaptive_spec.policies.acceptance_bandit;"
        "import adaptive_spec.vllm_plugin.plugin; from adaptive_spec.config import TuningConfig;"
        "TuningConfig.model_validate({'policy': {'name': 'roofline-budget'}}); assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("module", ["loops.allocation", "engine.cpu_kernels", "vllm_plugin.text_loops"])
def test_where_nothing_can_be_cached_it_is_compiled_anew(module: str) -> None:
    code = (
        "from importlib import import_module; from numba.core import caching; "
        "caching.CacheImpl._locator_classes.clear(); "
        f"module = import_module('adaptive_spec.{module}'); getattr(module, 'kernels', lambda size: None)(4)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=240, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert line.startswith("compiled loops can't be loaded from ")
