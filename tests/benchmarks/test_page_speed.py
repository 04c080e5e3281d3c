"""The page of a large site: how soon it is there, what an update takes, and what its process holds in memory."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from fedgate.firmware_sim import children
from tests.benchmarks import usage
from tests.benchmarks.conftest import Note
from tests.benchmarks.page_site import fill, serve

ALARMS, GATEWAYS, RUNS = 10_000, 500, 15
FIRST_MS_MAX, UPDATE_MS_MAX, MEMORY_MIB_MAX = 500.0, 50.0, 60.0
BARE = "import starlette.applications, uvicorn; print(flush=True); input()"

pytestmark = pytest.mark.slow


def measure_bare() -> float:
    """Return the proportional share, in MiB, of an interpreter that has imported the server alone."""
    with children.start([sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        used = usage.memory(process.pid)
        process.kill()
    return used.pss_mib


def test_page(tmp_path: Path, note: Note) -> None:
    fill(tmp_path, ALARMS, GATEWAYS)
    what = f"page, {ALARMS:,} alarms, {GATEWAYS} gateways"
    with serve(tmp_path) as site:
        first_s, first_busy_s = site.ask()
        note(f"{what}: first after its start", 1e3 * first_s, "ms", at_most=FIRST_MS_MAX)
        note(f"{what}: first after its start, processor", 1e3 * first_busy_s, "ms")
        for path in ("/", "/alarms", "/gateways", "/report"):
            taken = [site.ask(path) for _ in range(RUNS)]
            note(f"{what}: {path}", 1e3 * statistics.median(one for one, _ in taken), "ms")
            note(f"{what}: {path}, processor", 1e3 * sum(one for _, one in taken) / RUNS, "ms")
        changes = {"a gateway spoke": site.change, "an alarm was raised": site.raise_alarm}
        changes["one that followed a clock ahead"] = site.raise_after_clock_was_ahead
        for cause, change in changes.items():
            updates = []
            for number in range(RUNS):
                change(number)
                updates.append(site.ask("/", HX_Request="true", HX_Target="main"))
            taken_ms = 1e3 * statistics.median(one for one, _ in updates)
            note(f"{what}: update after {cause}", taken_ms, "ms", at_most=UPDATE_MS_MAX)
            note(f"{what}: the same, processor", 1e3 * sum(one for _, one in updates) / RUNS, "ms")
        bare_mib, used = measure_bare(), usage.memory(site.pid)
        note(f"{what}: proportional share beyond a bare server", used.pss_mib - bare_mib, "MiB", at_most=MEMORY_MIB_MAX)
        note(f"{what}: a bare server", bare_mib, "MiB")
        note(f"{what}: private and written", used.private_dirty_mib, "MiB")
        note(f"{what}: peak resident", usage.peak_mib(site.pid), "MiB")
