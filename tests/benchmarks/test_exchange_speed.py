"""A model of 1.3 MB up and down between an aggregator and sixteen gateways, over a real broker: seconds, processor,
bytes; and how far an alarm is held up by an update on a slow line.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.firmware_sim.broker import broker
from tests.benchmarks.conftest import Note
from tests.benchmarks.exchange import GATEWAYS, UPDATE_BYTES, exchange
from tests.config.transport.test_link import alarm_delays_s, needs_mosquitto

ROUND_S_MAX = 0.17
AGGREGATOR_BUSY_S_MAX = 0.12  # a round
ALARM_DELAY_S_MAX = 5.0
SLOW_BYTES_PER_S = 20_000.0

pytestmark = [pytest.mark.slow, needs_mosquitto]


@pytest.mark.parametrize("plain", [False, True], ids=["default", "uncompressed"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_rounds(tls: bool, plain: bool, tmp_path: Path, note: Note) -> None:
    took = exchange(tmp_path, tls=tls, plain=plain)
    what = f"{GATEWAYS} gateways, {'1.3 MB up and' if plain else 'int8 up, 1.3 MB'} down, {'TLS' if tls else 'no TLS'}"
    note(f"{what}: median round", float(np.median(took.durations_s)), "s", at_most=None if tls else ROUND_S_MAX)
    note(f"{what}: slowest round", max(took.durations_s), "s")
    for name, busy_s in took.busy_s.items():
        at_most = AGGREGATOR_BUSY_S_MAX if name == "aggregator" else None
        note(f"{what}: processor of the {name}", busy_s, "s a round", at_most=at_most)
    note(f"{what}: sent by a gateway", took.sent_mb, "MB a round")
    note(f"{what}: received by a gateway", took.received_mb, "MB a round")


@pytest.mark.soak  # a minute each of waiting; test_link.py does the same ten times as fast in every run
@pytest.mark.parametrize("chunk_kib", [32, 64, 120])
def test_alarms_beside_an_update_on_a_slow_line(chunk_kib: int, tmp_path: Path, note: Note) -> None:
    with broker(tmp_path, "mosquitto") as running:
        chunks = -(-UPDATE_BYTES // (chunk_kib * 1024))
        delays_s = alarm_delays_s(running.port, chunk_kib * 1024, chunks, SLOW_BYTES_PER_S, 2.0)
    what = f"alarm behind an update of 1.3 MB on 20 kB/s, chunks of {chunk_kib} KiB"
    note(f"{what}: median delay", float(np.median(delays_s)), "s")
    note(f"{what}: longest delay", max(delays_s), "s", at_most=ALARM_DELAY_S_MAX)
