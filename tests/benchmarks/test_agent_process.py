"""The agent as a process of its own on a real broker: memory, processor, and the delay that an operator sees."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from config.settings import Broker
from firmware_sim.broker import broker
from tests.benchmarks import field, usage
from tests.benchmarks.conftest import Note
from tests.benchmarks.field import Field
from tests.benchmarks.station import WINDOW_S

IDLE_S, LIVE_S = 10.0, 60.0
FAST, FAST_S = 10.0, 600.0  # times real time, sensor's time

pytestmark = pytest.mark.slow


def scored(running: Field, windows: int) -> list[tuple[float, int]]:
    """Return (time of arrival, end of the window) of so many scores."""
    heard = [running.scores.get(timeout=field.PATIENCE_S) for _ in range(windows)]
    return [(arrived_s, score.t_ns) for arrived_s, score in heard]


def share_of_a_core(running: Field, length_s: float) -> float:
    """Return the share of one core that the agent takes while the sensor speaks in real time, or is silent."""
    before_s, began_s = usage.busy_s(running.agent.pid), time.monotonic()
    time.sleep(length_s)
    return (usage.busy_s(running.agent.pid) - before_s) / (time.monotonic() - began_s)


def test_a_large_gateway(tmp_path: Path, note: Note) -> None:
    key = field.key_pair(tmp_path)
    with broker(tmp_path / "broker") as server, field.field(tmp_path, Broker(host=server.host, port=server.port)) as agent:
        time.sleep(1)
        for what in ("idle", "commissioned", "model", "live"):
            if what == "commissioned":
                agent.play(2 * WINDOW_S, 10.0)
                agent.wait("the baseline", lambda status: status.baseline_windows == status.baseline_needed)
            if what == "model":
                agent.release(key)
                agent.wait("the model", lambda status: status.model_version == 1)
            if what == "live":
                agent.play(200, 20)
                scored(agent, 99)
            time.sleep(1)
            m = usage.memory(agent.agent.pid)
            print(what, m, usage.busy_s(agent.agent.pid))
            import subprocess
            print(subprocess.run(["/tmp/w/v/bin/python","/tmp/w/smaps.py",str(agent.agent.pid)],capture_output=True,text=True).stdout[:1400])
