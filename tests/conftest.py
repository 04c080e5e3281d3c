"""How hypothesis runs here: the same examples every time, and a slow or busy machine is not a finding."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fedgate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("fedgate")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin each process's part with its share of the slow tests, so that none is left with them at the end."""
    processes = int(getattr(config, "workerinput", {}).get("workercount", 1))
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    part = -(-len(quick) // processes)
    items[:] = [
        item
        for number in range(processes)
        for item in (*slow[number::processes], *quick[number * part : (number + 1) * part])
    ]
