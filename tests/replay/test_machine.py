"""Machines and their files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from adaptive_spec.cost import Roofline
from adaptive_spec.replay.clock import VirtualClock
from adaptive_spec.replay.machine import Machine
from adaptive_spec.replay.machine_file import MachineError
from adaptive_spec.replay.step_timer import StepTimer
from adaptive_spec.serving.blocks import BlockPool
from adaptive_spec.serving.scheduler import Scheduler

CURVE = {
    "name": "gpu", "source": "measured", "num_kv_blocks": 50,
    "verify": {"kind": "curve", "ms_by_positions": {"1": 5, "8": 6, "64": 20}, "staircase_until": 8},
}  # fmt: skip


def load(tmp_path, content, **changes):
    path = tmp_path / "machine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Machine.load(path, **changes)


def test_a_measured_machine(tmp_path):
    machine = load(tmp_path, CURVE, max_num_seqs=7)
    assert machine.cost.verify(np.array([1, 2, 8, 36]), 0.0, 1) * 1e3 == pytest.approx([5, 6, 6, 13])
    assert (machine.name, machine.source, machine.num_kv_blocks, machine.max_num_seqs) == ("gpu", "measured", 50, 7)
    assert machine.cost.draft(np.arange(3), 4).tolist() == [0, 0, 0]
    scheduler = machine.scheduler(300)
    assert scheduler.pool.num_blocks == 50
    assert not scheduler.pool.enable_prefix_caching
    assert load(tmp_path, {**CURVE, "num_kv_blocks": None}).scheduler(33).pool.num_blocks == 256 * (3 + 2)


def test_drafts_cost_what_their_kind_says(tmp_path):
    def cost(draft, sequences=1):
        return load(tmp_path, {**CURVE, "draft": draft}).cost.draft(np.array([0, 1, 3]), sequences) * 1e3

    assert cost({"kind": "free"}) == pytest.approx([0, 0, 0])
    assert cost({"kind": "sequential", "ms": 0.5, "idle_ms": 0.5}) == pytest.approx([0.5, 0.5, 1.5])
    assert cost({"kind": "parallel", "ms": 2}) == pytest.approx([0, 2, 2])
    assert cost({"kind": "parallel", "ms": {"1": 1, "9": 3}, "idle_ms": 0.25}, 5) == pytest.approx([0.25, 2, 2])
    machine = load(tmp_path, CURVE)
    other = machine.with_sequential_draft(0.06, idle_share=0.02)
    assert other.cost.draft(np.array([0, 1, 3]), 1) * 1e3 == pytest.approx([0.1, 0.3, 0.9])
    assert other.cost.draft(np.array([0, 1, 3]), 64) * 1e3 == pytest.approx([0.4, 1.2, 3.6])
    assert machine.draft_cost.each == (0.0,)


def test_a_machine_on_paper(tmp_path):
    verify = {"kind": "roofline", "hardware": "H200-SXM", "model": {"parameters": 8e9}}
    machine = load(tmp_path, {"name": "h200", "source": "roofline", "verify": verify})
    assert isinstance(machine.cost, Roofline)
    assert machine.parameters == 8e9
    assert float(machine.cost.verify(np.array([1]), 0.0, 1)[0]) == pytest.approx(16e9 / 4.8e12 + 3e-4)


def test_a_bare_curve_is_a_machine(tmp_path):
    content = {"verify_ms_by_tokens": {"1": 5, "9": 7}, "draft_ms_by_requests": {"1": 1, "3": 2}, "source": "a figure"}
    machine = load(tmp_path, content)
    assert machine.source == "a figure"
    assert machine.cost.draft(np.array([0, 4]), 2) * 1e3 == pytest.approx([0, 1.5])
    assert machine.cost.verify(np.array([5]), 0.0, 1)[0] == pytest.approx(0.007)
    assert load(tmp_path, content, staircase_until=1).cost.verify(np.array([5]), 0.0, 1)[0] == pytest.approx(0.006)
    with pytest.raises(MachineError, match="says staircase_until itself"):
        load(tmp_path, CURVE, staircase_until=1)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "not valid JSON"),
        ([], "file"),
        ({"name": "x", "source": ""}, "verify: Field required"),
        ({**CURVE, "kv": 3}, "kv: Extra inputs"),
        ({**CURVE, "verify": {"kind": "curve", "ms_by_positions": {"1": -5}}}, "ms_by_positions"),
        ({**CURVE, "verify": {"kind": "magic"}}, "verify"),
        ({**CURVE, "draft": {"kind": "free", "ms": 3}}, "free costs nothing"),
        ({**CURVE, "draft": {"kind": "parallel", "ms": {"1": 1}, "idle_ms": {"2": 1}}}, "the same numbers"),
        ({**CURVE, "verify": {**CURVE["verify"], "staircase_until": 9}}, "nearest point is 8"),
        (
            {**CURVE, "verify": {"kind": "roofline", "hardware": "H200", "model": {"parameters": 1}}},
            "no hardware is called 'H200'",
        ),
        ({**CURVE, "verify": {"kind": "roofline", "hardware": "H200-SXM", "model": "none.json"}}, "none.json"),
        ({"verify_ms_by_tokens": {"x": 1}}, "whole numbers"),
    ],
)
def test_bad_machine_files_are_refused_in_one_line(content, told, tmp_path):
    with pytest.raises(MachineError, match=told) as caught:
        load(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "machine.json"))
    assert "\n" not in str(caught.value)


def test_clocks_and_chunks_refuse_nonsense():
    with pytest.raises(ValueError, match="moved by -1"):
        VirtualClock().advance(-1.0)
    with pytest.raises(ValueError, match="noise is 3"):
        StepTimer(load_nothing(), VirtualClock(), noise=3.0)
    with pytest.raises(ValueError, match="max_prefill_chunk is 0"):
        Scheduler(BlockPool(4, 4), max_num_seqs=1, max_num_batched_tokens=8, max_model_len=9, max_prefill_chunk=0)


def load_nothing():
    return Roofline.from_numbers(1e9, 1e12, 1e14)
