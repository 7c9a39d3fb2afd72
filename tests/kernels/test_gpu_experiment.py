"""The command that checks and times the kernels on a GPU: its checks at tiny sizes, and that its rows can be timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
import torch

pytest.importorskip("triton")

from adaptive_spec.experiments.gpu import kernel_times, kernels
from adaptive_spec.experiments.gpu.kernel_times import LAST_SECONDS, Sizes, Timer, Timing
from adaptive_spec.experiments.gpu.problems import paged
from adaptive_spec.kernels import backend, ops, reference_attention

CPU = torch.device("cpu")
TINY = Sizes((2,), (3,), (40,), (20,), allocations=((5, 3),), heads=(4, 2, 8))


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls, each made once instead of being timed."""
    made = []

    def call(work):
        made.append(work())
        return Timing(2.0, len(made) % 2 == 1)

    monkeypatch.setattr(kernel_times, "time_call", call)
    return made


def timer(seconds: float = 1000.0) -> Timer:
    return Timer(TINY, CPU, bandwidth=1e9, deadline=time.monotonic() + seconds, seed=3)


def test_the_checks_pass_in_the_interpreter():
    command = [sys.executable, "-m", "adaptive_spec.experiments.gpu.kernels", "--interpret", "--seed", "5"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("right: ") == 9


@pytest.mark.parametrize("kernel", ["rotate", "write_kv"])
def test_a_wrong_kernel_is_found(kernel, monkeypatch, capsys):
    right = getattr(ops, kernel)

    def wrong(*arguments, **options):
        right(*arguments, **options)
        written = arguments[0 if kernel == "rotate" else 2]
        written *= 1.05

    monkeypatch.setattr(ops, kernel, wrong)
    monkeypatch.setattr(kernels, "check", kernels.check_rows)
    with backend.use("torch"):
        assert not kernels.check_all(CPU, 0, tiny=True)
    assert "WRONG (seed 0)" in capsys.readouterr().err


def test_every_kernel_is_timed(calls):
    with backend.use("torch"):
        rows = list(timer().rows())
    assert {row["kernel"] for row in rows} == {
        *("greedy", "match", "match, top-k 50, top-p .9", "ratio"),
        *("allocation", "survival", "sums", "rotate", "write_kv"),
        *("attention, width 8", "attention, widths 1-17"),
    }
    assert {row["captured"] for row in rows} == {True, False}
    assert all(row["share"] > 0.0 and row["us"] == 2.0 for row in rows)
    assert len(calls) > len(rows)


def test_at_the_deadline_no_kernel_is_dropped_but_the_sizes_that_are_left(calls):
    with backend.use("torch"):
        names = {row["kernel"] for row in timer(LAST_SECONDS - 1.0).rows()}
    assert "greedy" not in names
    assert names >= {"allocation", "sums", "rotate", "attention, width 8"}


def test_what_was_timed_is_written_before_the_next_fails(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    monkeypatch.setattr(Timer, "attention", lambda self: 1 / 0)
    file = tmp_path / "times.json"
    with backend.use("torch"), pytest.raises(ZeroDivisionError):
        kernels.time_all(timer(), file)
    written = json.loads(file.read_text())
    assert written["seed"] == 3
    assert written["rows"][-1]["kernel"] == "ratio"


@pytest.mark.parametrize("uniform", [True, False])
def test_torchs_attention_is_given_the_same_problem(uniform):
    widths = torch.tensor([4, 4, 4] if uniform else [1, 4, 2])
    call = paged(3, widths, 20, (4, 2, 8), torch.float32, 0)
    got = kernel_times.gathered(call, uniform)().transpose(1, 2)  # [B, widest, HQ, D]
    want = reference_attention.verify_attention(*call)
    rows = torch.cat([got[b, :width] for b, width in enumerate(widths.tolist())])
    torch.testing.assert_close(rows.float(), want.float(), atol=1e-5, rtol=1e-5)


def test_residual_draws_are_of_the_rows_that_have_drafts():
    logits = torch.full((3, 4), -40.0)
    logits[:, 1] = logits[:, 2] = 0.0
    drafted = torch.full((2, 4), -40.0)
    drafted[:, 1] = 0.0
    drawn = kernel_times.residual_draws(logits, drafted, torch.tensor([0, 3], dtype=torch.int32))()
    assert drawn[:2].tolist() == [2, 2]  # the draft's own token has no residual
