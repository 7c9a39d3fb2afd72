"""What the controller itself costs: CPU time of a decision, side by side with the peers' formula, and its memory.

    python -m adaptive_spec.experiments.controller_overhead

All figures are medians of thread CPU time in one run, the compared pieces interleaved round by round. The
peers' formula is what vLLM's adaptive verification and DSpark's Algorithm 1 compute: a cumulative product of
acceptances, a sort of all slots and an argmax over the goodput of every budget, with the draft's cost ignored.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.cost import Online, Profile
from adaptive_spec.explore import Ledger
from adaptive_spec.guard import Guard, Watchdog
from adaptive_spec.policy import make_policy
from adaptive_spec.step import FloatArray, Outcome, StepTime, StepView

# Seconds of a pass over so many positions, SmolLM2-135M in bf16 on a 2-core AVX-512 CPU.
CURVE = Profile(
    [1, 2, 4, 8, 16, 32, 64, 128], [0.036, 0.034, 0.038, 0.041, 0.050, 0.067, 0.114, 0.199], interpolation="linear"
)
EVIDENCE = ("matched_length", "source", "agreement", "age")


def make(max_depth: int) -> Controller:
    """A controller with everything on, and a clock that stands still."""
    ledger = Ledger()
    clock = _Clock()
    return Controller(
        make_policy("roofline-budget"),
        AcceptanceModel(max_depth, EVIDENCE),
        cost=Online(CURVE),
        ledger=ledger,
        guard=Guard(ledger, clock=clock),
        watchdog=Watchdog(),
        clock=clock,
    )


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class _Engine:
    """Drives one controller with random offers and acceptances, its arrays made beforehand."""

    def __init__(self, sequences: int, max_depth: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.controller = make(max_depth)
        self.ids = list(range(sequences))
        for id in self.ids:
            self.controller.add(id)
        self.row = self.controller.rows(self.ids)
        self.max_depth = max_depth

    def view(self) -> StepView:
        n = len(self.ids)
        evidence = np.column_stack(
            (
                self.rng.integers(0, 20, n),
                self.rng.integers(0, 2, n),
                self.rng.random(n),
                self.rng.integers(0, 100, n),
            )
        ).astype(np.float64)
        limit = np.full(n, self.max_depth)
        return StepView(self.row, limit, self.rng.integers(100, 1000, n), evidence)

    def step(self) -> tuple[float, float, float]:
        """One step; CPU seconds of `plan`, `observe` and `observe_time`."""
        view = self.view()
        start = time.thread_time()
        decision = self.controller.plan(view)
        planned = time.thread_time() - start
        chance = 0.4 + 0.5 * (view.evidence[:, 0] > 3)
        accepted = np.minimum(self.rng.geometric(1 - chance) - 1, decision.depth)
        outcome = Outcome(decision.step, self.ids, decision.depth, decision.depth, accepted, decision.row)
        positions = len(self.ids) + int(decision.depth.sum())
        seconds = float(CURVE.verify(np.array([positions]), 0.0, len(self.ids))[0]) * self.rng.normal(1.0, 0.02)
        took = StepTime(
            decision.step, positions, len(self.ids), int(view.context.sum()), decision.draft_depth,
            tokens=float(len(self.ids) + accepted.sum()),
            verify_seconds=seconds, draft_seconds=0.0, step_seconds=seconds,
        )  # fmt: skip
        start = time.thread_time()
        self.controller.observe(outcome)
        observed = time.thread_time() - start
        start = time.thread_time()
        self.controller.observe_time(took)
        return planned, observed, time.thread_time() - start


def formula(acceptance: FloatArray, curve: FloatArray) -> int:
    """The peers' formula on acceptances [B, K]: how many slots to verify."""
    sequences = len(acceptance)
    survival = np.cumprod(acceptance, axis=1).ravel()
    order = np.argsort(-survival)
    tokens = sequences + np.concatenate(([0.0], np.cumsum(survival[order])))
    return int(np.argmax(tokens / curve[sequences : sequences + len(tokens)]))


def _cpu(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def decision_time(sequences: int, max_depth: int, rounds: int, seed: int) -> dict[str, float]:
    """Median CPU microseconds of `plan`, of it and `observe`, of `observe_time` too, and of the formula."""
    engine = _Engine(sequences, max_depth, seed)
    for _ in range(200):
        engine.step()
    positions = np.arange(1, sequences * (max_depth + 1) + 2)
    curve = np.concatenate(([1.0], CURVE.verify(positions, 0.0, sequences)))
    rng = np.random.default_rng(seed)
    plans, decided, wholes, formulas = [], [], [], []
    for _ in track(range(rounds), f"{sequences} sequences", transient=True):
        acceptance = rng.random((sequences, max_depth))
        formulas.append(_cpu(lambda a=acceptance: formula(a, curve)))  # type: ignore[misc]
        planned, observed, timed = engine.step()
        plans.append(planned)
        decided.append(planned + observed)
        wholes.append(planned + observed + timed)
    return {
        "plan_us": float(np.median(plans)) * 1e6,
        "plan_and_observe_us": float(np.median(decided)) * 1e6,
        "with_observe_time_us": float(np.median(wholes)) * 1e6,
        "formula_us": float(np.median(formulas)) * 1e6,
        "plan_over_formula": float(np.median(np.array(plans) / np.array(formulas))),
    }


def churn(count: int) -> dict[str, float]:
    """Growth of the resident set, in MB, while `count` sequences are added, drafted now and then, and removed."""
    controller = make(8)

    def run(first: int, number: int) -> None:
        for id in range(first, first + number):
            controller.add(id)
            if id % 50 == 0:
                view = StepView(controller.rows([id]), np.array([8]), np.array([100]), np.zeros((1, len(EVIDENCE))))
                decision = controller.plan(view)
                controller.observe(Outcome(decision.step, [id], decision.depth, decision.depth, decision.depth))
            controller.remove(id)

    run(0, 20_000)
    before = _resident_mb()
    run(20_000, count)
    return {"sequences": count, "grown_mb": _resident_mb() - before, "peak_mb": _peak_mb()}


def _resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main(
    rounds: Annotated[int, typer.Option(help="Steps timed for each number of sequences.", min=10)] = 2000,
    churned: Annotated[int, typer.Option(help="Sequences added and removed for the memory figure.", min=1)] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Of offers and acceptances.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time the controller and weigh its memory."""
    sizes = [(1, 8), (16, 8), (64, 8), (256, 8)]
    rows = {f"{b} x {k}": decision_time(b, k, rounds, seed) for b, k in sizes}
    memory = churn(churned)
    if as_json:
        print(json.dumps({"decisions": rows, "memory": memory}, indent=1))
        return
    table = Table(title="CPU time of one step's decision, medians")
    for column in (
        "sequences x K", "plan, µs", "plan + observe, µs", "+ observe_time, µs", "peers' formula, µs", "plan / formula"
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['plan_us']:.0f}",
            f"{row['plan_and_observe_us']:.0f}",
            f"{row['with_observe_time_us']:.0f}",
            f"{row['formula_us']:.0f}",
            f"{row['plan_over_formula']:.2f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"{memory['sequences']:,.0f} sequences added and removed: resident memory grew by {memory['grown_mb']:+.1f} MB "
        f"(peak {memory['peak_mb']:.0f} MB)"
    )


if __name__ == "__main__":
    typer.run(main)
