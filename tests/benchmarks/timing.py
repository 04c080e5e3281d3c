"""pytest-benchmark with the types it does not declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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
