"""The comparison of survival predictions: its scores by hand, and ours best on a simulated recording."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from adaptive_spec.experiments.acceptance_quality import (
    GlobalEma,
    PositionCounts,
    Recording,
    SequenceEma,
    best_slots,
    calibration_error,
    compare,
    log_loss,
    main,
)


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Twelve sequences at a time, whose acceptance hangs on the match, on who they are, and on the position."""
    rng = np.random.default_rng(0)
    depth, width, life = 6, 12, 30
    u = 0.8 * rng.standard_normal(width)
    names = np.arange(width)
    rows = []
    for step in range(250):
        matched = rng.choice([1, 2, 4, 8, 20], size=width, p=[0.45, 0.2, 0.15, 0.1, 0.1])
        z = -1.3 + 1.1 * np.log2(matched) + u + 0.15 * np.arange(depth)[:, None]
        verified = rng.integers(0, depth + 1, size=width)
        ok = np.cumprod(rng.random((depth, width)) < 1 / (1 + np.exp(-z)), axis=0).sum(axis=0)
        accepted = np.minimum(ok, verified)
        rows += list(zip(np.full(width, step), names, verified, accepted, matched, strict=True))
        for i in np.flatnonzero((step + np.arange(width)) % life == life - 1):
            names[i], u[i] = names.max() + 1, 0.8 * rng.standard_normal()
    table = np.array(rows)
    return Recording(*table[:, :4].T, evidence=table[:, 4:].astype(float), evidence_names=("matched_length",))


def save(path, recording, **changes):
    arrays = asdict(recording) | changes
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items() if value is not None})
    return path


def test_ours_is_best(recording):
    scores = {score.estimator.strip(): score for score in compare(recording)}
    ours = scores["adaptive_spec"]
    for peer in ("global EMA", "per-position counts", "per-sequence EMA"):
        assert ours.log_loss < scores[peer].log_loss - 0.02
        assert ours.bought_log_loss < scores[peer].bought_log_loss
        assert ours.bought_kept > scores[peer].bought_kept + 0.02
    assert ours.calibration_error < 0.03
    # Each part brings something here.
    assert ours.log_loss < scores["without evidence"].log_loss - 0.01
    assert ours.log_loss < scores["without sequence effect"].log_loss - 0.005


def test_scores_by_hand():
    predicted, seen = np.array([0.9, 0.9, 0.2, 0.3]), np.array([True, False, False, True])
    assert log_loss(predicted, seen) == pytest.approx(-np.log([0.9, 0.1, 0.8, 0.3]).mean())
    assert calibration_error(predicted, seen) == pytest.approx((0.8 + 0.2 + 0.7) / 4)
    assert log_loss(np.array([1.0]), np.array([False])) < 20.0  # a certain error is finite
    survival = np.array([[0.9, 0.5, 0.1], [0.5, 0.4, 0.4]])
    bought = best_slots(survival, np.array([1, 3]), 3)
    np.testing.assert_array_equal(bought, [[True, False, False], [True, True, False]])


def test_peers_by_hand():
    ids, evidence = np.array([3, 4]), np.zeros((2, 0))
    verified, accepted = np.array([2, 2]), np.array([2, 0])
    ema, counts, own = GlobalEma(2), PositionCounts(2), SequenceEma(2)
    for estimator in (ema, counts, own):
        estimator.observe(ids, verified, accepted)
    rate = 0.85 * 0.85 + 0.15 * 2 / 3
    np.testing.assert_allclose(ema.predict(ids, evidence), [[rate, rate**2]] * 2)
    first, second = 1.85 / 3, 1.85 / 2
    np.testing.assert_allclose(counts.predict(ids, evidence), [[first, first * second]] * 2)
    mine = np.array([0.85 * 0.85 + 0.15, 0.85 * 0.85, rate])
    np.testing.assert_allclose(own.predict(np.array([3, 4, 5]), evidence), np.stack([mine, mine**2], axis=1))


@pytest.fixture(scope="module")
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(main)
    return app


def test_command_prints_table_and_json(command, recording, tmp_path):
    path = save(tmp_path / "steps.npz", recording)
    table = CliRunner().invoke(command, [str(path)])
    assert table.exit_code == 0
    assert "per-sequence EMA" in table.output
    printed = json.loads(CliRunner().invoke(command, [str(path), "--json", "--budget", "2"]).output)
    assert printed[0] == asdict(compare(recording)[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accepted": None}, "no array 'accepted'"),
        ({"step": np.zeros(3, dtype=int)}, "must have one length"),
        ({"evidence_names": ["matched_length", "age"]}, "evidence has shape"),
        ({"evidence_names": ["weather"]}, "no evidence is called 'weather'"),
    ],
)
def test_bad_recordings_are_one_clear_line(command, recording, tmp_path, changes, message):
    path = save(tmp_path / "steps.npz", recording, **changes)
    result = CliRunner().invoke(command, [str(path)])
    assert result.exit_code == 1
    assert result.output.startswith("error: ")
    assert message in result.output


def test_disorder_and_impossible_counts_are_refused(recording, tmp_path):
    with pytest.raises(ValueError, match="order of their step"):
        Recording.load(save(tmp_path / "a.npz", recording, step=recording.step[::-1]))
    with pytest.raises(ValueError, match="accepted must lie between 0 and verified"):
        Recording.load(save(tmp_path / "b.npz", recording, accepted=recording.verified + 1))
    nothing = np.zeros_like(recording.verified)
    with pytest.raises(ValueError, match="no draft was verified"):
        Recording.load(save(tmp_path / "c.npz", recording, verified=nothing, accepted=nothing))
