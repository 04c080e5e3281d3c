"""A model of 1.3 MB up and down between an aggregator and sixteen gateways, over a real broker: seconds, processor,
bytes; and how far an alarm is held up by an update on a slow line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import broker
from tests.benchmarks import usage
from tests.benchmarks.central import centre
from tests.benchmarks.conftest import Note
from tests.config.transport.test_link import alarm_delays_s, needs_mosquitto
from tests.support.waiting import PATIENCE_S

GATEWAYS, ROUNDS, WARM_UP = 16, 30, 5
ROUND_S_MAX = 0.17
ALARM_DELAY_S_MAX = 5.0
SLOW_BYTES_PER_S = 20_000.0
UPDATE_BYTES = 1_300_000

pytestmark = [pytest.mark.slow, needs_mosquitto]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_rounds(tls: bool, tmp_path: Path, note: Note) -> None:
    with centre(tmp_path, quorum=GATEWAYS, tls=tls) as running:
        pids = {"aggregator": running.aggregator_pid, "broker": running.broker_pid}
        before_s = {name: usage.busy_s(pid) for name, pid in pids.items()}
        arguments = [str(running.broker.port), str(GATEWAYS), str(ROUNDS)]
        arguments += [str(running.broker.ca_file)] if tls else []
        command = [sys.executable, "-m", "tests.benchmarks.light_gateways", *arguments]
        told = children.run(command, PATIENCE_S, text=True)
        assert told.returncode == 0, told.stderr + (tmp_path / "aggregator.log").read_text()[-4_000:]
        said = json.loads(told.stdout)
        durations_s = np.diff(said["opened_s"])[WARM_UP:]
        what = f"{GATEWAYS} gateways, 1.3 MB up and down, {'TLS' if tls else 'no TLS'}"
        note(f"{what}: median round", float(np.median(durations_s)), "s", at_most=None if tls else ROUND_S_MAX)
        note(f"{what}: slowest round", float(durations_s.max()), "s")
        rounds = len(said["opened_s"])
        for name, pid in pids.items():
            note(f"{what}: processor of the {name}", (usage.busy_s(pid) - before_s[name]) / rounds, "s a round")
        note(f"{what}: processor of all light gateways", said["busy_s"] / rounds, "s a round")
        for way in ("sent", "received"):
            note(f"{what}: {way} by a gateway", said[way] / rounds / GATEWAYS / 1e6, "MB a round")


@pytest.mark.parametrize("chunk_kib", [32, 64, 120])
def test_alarms_beside_an_update_on_a_slow_line(chunk_kib: int, tmp_path: Path, note: Note) -> None:
    with broker(tmp_path, "mosquitto") as running:
        chunks = -(-UPDATE_BYTES // (chunk_kib * 1024))
        delays_s = alarm_delays_s(running.port, chunk_kib * 1024, chunks, SLOW_BYTES_PER_S, 2.0)
    what = f"alarm behind an update of 1.3 MB on 20 kB/s, chunks of {chunk_kib} KiB"
    note(f"{what}: median delay", float(np.median(delays_s)), "s")
    note(f"{what}: longest delay", max(delays_s), "s", at_most=ALARM_DELAY_S_MAX)
