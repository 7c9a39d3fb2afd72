"""The regret of acceptance-bandit in a world that never changes, against the best fixed price and the best fixed depth.

    python -m adaptive_spec.experiments.bandit_regret [--steps 100000] [--jobs 2] [--json]

Every draft of every sequence is accepted with the same chance, the machine's curve is fixed, its seconds are noisy:
nothing is to be had but the right price. The bandit runs in a controller that learns the acceptance too; nothing is
forgotten, neither by the bandit (discount 1) nor by the acceptance model. Guard and exploration, which have a purse of
their own, are off.

The regret after n steps is counted in tokens, as expected from the true acceptance and the true curve: what the best
fixed price brings in the seconds that the bandit took, less what the bandit's depths bring. Whoever settles on a wrong
price for ever has a regret that grows like n: slope 1 on log paper. The slope told is that of the mean regret over the
seeds, from `FIT_FROM` steps on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from adaptive_spec.acceptance import AcceptanceModel
from adaptive_spec.controller import Controller
from adaptive_spec.policies.acceptance_bandit import CHEAPEST, DEAREST
from adaptive_spec.policy import make_policy
from adaptive_spec.replay import Machine
from adaptive_spec.step import FloatArray, Outcome, StepTime, StepView

MACHINES = Path(__file__).parent / "machines"
DEPTH = 8
CONTEXT = 256  # tokens of each sequence
NEVER = 1e12  # steps in which the acceptance model forgets half of what it knows
FIT_FROM = 1000
POINTS = 41  # of a course, evenly on log paper


@dataclass(frozen=True)
class World:
    """A world that never changes.

    Attributes
    ----------
    machine : str
        File in the folder of machines.
    sequences : int
    acceptance : float
        Of every draft.
    noise : float
        Deviation of the logarithm of a step's seconds.
    """

    machine: str
    sequences: int
    acceptance: float = 0.7
    noise: float = 0.03

    @property
    def name(self) -> str:
        """In one phrase."""
        return f"{Path(self.machine).stem}, {self.sequences} sequences, acceptance {self.acceptance:g}"

    def curve(self) -> FloatArray:
        """Seconds of a pass in which all sequences together have 0, 1, ... drafts, shape (B K + 1,)."""
        n, cost = self.sequences, Machine.load(MACHINES / self.machine).cost
        return cost.verify(np.arange(n, n * (DEPTH + 1) + 1), float(n * CONTEXT), n)

    def survival(self) -> FloatArray:
        """Shape (K,)."""
        return np.asarray(self.acceptance ** np.arange(1, DEPTH + 1), dtype=np.float64)

    def goodput(self) -> FloatArray:
        """Expected tokens a second of each fixed depth, shape (K + 1,)."""
        tokens = 1.0 + np.concatenate(([0.0], np.cumsum(self.survival())))
        return self.sequences * tokens / self.curve()[:: self.sequences]

    def best_price(self, prices: int) -> tuple[float, int]:
        """Goodput of the best fixed price of the bandit's grid, "off" included, and the depth that it gives."""
        grid = np.append(np.geomspace(CHEAPEST, DEAREST, prices), np.inf)
        depths = (self.survival() >= grid[:, None]).sum(axis=1)
        goodput = self.goodput()[depths]
        best = int(goodput.argmax())
        return float(goodput[best]), int(depths[best])


WORLDS = (World("cpu.json", 8), World("b300.json", 64))


@dataclass(frozen=True)
class Regret:
    """Of one world.

    Attributes
    ----------
    steps : list of int
    price, depth : list of float
        Mean regret after so many steps against the best fixed price and the best fixed depth, in tokens.
    slope : float
        Of the first, on log paper.
    share : float
        Of all tokens that the best fixed price would have brought, lost at the end.
    """

    world: str
    steps: list[int]
    price: list[float]
    depth: list[float]
    slope: float
    share: float


def play(world: World, steps: int, seed: int, discount: float = 1.0) -> FloatArray:
    """Expected tokens and seconds of the bandit's depths, step by step, shape (steps, 2)."""
    rng = np.random.default_rng([seed, 31])
    policy = make_policy("acceptance-bandit", discount=discount)
    acceptance = AcceptanceModel(DEPTH, (), half_life_steps=NEVER)
    controller = Controller(policy, acceptance, seed=seed, clock=lambda: 0.0)
    n, curve = world.sequences, world.curve()
    brought = np.concatenate(([0.0], np.cumsum(world.survival())))
    ids = list(range(n))
    row = np.array([controller.add(i) for i in ids])
    limit, context = np.full(n, DEPTH), np.full(n, CONTEXT)
    evidence = np.zeros((n, 0))
    course = np.zeros((steps, 2))
    for number in range(steps):
        decision = controller.plan(StepView(row, limit, context, evidence))
        depth = decision.depth
        slots = int(depth.sum())
        course[number] = n + brought[depth].sum(), curve[slots]
        accepted = np.minimum(rng.geometric(1.0 - world.acceptance, n) - 1, depth)
        controller.observe(Outcome(decision.step, ids, depth, depth, accepted))
        seconds = float(curve[slots] * np.exp(world.noise * rng.standard_normal()))
        tokens = float(accepted.sum() + n)
        controller.observe_time(
            StepTime(decision.step, n + slots, n, n * CONTEXT, decision.draft_depth, tokens, step_seconds=seconds)
        )
    return course


def regret(world: World, courses: list[FloatArray], prices: int = 9) -> Regret:
    """The mean regret over several seeds."""
    steps = len(courses[0])
    at = np.unique(np.geomspace(10, steps, POINTS).astype(int))
    totals = np.array([course.cumsum(axis=0)[at - 1] for course in courses])  # [seeds, points, 2]
    best = world.best_price(prices)[0]

    def against(goodput: float) -> FloatArray:
        return np.asarray((goodput * totals[..., 1] - totals[..., 0]).mean(axis=0))

    price, depth = against(best), against(float(world.goodput().max()))
    late = at >= min(FIT_FROM, steps // 10)
    slope = float(np.polyfit(np.log(at[late]), np.log(np.maximum(price[late], 1e-9)), 1)[0])
    share = float(price[-1] / (best * totals[:, -1, 1].mean()))
    return Regret(world.name, at.tolist(), price.tolist(), depth.tolist(), slope, share)


def main(
    steps: Annotated[int, typer.Option(min=1000, help="Of every run.")] = 100_000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each world.")] = 2,
    discount: Annotated[float, typer.Option(help="1: nothing is forgotten.")] = 1.0,
    jobs: Annotated[int, typer.Option(help="At once.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the regret of acceptance-bandit, and its slope on log paper."""
    from joblib import Parallel, delayed

    runs = [(world, seed) for world in WORLDS for seed in range(seeds)]
    courses = Parallel(n_jobs=jobs)(delayed(play)(world, steps, seed, discount) for world, seed in runs)
    found = [
        regret(world, [course for (own, _), course in zip(runs, courses, strict=True) if own is world])
        for world in WORLDS
    ]
    if as_json:
        print(json.dumps([asdict(item) for item in found], indent=1))
        return
    table = Table(title=f"acceptance-bandit, discount {discount:g}: regret in tokens, mean of {seeds} seeds")
    table.add_column("world")
    table.add_column("against the best fixed")
    shown = [n for n in (100, 1000, 10_000, 100_000) if n <= steps]
    for n in shown:
        table.add_column(f"{n:,} steps", justify="right")
    table.add_column("slope", justify="right")
    table.add_column("lost in all", justify="right")
    for item in found:
        for name, values in (("price", item.price), ("depth", item.depth)):
            near = [values[int(np.abs(np.array(item.steps) - n).argmin())] for n in shown]
            told = (f"{item.slope:.2f}", f"{item.share:.2%}") if name == "price" else ("", "")
            table.add_row(item.world if name == "price" else "", name, *(f"{value:,.0f}" for value in near), *told)
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
