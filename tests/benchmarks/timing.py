"""pytest-benchmark with the types it does not declare, and two functions timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

Result = TypeVar("Result")


def repeat(benchmark: BenchmarkFixture, function: Callable[..., Result], *arguments: object, rounds: int) -> Result:
    """Time `rounds` calls, or only call once without timing, and return what the last one returned."""
    pedantic: Callable[..., Result] = benchmark.pedantic
    return pedantic(function, arguments, rounds=rounds)


def median_s(benchmark: BenchmarkFixture) -> float:
    """Return the median duration of what was timed."""
    stats: Any = benchmark.stats
    return float(stats["median"])


def in_turns(
    ours: Callable[[], object], theirs: Callable[[], object], turns: int, calls: int = 1
) -> tuple[float, float]:
    """Return the median durations of two functions, which take turns so that a busy machine slows both alike.

    Each is called `calls` times in a row, so that it finds what it needs in the cache.
    """
    taken_s = [[durations_s(function, calls) for function in (ours, theirs)] for _ in range(turns)]
    ours_s, theirs_s = np.median(taken_s, axis=(0, 2))
    return float(ours_s), float(theirs_s)


def median_of_calls_s(function: Callable[[], object], calls: int) -> float:
    """Return the median duration of so many calls in a row."""
    return float(np.median(durations_s(function, calls)))


def durations_s(function: Callable[[], object], calls: int) -> list[float]:
    """Return how long each of so many calls in a row took."""
    marks_s = [time.perf_counter()]
    for _ in range(calls):
        function()
        marks_s.append(time.perf_counter())
    return np.diff(marks_s).tolist()
