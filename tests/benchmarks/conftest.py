"""Collects the figures of a run and prints them at its end.

With `--benchmark-disable`, as in `make test`, every benchmark runs once, to see that it still works, and none is timed.
Those that start processes or install something cost minutes: they are left to `make bench`, and the run says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.figures import Figure, Target, table

HERE = Path(__file__).parent
FIGURES = pytest.StashKey[list[Figure]]()
LEFT_OUT = pytest.StashKey[int]()

Note = Callable[..., None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []
    config.stash[LEFT_OUT] = 0


def timing(config: pytest.Config) -> bool:
    return not config.getoption("benchmark_disable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if timing(config):
        return
    slow = {item for item in items if item.get_closest_marker("slow") and HERE in item.path.parents}
    config.stash[LEFT_OUT] = len(slow)
    config.hook.pytest_deselected(items=[*slow])
    items[:] = [item for item in items if item not in slow]


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Return the function that puts a figure into the table; without timing there is nothing to put."""

    def put(
        name: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        at_most_of_peer: float | None = None,
        peer: float | None = None,
        hardware_limit: float | None = None,
    ) -> None:
        target = Target(at_most) if at_most is not None else None
        if at_least is not None:
            target = Target(at_least, at_least=True)
        if at_most_of_peer is not None:
            target = Target(at_most_of_peer, of_peer=True)
        if timing(request.config):
            request.config.stash[FIGURES].append(Figure(name, value, unit, target, peer, hardware_limit))

    return put


@pytest.hookimpl(trylast=True)  # below pytest-benchmark's own table
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash[LEFT_OUT]:
        terminalreporter.write_line(f"{left_out} benchmarks with processes of their own are left to `make bench`")
    for report in terminalreporter.stats.get("skipped", []):
        if HERE in (config.rootpath / report.location[0]).parents:
            terminalreporter.write_line(f"{report.location[2]} not measured: {report.longrepr[2]}")
    if figures := config.stash[FIGURES]:
        terminalreporter.section("figures beside their targets")
        for line in table(figures):
            terminalreporter.write_line(line)
