"""PolicyRun: one pass of one policy over a set of prompts at a fixed concurrency, and what was measured of it."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_spec.config import TuningConfig

if TYPE_CHECKING:
    from adaptive_spec.engine.llm import LLM
    from adaptive_spec.engine.sampling_params import SamplingParams
    from adaptive_spec.serving.loop import StepReport

Observer = Callable[["StepReport"], None]


@dataclass(slots=True)
class PolicyRun:
    """What was measured.

    Attributes
    ----------
    tokens, seconds : int, float
        Of the whole run, prefills included.
    decode_tokens, decode_seconds : int, float
        Of the steps that carried no prefill.
    full_tokens, full_seconds : int, float
        Of those of these steps in which every place was taken: as in a server whose queue never empties. At the
        end of a run the slowest sequences go on alone, whatever the others gained.
    tpot_seconds : list of float
        Of each request: seconds from its first to its last token, over its tokens less one.
    sequence_steps : int
        Decoding sequences, summed over steps.
    drafted, verified, accepted : int
        Draft tokens.
    decided_by : Counter of str
        Steps by what decided their depths: ``policy``, ``off-step``, ``guard``, ...
    faults : Counter of str
        What went wrong, and how often; the run's other figures are then not the policy's.
    other_load : float
        CPUs that other processes kept busy meanwhile (NaN where the system doesn't tell).
    """

    tokens: int = 0
    seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    full_tokens: int = 0
    full_seconds: float = 0.0
    tpot_seconds: list[float] = field(default_factory=list)
    sequence_steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    decided_by: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    other_load: float = float("nan")

    @property
    def decode_tokens_per_second(self) -> float:
        """Goodput of the steps that carried no prefill; the whole run's if each carried one."""
        if not self.decode_seconds:
            return self.tokens_per_second
        return self.decode_tokens / self.decode_seconds

    @property
    def full_tokens_per_second(self) -> float:
        """Goodput of the steps that carried no prefill and had every place taken; of all without if none had."""
        return self.full_tokens / self.full_seconds if self.full_seconds else self.decode_tokens_per_second

    @property
    def tokens_per_second(self) -> float:
        """End-to-end goodput."""
        return self.tokens / self.seconds


def play_policy(
    llm: LLM,
    tuning: TuningConfig,
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    concurrency: int,
    *,
    state: Path | None = None,
    observer: Observer | None = None,
) -> Generator[None, None, PolicyRun]:
    """Answer all prompts, `concurrency` of them in flight at any time until they run out; yields after each step.

    Parameters
    ----------
    llm : LLM
        Idle. Its clock measures.
    tuning : TuningConfig
        How depths are chosen; the controller is new, and the drafter has unlearned what it learned while serving.
    state : path, optional
        What the policy has learned before; read if it is there.
    observer : callable, optional
        Sees every step too.

    Returns
    -------
    PolicyRun
        As the generator's return value.
    """
    clock = llm.clock
    llm.set_policy(tuning)
    if llm.drafter is not None:
        llm.drafter.unlearn()  # or it would know the answers of an earlier run
    if state is not None and state.exists():
        llm.controller.load(state)
    run = PolicyRun()
    first: dict[int, float] = {}

    def observe(report: StepReport) -> None:
        now = clock()
        run.tokens += report.num_tokens
        if report.prefill_tokens == 0:
            run.decode_tokens += report.num_tokens
            run.decode_seconds += report.time.step_seconds
            if len(report.sequences) == concurrency:
                run.full_tokens += report.num_tokens
                run.full_seconds += report.time.step_seconds
        run.sequence_steps += len(report.sequences)
        run.drafted += int(report.drafted.sum())
        run.verified += int(report.verified.sum())
        run.accepted += int(report.accepted.sum())
        if report.decision is not None:
            run.decided_by[report.decision.decided_by] += 1
        for text in report.started:
            first.setdefault(text.id, now)  # a text that was preempted starts again
        for text in report.finished:
            if text.finish_reason == "error":
                run.faults[f"an answer failed ({text.stop_reason})"] += 1
            if text.num_output_tokens > 1:
                run.tpot_seconds.append((now - first.pop(text.id)) / (text.num_output_tokens - 1))
        if observer is not None:
            observer(report)

    gc.collect()
    waiting = iter(enumerate(prompts))
    in_flight = 0
    load = OtherLoad()
    llm.observer = observe
    began = clock()
    try:
        while True:
            while in_flight < concurrency and (entry := next(waiting, None)) is not None:
                llm.add_request(f"bench-{entry[0]}", entry[1], params)
                in_flight += 1
            if not in_flight:
                break
            in_flight -= sum(output.finished for output in llm.step())
            yield
        run.seconds = clock() - began
        run.other_load = load.busy_cpus()
        run.faults += _faults(llm)
    finally:
        llm.observer = None
        for number in range(len(prompts)):
            llm.abort_request(f"bench-{number}")
    return run


def run_policy(
    llm: LLM,
    tuning: TuningConfig,
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    concurrency: int,
    *,
    state: Path | None = None,
    observer: Observer | None = None,
) -> PolicyRun:
    """What :func:`play_policy` returns, played to its end; what the policy has learned is then kept in `state`."""
    play = play_policy(llm, tuning, prompts, params, concurrency, state=state, observer=observer)
    while True:
        try:
            next(play)
        except StopIteration as end:
            if state is not None:
                llm.controller.save(state)
            run: PolicyRun = end.value
            return run


def _faults(llm: LLM) -> Counter[str]:
    """What has failed since the engine was given its policy."""
    kinds = {f"the policy's fault ({kind})": count for kind, count in llm.controller.fallback.faults.items()}
    dropped = {f"the drafter failed and was dropped ({llm.runner.fault})": 1} if llm.runner.fault else {}
    return Counter(kinds | dropped)


class OtherLoad:
    """CPU time that other processes use from now on, from the system's own counters."""

    def __init__(self) -> None:
        self._busy, self._own, self._wall = _busy_seconds(), time.process_time(), time.perf_counter()

    def busy_cpus(self) -> float:
        """CPUs that others have kept busy on average since; NaN where the system doesn't tell."""
        wall = time.perf_counter() - self._wall
        others = (_busy_seconds() - self._busy) - (time.process_time() - self._own)
        return max(others, 0.0) / wall if wall > 0 else float("nan")


def _busy_seconds() -> float:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(value) for value in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return float("nan")
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
