"""A gateway as it runs in the field: the agent in a process of its own, a real broker, a sensor node."""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgate.config.identity import signing
from fedgate.config.protocol.messages import Score, Status
from fedgate.config.protocol.topics import ALL, Topic, parse, topic_of, watch
from fedgate.config.protocol.transfer import split
from fedgate.config.settings.settings import Broker, GatewaySettings, load
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import broker
from fedgate.firmware_sim.recordings import Channel, Recording
from fedgate.firmware_sim.replay.node import frames
from fedgate.gateway_agent.events import Keep
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.time_units import NS
from tests.benchmarks import station
from tests.benchmarks.station import FRAME_S, GATEWAY, SITE, STREAM, T0_NS
from tests.support.waiting import until

BASELINE_WINDOWS = 2_000  # as shipped
STATUS_S = 1.0
PATIENCE_S = 60.0


class Field:
    """A running agent, the sensor node it listens to, and an operator who listens to it."""

    def __init__(self, folder: Path, spec: FeatureSpec, server: Broker) -> None:
        self.folder, self.spec, self.server = folder, spec, server
        signing.make_key(folder / "release.key", folder / "release.pub")
        self.settings = _settings(folder, spec, server)
        self.scores: queue.Queue[tuple[float, Score]] = queue.Queue()  # (time of arrival, score)
        self.status: Status | None = None
        self.played_s = 0.0  # of the sensor's time
        topics = [watch(SITE, GATEWAY, "score"), watch(SITE, GATEWAY, "status")]
        self.link = Link(server, "operator", topics, self._heard, lambda _up: None)
        with (folder / "agent.log").open("wb") as log:
            command = [sys.executable, "-P", "-m", "fedgate.gateway_agent", "run", "-c", str(folder / "gateway.toml")]
            self.agent = children.start(command, stdout=log, stderr=log)

    def _heard(self, topic: str, payload: bytes) -> None:
        if parse(topic).channel == "score":
            self.scores.put((time.monotonic(), Score.from_bytes(payload)))
        else:
            self.status = Status.from_bytes(payload)

    def wait(self, what: str, done: Callable[[Status], bool]) -> None:
        """Wait until the agent says so in its status."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.status is None or not done(self.status):
            log = (self.folder / "agent.log").read_text()
            assert self.agent.poll() is None, log
            assert time.monotonic() < deadline_s, f"no sign of {what}\n{self.status}\n{log}"
            time.sleep(0.05)

    def play(self, windows: int, per_s: float) -> dict[int, float]:
        """Be the sensor node for so many windows, at so many a second, and return when each frame was sent.

        The keys are the ends of the frames on the sensor's clock; those of windows are among them.
        """
        values = station.samples(self.spec, windows, seed=round(self.played_s))
        channels, t0_ns = tuple(map(Channel, self.spec.channels)), T0_NS + round(self.played_s * NS)
        recording = Recording("noise", channels, self.spec.rate_hz, values.reshape(-1, len(channels)))
        topic, speed = topic_of(Topic(SITE, GATEWAY, "sample", STREAM)), per_s * self.spec.window_s
        began_s, sent_s = time.monotonic(), {}
        for due_s, frame in frames(recording, FRAME_S, t0_ns, "bench"):
            payload = frame.to_bytes()
            time.sleep(max(began_s + due_s / speed - time.monotonic(), 0.0))
            sent_s[t0_ns + round(due_s * NS)] = time.monotonic()
            assert self.link.publish(topic, payload)
        until(lambda: self.link.drain(0.1))
        self.played_s += recording.length_s
        return sent_s

    def commission(self) -> None:
        """Let the agent have the last window of its baseline, then publish a model as the aggregator does."""
        self.play(2, per_s=5.0)
        self.wait("a whole baseline", lambda status: status.baseline_windows == status.baseline_needed)
        limit_bytes = self.settings.limits.max_payload_bytes
        manifest, body = station.released(self.spec, signing.load_private(self.folder / "release.key"), limit_bytes)
        self.link.publish(topic_of(Topic(SITE, ALL, "manifest", "current")), manifest.to_bytes(), retain=True)
        for chunk in split(body, limit_bytes):
            self.link.publish(topic_of(Topic(SITE, ALL, "chunk", manifest.model.digest)), chunk)
        self.wait("the model in force", lambda status: status.model_version == manifest.version)

    def heard(self) -> dict[int, float]:
        """Wait for the score of the last window played, and return when those since the last call arrived, by the end
        of their window on the sensor's clock.
        """
        arrived_s: dict[int, float] = {}
        while T0_NS + round(self.played_s * NS) not in arrived_s:
            now_s, score = self.scores.get(timeout=PATIENCE_S)
            arrived_s[score.t_ns] = now_s
        return arrived_s


@contextmanager
def field(folder: Path, spec: FeatureSpec) -> Iterator[Field]:
    """Run a broker and an agent that has all of its baseline but the last window."""
    with broker(folder / "broker") as server:
        running = Field(folder, spec, Broker(host=server.host, port=server.port))
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


def _settings(folder: Path, spec: FeatureSpec, server: Broker) -> GatewaySettings:
    """Write the settings and a store as days of commissioning leave them."""
    tables = station.tables(spec) | {
        "broker": {"host": server.host, "port": server.port},
        "baseline": {"windows": BASELINE_WINDOWS},
        "exchange": {"status_s": STATUS_S},
    }
    (folder / "gateway.toml").write_text(toml(tables))
    settings = load(folder / "gateway.toml", GatewaySettings)
    store = Store(settings.gateway.store)
    store.commit([Keep(FeatureRow(row, None)) for row in station.baseline(spec, BASELINE_WINDOWS - 1)])
    store.close()
    return settings


def toml(tables: dict[str, Any]) -> str:
    """Return tables as TOML; a key without a value is left out."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            given = {key: inner for key, inner in value.items() if inner is not None}
            return "{ " + ", ".join(f"{key} = {text(inner)}" for key, inner in given.items()) + " }"
        if isinstance(value, list):
            return "[" + ", ".join(map(text, value)) + "]"
        return json.dumps(value)

    return "\n".join(f"{key} = {text(table)}" for key, table in tables.items()) + "\n"
