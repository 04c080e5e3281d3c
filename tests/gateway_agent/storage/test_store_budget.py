"""The budget of the flash: what a day really writes, counted by the kernel, stays below what is promised.

Goal: a card that lasts ten years. Method: a simulated day on the real store, in a process of its own that does nothing
else, and the kernel's account of what that process wrote; the agent's own count is held against it.
"""

from __future__ import annotations

import json
import sys

import pytest

from fedgate.config.settings.settings import StoreTable
from fedgate.firmware_sim import children
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S

PAGE_BYTES = 4_096
DAY = """
import json, sys
from pathlib import Path
from fedgate.config.runtime import sqlite
from fedgate.gateway_agent.storage.store import Store
from tests.support import flash_day
from tests.support.kept import service

def written():
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])

sqlite.SYNCHRONOUS = "OFF"  # which changes when, not what
begun = written()
agent = service(Store(Path(sys.argv[1])))
flash_day.commission(agent)
laid_in, counted = written(), agent.store.written_bytes
flash_day.live(agent)
day, day_counted = written() - laid_in, agent.store.written_bytes - counted
agent.close()
print(json.dumps({"laid_in": laid_in - begun, "counted": counted, "day": day, "day_counted": day_counted,
                  "dropped": agent.state.outbox.dropped.get("telemetry", 0), "left": len(agent.state.outbox.items)}))
"""


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    command = [sys.executable, "-c", DAY, str(tmp_path_factory.mktemp("day") / "gateway.db")]
    root = ROOT
    done = children.run(command, PATIENCE_S, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


@pytest.mark.soak
def test_a_day_stays_far_below_the_budget(day: dict[str, int]) -> None:
    budget = StoreTable().flash_bytes_per_day
    assert 0 < day["day"] < budget / 2
    assert day["dropped"] == 0 and day["left"] == 0


@pytest.mark.soak
def test_the_agent_counts_what_the_kernel_counts(day: dict[str, int]) -> None:
    assert abs(day["day"] - day["day_counted"]) < 2 * PAGE_BYTES
    assert abs(day["laid_in"] - day["counted"]) < 2 * PAGE_BYTES
