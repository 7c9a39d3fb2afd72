"""Arrivals: rates, recurrence, seeds, and files that can't be used."""

from __future__ import annotations

import numpy as np
import pytest
from small_traces import trace_of

from adaptive_spec.replay.arrivals import (
    NEVER,
    Arrival,
    ClosedConcurrency,
    GivenArrivals,
    OnOffBursts,
    Poisson,
    SwitchingConcurrency,
)
from adaptive_spec.replay.azure_arrivals import ArrivalFileError, AzureArrivals, read_azure

TRACE = trace_of([[1] * 9, [2] * 19, [0] * 4])


def first(process, count, seed=0, trace=TRACE):
    stream = process.stream(trace, seed)
    arrived = []
    while len(arrived) < count:
        arrived += stream.due(stream.next_seconds(), 0)
    return arrived[:count]


def test_closed_concurrency_replaces_whoever_finishes():
    stream = ClosedConcurrency(4).stream(TRACE, 0)
    begun = stream.due(0.0, 0)
    assert len(begun) == 4
    assert all(0 <= a.offset < TRACE.output_tokens[a.number] for a in begun)
    assert any(a.offset for a in begun)
    assert stream.due(1.0, 4) == []
    two = stream.due(2.5, 2)
    assert [a.seconds for a in two] == [2.5, 2.5]
    assert [a.offset for a in two] == [0, 0]
    assert all(a.offset == 0 for a in ClosedConcurrency(4, random_offsets=False).stream(TRACE, 0).due(0.0, 0))


def test_concurrency_may_switch():
    stream = SwitchingConcurrency((2, 5), 10.0).stream(TRACE, 0)
    assert len(stream.due(0.0, 0)) == 2
    assert stream.due(9.9, 2) == []
    assert len(stream.due(10.0, 2)) == 3
    assert stream.due(20.0, 4) == []  # too many are served to their ends
    assert len(stream.due(21.0, 1)) == 1


def test_texts_recur_evenly_and_by_seed():
    numbers = [a.number for a in first(Poisson(1.0), 30)]
    assert np.bincount(numbers).tolist() == [10, 10, 10]
    assert numbers == [a.number for a in first(Poisson(1.0), 30)]
    assert numbers != [a.number for a in first(Poisson(1.0), 30, seed=1)]
    # and the same texts, in the same order, at any rate
    assert numbers == [a.number for a in first(Poisson(7.0), 30)]


def test_poisson_has_its_rate():
    times = np.array([a.seconds for a in first(Poisson(20.0), 4000)])
    waits = np.diff(times)
    assert abs(waits.mean() * 20 - 1) < 0.06  # four standard errors
    assert abs(waits.std() / waits.mean() - 1) < 0.1


def test_bursts_come_and_go():
    process = OnOffBursts(100.0, 0.0, 2.0, 8.0)
    times = np.array([a.seconds for a in first(process, 6000)])
    rate = len(times) / times[-1]
    assert 12 < rate < 30  # 100 a second for a fifth of the time
    in_second = np.bincount(times.astype(int))
    assert (in_second == 0).mean() > 0.5
    assert np.percentile(in_second, 95) > 70
    some = np.array([a.seconds for a in first(OnOffBursts(100.0, 10.0, 2.0, 8.0), 3000)])
    assert (np.bincount(some.astype(int)) == 0).mean() < 0.05


def test_given_arrivals_end():
    stream = GivenArrivals([Arrival(0.5, 1), Arrival(2.0, 0)]).stream(TRACE, 0)
    assert stream.due(0.0, 0) == []
    assert stream.next_seconds() == 0.5
    assert [a.number for a in stream.due(3.0, 0)] == [1, 0]
    assert stream.next_seconds() == NEVER
    with pytest.raises(ValueError, match="in order of time"):
        GivenArrivals([Arrival(2.0, 1), Arrival(1.0, 0)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(0.0),
        lambda: Poisson(float("nan")),
        lambda: ClosedConcurrency(0),
        lambda: OnOffBursts(1, 0, 0, 1),
        lambda: SwitchingConcurrency((0,), 1.0),
    ],
)
def test_impossible_processes_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n2023-11-16 18:17:05.9799600,110,400\r\n"
)


def test_azures_format_gives_times_and_lengths(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    seconds, context, generated = read_azure(path)
    assert seconds == pytest.approx([0.0, 0.052, 2.0])
    assert context.tolist() == [4808, 3180, 110]
    assert generated.tolist() == [10, 8, 400]
    process = AzureArrivals(path, time_scale=0.5, max_context_tokens=4000)
    arrived = first(process, 3)
    assert [a.seconds for a in arrived] == pytest.approx([0.0, 0.026, 1.0])
    assert [a.prompt_tokens for a in arrived] == [4000, 3180, 110]
    assert [a.max_tokens for a in arrived] == [10, 8, 20]  # the longest text has 20 tokens
    assert all(TRACE.output_tokens[a.number] >= a.max_tokens for a in arrived)
    assert process.longest(TRACE) == 4010
    assert len(process) == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ":1: column TIMESTAMP is missing"),
        ("TIMESTAMP,ContextTokens\n2023-01-01 00:00:00,5\n", ":1: column GeneratedTokens is missing"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n", ":2: 'yesterday,5,5' is no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,5\n", ":2: .* is no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,5,x\n", ":2: .* is no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,0,5\n", "at least one token each"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-02,5,5\n2023-01-01,5,5\n", ":3: .*earlier"),
    ],
)
def test_bad_arrival_files_are_refused_with_the_line(text, told, tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(text)
    with pytest.raises(ArrivalFileError, match=told) as caught:
        first(AzureArrivals(path), 1)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
