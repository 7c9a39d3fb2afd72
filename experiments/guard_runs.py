"""The runs that the guard's proof is made of, through joblib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from adaptive_spec.experiments.guard_worlds import Guarded, Played, World, fixed, play
from adaptive_spec.replay.trace import Trace

DEPTHS = (0, 1, 2, 4)  # 0 is off; deeper ones are far from the best in every world


@dataclass(frozen=True)
class Job:
    """One run: a policy in one word, or a fixed depth, in a world."""

    world: World
    contestant: str | int
    seed: int
    steps: int
    guard: bool


@lru_cache(maxsize=2)
def load_texts(path: Path) -> Trace:
    """Read a trace, once in each process."""
    return Trace.load(path)


def run_job(job: Job, trace: Trace | Path) -> Played:
    """Run it."""
    texts = load_texts(trace) if isinstance(trace, Path) else trace
    own = job.contestant
    factory = fixed(own) if isinstance(own, int) else Guarded(own, job.world, job.guard)
    return play(job.world, texts, factory, job.steps, job.seed)


def jobs_of(chosen: Sequence[World], policies: Sequence[str], steps: int, seeds: int, guard: bool = True) -> list[Job]:
    """All runs of a proof."""
    made: list[Job] = []
    for world in chosen:
        contestants: list[str | int] = [*policies, *depths_of(world)]
        made += [Job(world, contestant, seed, steps, guard) for contestant in contestants for seed in range(seeds)]
    return made


def depths_of(world: World) -> tuple[int, ...]:
    """Where no draft is ever accepted, no depth can beat off."""
    return (0,) if world.phases == (world.phases[0],) and world.phases[0].broken else DEPTHS


def run_all(work: Sequence[Job], trace: Trace | Path, jobs: int) -> Iterator[tuple[Job, Played]]:
    """Run them, so many at once, and yield each with what it came to, in order."""
    if jobs == 1:
        yield from ((job, run_job(job, trace)) for job in work)
        return
    import joblib

    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator")
    yield from zip(work, parallel(joblib.delayed(run_job)(job, trace) for job in work), strict=True)
