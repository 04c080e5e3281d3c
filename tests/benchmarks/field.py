"""The large gateway as it runs in the field: the agent in a process of its own, a real broker, a sensor node."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from config import signing
from config.messages import Score, Status
from config.mqtt import Link
from config.settings import Broker, GatewaySettings
from config.settings import load as load_settings
from config.topics import ALL, Topic, parse, topic_of, watch
from config.transfer import split
from firmware_sim.node import replay
from firmware_sim.recordings import Channel, Recording
from gateway_agent.events import Keep
from gateway_agent.store import Store
from tests.benchmarks import station
from tests.benchmarks.station import CHANNELS, FRAME_S, GATEWAY, NS, RATE_HZ, SITE, STREAM, T0_NS, WINDOW_S

BASELINE_WINDOWS = 2_000  # as shipped
PATIENCE_S = 60.0


class Field:
    """A running agent and an operator who listens to it."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder, self.broker = folder, broker
        self.scores: queue.Queue[tuple[float, Score]] = queue.Queue()  # (time of arrival, score)
        self.status: Status | None = None
        self.played_s = 0.0  # of the sensor's time
        topics = [watch(SITE, GATEWAY, "score"), watch(SITE, GATEWAY, "status")]
        self.link = Link(broker, "operator", topics, self._heard, lambda _up: None)
        self.settings = _settings(folder, broker)
        log = (folder / "agent.log").open("wb")
        command = [sys.executable, "-m", "gateway_agent", "run", "-c", str(folder / "gateway.toml")]
        self.agent = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()

    def _heard(self, topic: str, payload: bytes) -> None:
        if parse(topic).channel == "score":
            self.scores.put((time.monotonic(), Score.from_bytes(payload)))
        else:
            self.status = Status.from_bytes(payload)

    def wait(self, what: str, done: Callable[[Status], bool]) -> None:
        """Wait until the agent's status says so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.status is None or not done(self.status):
            log = (self.folder / "agent.log").read_text()
            assert self.agent.poll() is None, log
            assert time.monotonic() < deadline_s, f"no sign of {what}\n{self.status}\n{log}"
            time.sleep(0.05)

    def play(self, length_s: float, speed: float) -> None:
        """Be the sensor node for so many seconds of its time; returns when they are over."""
        values = station.samples(self.settings.features, round(length_s / WINDOW_S), seed=round(self.played_s))
        channels = tuple(Channel(role) for role in self.settings.features.channels)
        replay(
            Recording("noise", channels, RATE_HZ, values.reshape(-1, CHANNELS)),
            self.broker,
            site=SITE,
            gateway=GATEWAY,
            stream=STREAM,
            speed=speed,
            frame_s=FRAME_S,
            t0_ns=T0_NS + round(self.played_s * NS),
            progress=False,
        )
        self.played_s += length_s

    def release(self, key: Ed25519PrivateKey) -> None:
        """Publish a model as the aggregator does."""
        limit = self.settings.limits.max_payload_bytes
        manifest, body = station.released(self.settings.features, key, limit)
        self.link.publish(topic_of(Topic(SITE, ALL, "manifest", "current")), manifest.to_bytes(), retain=True)
        for chunk in split(body, limit):
            self.link.publish(topic_of(Topic(SITE, ALL, "chunk", manifest.model.digest)), chunk)


@contextmanager
def field(folder: Path, broker: Broker) -> Iterator[Field]:
    """Run the agent and the operator; the agent has all of its baseline but the last window."""
    running = Field(folder, broker)
    try:
        running.link.start()
        running.wait("the agent", lambda status: status.state == "online")
        yield running
        running.agent.terminate()
        assert running.agent.wait(PATIENCE_S) == 0, (folder / "agent.log").read_text()
    finally:
        running.agent.kill()
        running.agent.wait()
        running.link.stop()


def _settings(folder: Path, broker: Broker) -> GatewaySettings:
    """Write the settings and a store, as days of commissioning would have left it."""
    chosen = station.settings()
    tables: dict[str, Any] = chosen.model_dump(mode="json", include={"features", "source"})
    tables |= {
        "gateway": {"id": GATEWAY, "site": SITE},
        "broker": {"host": broker.host, "port": broker.port},
        "baseline": {"windows": BASELINE_WINDOWS},
        "exchange": {"status_s": 1.0},
    }
    (folder / "gateway.toml").write_text(toml(tables))
    settings = load_settings(folder / "gateway.toml", GatewaySettings)
    store = Store(settings.gateway.store)
    store.commit([Keep(row) for row in station.baseline(settings.features, BASELINE_WINDOWS - 1)])
    store.close()
    return settings


def toml(tables: dict[str, Any]) -> str:
    """Return tables as TOML; what is None is left out."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            given = {key: inner for key, inner in value.items() if inner is not None}
            return "{ " + ", ".join(f"{key} = {text(inner)}" for key, inner in given.items()) + " }"
        if isinstance(value, list):
            return "[" + ", ".join(map(text, value)) + "]"
        return json.dumps(value)

    return "\n".join(f"{key} = {text(table)}" for key, table in tables.items()) + "\n"


def key_pair(folder: Path) -> Ed25519PrivateKey:
    """Write a release key beside the settings and return its private half."""
    signing.make_key(folder / "release.key", folder / "release.pub")
    return signing.load_private(folder / "release.key")
