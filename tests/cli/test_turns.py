"""Runs that take turns: each sees its own seconds only, and all end."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_spec.cli.turns import TurnClock, take_turns


class Machine:
    """A clock that only work moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.log: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, steps: list[float], clock: TurnClock) -> Generator[None, None, float]:
        began = clock()
        for seconds in steps:
            self.now += seconds
            self.log.append(name)
            yield
        return clock() - began


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.floats(0.01, 3.0), max_size=12), min_size=1, max_size=4), st.floats(0.05, 5.0))
def test_every_run_sees_its_own_seconds(works: list[list[float]], turn: float) -> None:
    machine = Machine()
    clocks = {str(i): TurnClock(machine) for i in range(len(works))}
    plays = {str(i): machine.work(str(i), steps, clocks[str(i)]) for i, steps in enumerate(works)}
    results = take_turns(plays, clocks, turn)
    assert results == pytest.approx({str(i): sum(steps) for i, steps in enumerate(works)})
    assert machine.now == pytest.approx(100.0 + sum(map(sum, works)))


def test_turns_alternate_by_time_and_the_last_goes_on_alone() -> None:
    machine = Machine()
    clocks = {name: TurnClock(machine) for name in "ab"}
    plays = {"a": machine.work("a", [0.5] * 6, clocks["a"]), "b": machine.work("b", [1.0] * 2, clocks["b"])}
    ended: list[str] = []
    take_turns(plays, clocks, 1.0, ended.append)
    assert "".join(machine.log) == "aabaabaa"
    assert ended == ["b", "a"]


def test_a_run_that_fails_closes_the_others_and_starts_all_clocks() -> None:
    machine = Machine()
    clocks = {name: TurnClock(machine) for name in "ab"}
    closed = []

    def patient() -> Generator[None, None, float]:
        try:
            while True:
                machine.now += 1.0
                yield
        finally:
            closed.append("a")

    def failing() -> Generator[None, None, float]:
        yield
        raise RuntimeError("out of blocks")

    with pytest.raises(RuntimeError, match="out of blocks"):
        take_turns({"a": patient(), "b": failing()}, clocks, 1.0)
    assert closed == ["a"]
    assert all(clock.running for clock in clocks.values())
