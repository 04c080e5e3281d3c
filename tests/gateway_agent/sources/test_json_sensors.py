"""Sensors that publish JSON, as Zigbee2MQTT, Tasmota and ESPHome do, read by a real agent over a real broker."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedgate.config.identity.signing import make_key
from fedgate.config.protocol.messages import Alarm, Status
from fedgate.config.protocol.topics import parse, watch
from fedgate.config.settings.settings import Broker as BrokerSettings
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import broker
from tests.support.waiting import taken

WINDOWS = 60
SETTINGS = """
broker = {{ host = "{host}", port = {port} }}

[gateway]
id = "room"
site = "house"

[[source]]
name = "climate"
kind = "json"
topic = "zigbee2mqtt/room"
channels = [{{ role = "temperature", unit = "degC", path = "temperature", gain = 0.1 }}]
time_path = "measured.at"
fill = "hold"
gap_s = 120.0
silent_after_s = 2.0

[[source]]
name = "plug"
kind = "json"
topic = "tele/plug/SENSOR"
channels = [{{ role = "power", unit = "W", path = "ENERGY.Power" }}]
time_path = "Time"
fill = "hold"
gap_s = 120.0

[features]
rate_hz = 0.1
window_s = 60.0
channels = ["temperature", "power"]
steps = [{{ kind = "level" }}]

[baseline]
windows = {windows}

[training]
enabled = false

[exchange]
status_s = 0.5
"""


def readings(count: int) -> list[tuple[str, bytes]]:
    """Return one reading a minute of both sensors, each in its own dialect."""
    messages = []
    for minute in range(count):
        at = f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00+00:00"
        climate = {"temperature": 200 + minute % 7, "battery": 97, "measured": {"at": at}}
        plug = {"Time": at, "ENERGY": {"Power": 40 + minute % 5, "Total": 1.5}}
        messages += [
            ("zigbee2mqtt/room", json.dumps(climate).encode()),
            ("tele/plug/SENSOR", json.dumps(plug).encode()),
        ]
    return messages


@pytest.mark.soak
@pytest.mark.slow
def test_json_sensors_become_a_baseline_and_their_silence_an_alarm(tmp_path: Path) -> None:
    make_key(tmp_path / "release.key", tmp_path / "release.pub")
    heard = queue.Queue[tuple[str, bytes]]()
    with broker(tmp_path) as server:
        settings = BrokerSettings(host=server.host, port=server.port)
        text = SETTINGS.format(host=server.host, port=server.port, windows=WINDOWS)
        (tmp_path / "gateway.toml").write_text(text)
        command = [sys.executable, "-P", "-m", "fedgate.gateway_agent", "run", "-c", str(tmp_path / "gateway.toml")]
        agent = children.start(command, stderr=subprocess.PIPE, text=True)
        topics = [watch("house", "room", "status"), watch("house", "room", "alarm")]
        link = Link(settings, "watcher", topics, lambda *message: heard.put(message), lambda _up: None)
        link.start()
        try:
            status = wait_for(heard, lambda status: status.state == "online")
            assert status.baseline_windows == 0
            for topic, payload in [*readings(WINDOWS + 3), ("zigbee2mqtt/room", b'{"battery": 3}')]:
                assert link.publish(topic, payload)
            status = wait_for(heard, lambda status: status.baseline_windows == WINDOWS and bool(status.dropped))
            assert status.windows >= WINDOWS
            assert status.dropped == {"message": 1}
            assert not status.can_train
            alarm = wait_for_alarm(heard)
            assert (alarm.cause, alarm.kind, alarm.state) == ("silent-climate", "sensor", "raised")
        finally:
            link.stop()
            agent.send_signal(signal.SIGTERM)
            complaint = agent.communicate()[1]
    assert agent.returncode == 0, complaint
    assert "no value at 'temperature'" in complaint


def wait_for(heard: queue.Queue[tuple[str, bytes]], fits: object) -> Status:
    """Return the first status that fits."""
    assert callable(fits)
    while True:
        topic, payload = taken(heard)
        if parse(topic).channel == "status":
            status = Status.from_bytes(payload)
            if fits(status):
                return status


def wait_for_alarm(heard: queue.Queue[tuple[str, bytes]]) -> Alarm:
    """Return the next alarm."""
    while True:
        topic, payload = taken(heard)
        if parse(topic).channel == "alarm":
            return Alarm.from_bytes(payload)
