"""What the aggregator needs for a fleet: memory by the number of gateways, and the time to take in what one of them
has to tell after a day without a link.
"""

from __future__ import annotations

import queue
import sys
import time
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.alarms.handling import CHANGES, RESERVED
from fedgate.config.protocol.messages import Alarm
from fedgate.config.protocol.topics import Topic, parse, topic_of, watch
from fedgate.config.settings.settings import GatewaySettings, load
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim import children
from fedgate.gateway_agent.events import ALARM_PRIORITY, Enqueue, Item
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.time_units import NS
from tests.benchmarks import station, usage
from tests.benchmarks.central import centre
from tests.benchmarks.conftest import Note
from tests.benchmarks.field import toml
from tests.benchmarks.light_fleet import Fleet
from tests.benchmarks.light_gateways import ONLINE
from tests.benchmarks.station import GATEWAY, SITE, T0_NS
from tests.config.transport.test_link import needs_mosquitto

SIZES = (16, 100, 1_000)
GROWTH_MIB_MAX = 5.0
SETTLING_S = 3.0
ALARMS, OUTAGE_S = CHANGES - RESERVED, 86_400  # as many as one gateway may have taken in at once
PATIENCE_S = 120.0

pytestmark = [pytest.mark.slow, needs_mosquitto]


def test_memory(tmp_path: Path, note: Note) -> None:
    """Each fleet has an aggregator of its own, and answers one round of a model of 1.3 MB. What stays is taken once
    the aggregator has given back what the round left behind, which it does within a second.
    """
    stays_mib = {}
    for count in SIZES:
        with centre(tmp_path / str(count), quorum=count) as running:
            fleet = Fleet(running.broker, count)
            fleet.link.start()
            fleet.wait_for_round()
            started_mib = usage.memory(running.aggregator_pid).rss_mib
            fleet.answer()
            time.sleep(SETTLING_S)
            used = usage.memory(running.aggregator_pid)
            peak_mib = usage.peak_mib(running.aggregator_pid)
            fleet.link.stop()
        stays_mib[count] = used.rss_mib
        note(f"aggregator of {count} gateways, before the first is heard: resident", started_mib, "MiB")
        note(f"aggregator of {count} gateways, in the round: resident at most", peak_mib, "MiB")
        note(f"aggregator of {count} gateways, after the round: resident", used.rss_mib, "MiB")
        note(f"aggregator of {count} gateways, after the round: private and written", used.private_dirty_mib, "MiB")
    growth_mib = stays_mib[SIZES[-1]] - stays_mib[SIZES[0]]
    said_mib = (SIZES[-1] - SIZES[0]) * len(ONLINE.to_bytes()) / usage.MIB  # all of it, as text
    note(
        f"aggregator, growth from {SIZES[0]} to {SIZES[-1]} gateways",
        growth_mib,
        "MiB",
        at_most=GROWTH_MIB_MAX,
        hardware_limit=said_mib,
    )


def alarm(number: int) -> Alarm:
    onset_ns = T0_NS + number // 2 * 2 * OUTAGE_S * NS // ALARMS
    return Alarm(
        id=f"{GATEWAY}.faulty-deck.{onset_ns}",
        cause="faulty-deck",
        kind="sensor",
        state="cleared" if number % 2 else "raised",
        severity="warning",
        text="the sensor is stuck",
        onset_ns=onset_ns,
        t_ns=onset_ns + number % 2 * 30 * NS,
        clock="synchronised",
    )


def test_recovery(tmp_path: Path, note: Note) -> None:
    """An agent starts with a store as a day without a link has left it."""
    alarms = [alarm(number) for number in range(ALARMS)]
    with centre(tmp_path, quorum=1) as running:
        tables = station.tables(station.shipped_features()) | {"broker": {"port": running.broker.port}}
        (tmp_path / "gateway.toml").write_text(toml(tables))
        store = Store(load(tmp_path / "gateway.toml", GatewaySettings).gateway.store)
        where = topic_of(Topic(SITE, GATEWAY, "alarm", "faulty-deck"))
        items = [Item(where, (one.to_bytes(),), True, ALARM_PRIORITY, one.t_ns) for one in alarms]
        store.commit([Enqueue(one.item, item) for one, item in zip(alarms, items, strict=True)])
        store.close()
        told: queue.SimpleQueue[tuple[float, str, str]] = queue.SimpleQueue()

        def heard(topic: str, payload: bytes) -> None:
            channel = parse(topic).channel
            item = Alarm.from_bytes(payload).item if channel == "alarm" else parse(topic).item
            told.put((time.monotonic(), channel, item))

        operator = Link(
            running.broker, "operator", [watch(SITE, GATEWAY, c) for c in ("alarm", "receipt")], heard, lambda _up: None
        )
        operator.start()
        time.sleep(3.0)  # until the aggregator listens
        with (tmp_path / "agent.log").open("wb") as log:
            command = [sys.executable, "-P", "-m", "fedgate.gateway_agent", "run", "-c", str(tmp_path / "gateway.toml")]
            agent = children.start(command, stdout=log, stderr=log)
        try:
            arrived: list[tuple[float, str]] = []
            settled: dict[str, float] = {}
            while len(settled) < ALARMS:
                at_s, channel, item = told.get(timeout=PATIENCE_S)
                if channel == "alarm":
                    arrived.append((at_s, item))
                else:
                    settled.setdefault(item, at_s)
        finally:
            agent.terminate()
            agent.wait(PATIENCE_S)
            operator.stop()
    order = list(dict.fromkeys(item for _, item in arrived))
    note(f"{ALARMS} alarms of a day's outage: first alarm to last receipt", max(settled.values()) - arrived[0][0], "s")
    note(f"{ALARMS} alarms of a day's outage: sent more than once", len(arrived) - len(order), "messages")
    note(f"{ALARMS} alarms of a day's outage: in their order", float(order == [one.item for one in alarms]), "(1: yes)")
