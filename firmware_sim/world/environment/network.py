"""The broker of a simulated world: what MQTT promises, and all the ways in which brokers break it.

Promised: at least once, retained messages, sessions that outlive a connection, a last will. Broken: queues are bounded
and drop in silence, a restart may find nothing or an old snapshot, what was under way when a connection ended is sent
again or never. A PUBACK is modelled by its absence: nobody in this project may rely on one.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Protocol

import numpy as np

from fedgate.cloud_aggregator.runtime.app import WATCHED
from fedgate.config.protocol.topics import ALL, CLOUD
from fedgate.config.transport.send_queue import Outgoing
from fedgate.firmware_sim.world.environment.faults import Faults
from fedgate.firmware_sim.world.environment.link import Line
from fedgate.firmware_sim.world.environment.setup import REMOTE
from fedgate.firmware_sim.world.environment.time import Scheduler
from fedgate.gateway_agent.runtime.agent import OF_ALL, OF_ITS_OWN

KEEPALIVE_S = 45.0  # one and a half of what is set: until then nobody notices a line that is dead
RECONNECT_S_MAX = 60.0  # of one that finds nobody
WITHHELD = ("manifest", "round", "chunk", "receipt", "resend")  # kinds of messages to gateways
REPLAYED = (*WITHHELD, "status", "fetch")
KEPT = 400  # of each kind that a broker that lies has handed out before
SHOWN_S = 5.0  # between a manifest that is shown to others and the chunks of its model, which nobody awaits before
SNAPSHOT_S = 1_800.0  # how often Mosquitto writes its database, as it is shipped
SENT = 9  # bytes of a packet besides topic and payload: type, lengths, number
CHUNKED = frozenset({"chunk", "update", "samples"})
Message = tuple[str, bytes]  # topic, payload


def _packet_bytes() -> int:
    """Return the size of a message at which the broker, as it is shipped, ends the connection of its sender."""
    text = (resources.files("fedgate.config") / "mosquitto.conf").read_text(encoding="utf-8")
    return int(re.findall(r"^max_packet_size (\d+)$", text, re.MULTILINE)[0])


PACKET_BYTES = _packet_bytes()


class Door(Protocol):
    """What looks at certificates at the broker."""

    def admits(self, device: str) -> bool:
        """Tell whether the broker lets a client in."""

    def read(self) -> None:
        """Read again who is let in no more."""


class Client(Protocol):
    """A machine as the broker sees it."""

    name: str
    is_up: bool

    def receive(self, topic: str, payload: bytes) -> None:
        """Take a message."""

    def linked(self, up: bool) -> None:
        """Take note that the connection came up or went down."""


@dataclass
class Session:
    """What the broker knows of one client, and the state of its line."""

    client: Client
    will: Message | None
    line: Line
    identity: str  # the name under which it connects; of several under one name the broker keeps the latest
    queue: list[Message] = field(default_factory=list)
    is_connected: bool = False
    connection: int = 0  # counts them, so that what belongs to an ended one is told apart
    is_known: bool = False  # the broker holds a session
    is_orphaned: bool = False  # the process behind the connection is gone
    is_cut_off: bool = False  # the line is dead, whether or not anyone has noticed


class Network:
    """The broker and the lines to it."""

    def __init__(
        self,
        scheduler: Scheduler,
        rng: np.random.Generator,
        faults: Faults,
        note: Callable[[str, str], None],
        violate: Callable[[str], None],
    ) -> None:
        self._scheduler, self._rng, self._note = scheduler, rng, note
        self.faults, self.violate = faults, violate
        self.sessions: dict[str, Session] = {}
        self.retained: dict[str, bytes] = {}
        self.is_up = True
        self.door: Door | None = None  # at which certificates are looked at, where there are any
        # By kind: what was to be handed out, and whether it was retained.
        self._before: dict[str, deque[tuple[str, bytes, bool]]] = defaultdict(partial(deque, maxlen=KEPT))
        self._withheld: list[tuple[str, str]] = []  # channel, and from whom: empty for all
        self._snapshot: tuple[dict[str, bytes], dict[str, list[Message]]] = ({}, {})
        scheduler.after(SNAPSHOT_S, self._take_snapshot)

    def join(self, client: Client, will: Message | None, identity: str = "") -> None:
        """Make a client known; it connects when it is up."""
        line = Line(self._scheduler, self.faults.capacity, partial(self._leave, client.name), self.violate)
        self.sessions[client.name] = Session(client, will, line, identity or client.name)

    def connect(self, name: str) -> None:
        """Let a client that has just started look for the broker."""
        self._scheduler.after(float(self._rng.uniform(0.1, 3.0)), lambda: self._connected(name))

    def _connected(self, name: str) -> None:
        session = self.sessions[name]
        if not session.client.is_up or (session.is_connected and not session.is_orphaned):
            return
        if not self.is_up or session.is_cut_off or not (self.door is None or self.door.admits(name)):
            wait_s = float(self._rng.uniform(1.0, RECONNECT_S_MAX))
            self._scheduler.after(wait_s, lambda: self._connected(name))
            return
        if session.is_connected:  # the broker has not noticed yet that the one before is gone, and now does
            self._dropped(name, session.connection)
        self._taken_over(session)
        session.is_connected, session.is_known = True, True
        session.connection += 1
        if session.is_orphaned:
            self.violate(f"{name} is connected over the line of a process that is gone")
        self._note(name, "connected")
        session.line.opened()
        session.client.linked(True)
        for topic, payload in list(self.retained.items()):
            if concerns(session.identity, topic):
                self._send(session, topic, payload)
        waiting, session.queue = session.queue, []
        for topic, payload in waiting:
            self._send(session, topic, payload)

    def _taken_over(self, session: Session) -> None:
        """Let the broker close the connection, and hand over the session, of another under the same name."""
        for name, other in self.sessions.items():
            if other is not session and other.identity == session.identity:
                self._dropped(name, other.connection)
                session.queue, other.queue, other.is_known = [*session.queue, *other.queue], [], False

    def has(self, identity: str) -> bool:
        """Tell whether a client is connected under a name."""
        return any(one.is_connected for one in self.sessions.values() if one.identity == identity)

    def put_out(self, identity: str, *, sweeps: bool) -> bool:
        """End connections and sessions under a name, for the aggregator, and what the name retained where it wants so.

        False where the aggregator cannot reach the broker.
        """
        if not self.is_up or self.sessions["cloud"].is_cut_off:
            return False
        for name, session in self.sessions.items():
            if session.identity == identity:
                self._dropped(name, session.connection)
                session.queue, session.is_known = [], False
        if sweeps:
            self.retained = {topic: body for topic, body in self.retained.items() if topic.split("/")[3] != identity}
        return True

    def left(self, name: str, *, at_once: bool) -> None:
        """Take note that a client's process is gone: at once where its machine lives, else by its silence."""
        session = self.sessions[name]
        session.line.ended()
        if not session.is_connected:
            return
        connection, session.is_orphaned = session.connection, True
        if at_once:
            self._dropped(name, connection)
        else:
            self._scheduler.after(KEEPALIVE_S, lambda: self._dropped(name, connection))

    def goodbye(self, name: str) -> None:
        """Let a client disconnect in order: its will stays unsaid.

        One whose process has not connected yet says goodbye to nobody: what the broker still holds open is of the
        process before, and ends by its silence.
        """
        session = self.sessions[name]
        session.is_connected = session.is_connected and session.is_orphaned
        session.line.ended()

    def _dropped(self, name: str, connection: int) -> None:
        session = self.sessions[name]
        if not session.is_connected or session.connection != connection:
            return
        was_orphaned = session.is_orphaned
        session.is_connected = session.is_orphaned = False
        if self.is_up and session.will is not None:
            topic, payload = session.will
            self._at_broker(topic, payload, retain=True, qos=1)
        if session.client.is_up and not was_orphaned:
            pauses_s = session.line.cut()
            session.client.linked(False)
            self._scheduler.after(float(self._rng.uniform(*pauses_s)), lambda: self._connected(name))

    def publish(self, name: str, topic: str, payload: bytes, *, retain: bool, qos: int = 1) -> None:
        """Take a message from a client; without a connection it is gone."""
        session = self.sessions[name]
        if not session.is_connected or session.is_orphaned:
            return
        session.line.publish(Outgoing(topic, payload, retain, qos))

    def push(self, name: str, topic: str, payload: bytes, *, retain: bool, qos: int) -> None:
        """Take a message from a client that keeps to no line; without a connection it is gone."""
        if self.sessions[name].is_connected:
            self._leave(name, Outgoing(topic, payload, retain, qos))

    def _leave(self, name: str, message: Outgoing) -> None:
        """Take a message from a line; who sends one that is too large for the broker is put out."""
        topic, _, retain, qos = message
        if len(topic.encode()) + len(message.payload) + SENT > PACKET_BYTES:
            self._note(name, f"sends {len(message.payload)} bytes at once, and is disconnected by the broker")
            self._scheduler.after(0.0, partial(self._dropped, name, self.sessions[name].connection))
            return
        for part in self._under_way(topic, message.payload):
            self._later(partial(self._at_broker, topic, part, retain=retain, qos=qos))

    def _later(self, act: Callable[[], None]) -> None:
        self._scheduler.after(float(self._rng.exponential(self.faults.messages.delay_s)) + 0.01, act)

    def _under_way(self, topic: str, payload: bytes) -> list[bytes]:
        """Return what arrives of a message: nothing, it, or more than one of it."""
        chances, (lost, repeated, damaged) = self.faults.messages, self._rng.random(3)
        if lost < chances.loss:
            return []
        if damaged < chances.damage and topic.split("/")[4] in CHUNKED and payload:
            payload = flipped(payload, self._rng)
        return [payload] * (2 if repeated < chances.repeat else 1)

    def _at_broker(self, topic: str, payload: bytes, *, retain: bool, qos: int) -> None:
        if not self.is_up:
            return
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        lies, (gateway, channel) = self.faults.lies, topic.split("/")[3:5]
        if channel in REPLAYED and (lies.replays or lies.shows):
            self._before[channel].append((topic, payload, retain))
        if lies.shows and channel == "manifest" and gateway != ALL and payload and self._rng.random() < lies.shows:
            later_s = float(self._rng.exponential(self.faults.lies.withheld_s))
            self._scheduler.after(later_s, partial(self._show, gateway, topic, payload))
        for session in self.sessions.values():
            if session.is_known and concerns(session.identity, topic) and (qos > 0 or session.is_connected):
                self._send(session, topic, payload)
                if lies.doubles and self._rng.random() < lies.doubles:
                    self._send(session, topic, payload)

    def _replay(self) -> None:
        """Hand out again what was to be handed out before, as if it were new; what was retained is so again."""
        if not self._before or not self.is_up:
            return
        kind = self._before[str(self._rng.choice(list(self._before)))]
        topic, payload, retain = kind[int(self._rng.integers(len(kind)))]
        self._note("broker", f"says again {'/'.join(topic.split('/')[3:])}, {len(payload)} bytes of some time ago")
        self._hand_out(topic, payload, retain=retain)

    def _show(self, gateway: str, topic: str, manifest: bytes) -> None:
        """Show all what was for one gateway alone: a manifest, and the model that it names."""
        if not self.is_up or not self.faults.lies.shows:
            return
        digest = json.loads(manifest)["model"]["digest"]
        chunks = {one for one in self._before["chunk"] if one[0].endswith(f"/{gateway}/chunk/{digest}")}
        self._note("broker", f"shows all a manifest of {gateway} alone, with {len(chunks)} chunks")
        self._hand_out(topic.replace(f"/{gateway}/", f"/{ALL}/"), manifest, retain=True)
        for chunk_topic, chunk, _ in sorted(chunks):
            shown = partial(self._hand_out, chunk_topic.replace(f"/{gateway}/", f"/{ALL}/"), chunk, retain=False)
            self._scheduler.after(SHOWN_S + 2 * self.faults.messages.delay_s, shown)

    def _hand_out(self, topic: str, payload: bytes, *, retain: bool) -> None:
        if retain and payload:
            self.retained[topic] = payload
        for session in self.sessions.values():
            if session.is_connected and concerns(session.identity, topic):
                self._send(session, topic, payload)

    def _withhold(self) -> None:
        """Keep a kind of message to itself for a while, from one or from all."""
        channel = str(self._rng.choice(WITHHELD))
        names = ["", *(one.identity for one in self.sessions.values() if one.identity != "cloud")]
        whom, duration_s = str(self._rng.choice(names)), float(self._rng.exponential(self.faults.lies.withheld_s))
        self._note("broker", f"withholds {channel} from {whom or 'all'} for {duration_s:.0f} s")
        self._withheld.append((channel, whom))
        self._scheduler.after(duration_s, lambda: self._withheld.remove((channel, whom)))

    def schedule_lies(self) -> None:
        """Arrange for what a broker that means harm does."""
        self._scheduler.again(self._rng, self.faults.lies.replays, self._replay)
        self._scheduler.again(self._rng, self.faults.lies.withholds, self._withhold)

    def _send(self, session: Session, topic: str, payload: bytes) -> None:
        if self._withheld and any((topic.split("/")[4], one) in self._withheld for one in ("", session.identity)):
            return
        if not session.is_connected:
            self._queued(session, topic, payload)
            return
        connection = session.connection
        for part in self._under_way(topic, payload):
            self._later(lambda part=part: self._arrived(session, connection, topic, part))  # type: ignore[misc]  # a lambda with a default has no type of its own

    def _queued(self, session: Session, topic: str, payload: bytes) -> None:
        settings = self.faults.broker
        if len(session.queue) >= settings.queue_max:
            if settings.full_queue_drops == "newest":
                return
            session.queue.pop(0)
        session.queue.append((topic, payload))

    def _arrived(self, session: Session, connection: int, topic: str, payload: bytes) -> None:
        is_there = session.is_connected and not session.is_orphaned and not session.is_cut_off
        if is_there and session.connection == connection:
            session.client.receive(topic, payload)
        elif session.is_known:  # never acknowledged, so it is sent again
            self._queued(session, topic, payload)

    def cut_off(self, name: str, duration_s: float) -> None:
        """Let a line be dead for a while; both ends notice only by the silence."""
        session = self.sessions[name]
        if session.is_cut_off:
            return
        session.is_cut_off = True
        session.line.died()
        connection = session.connection
        self._note(name, f"line dead for {duration_s:.0f} s")
        self._scheduler.after(KEEPALIVE_S, lambda: self._silent(name, connection))
        self._scheduler.after(duration_s, lambda: self._mended(name))

    def _silent(self, name: str, connection: int) -> None:
        if self.sessions[name].is_cut_off:
            self._dropped(name, connection)

    def _mended(self, name: str) -> None:
        session = self.sessions[name]
        session.is_cut_off = False
        session.line.mended(is_connected=session.is_connected)

    def _take_snapshot(self) -> None:
        self._snapshot = (
            dict(self.retained),
            {name: list(one.queue) for name, one in self.sessions.items() if one.is_known},
        )
        self._scheduler.after(SNAPSHOT_S, self._take_snapshot)

    def restart(self, away_s: float, memory: str) -> None:
        """Stop the broker for a while; `memory` says what it then finds: `whole`, an old `snapshot`, or `empty`."""
        if not self.is_up:
            return
        self._note("broker", f"restarts after {away_s:.0f} s, memory {memory}")
        self.is_up = False
        for name, session in self.sessions.items():
            self._dropped(name, session.connection)
        if memory != "whole":
            retained, queues = self._snapshot if memory == "snapshot" else ({}, {})
            self.retained = dict(retained)
            for name, session in self.sessions.items():
                session.queue, session.is_known = list(queues.get(name, ())), name in queues
        self._scheduler.after(away_s, self._back)

    def _back(self) -> None:
        self.is_up = True
        self._note("broker", "is back")
        if self.door is not None:
            self.door.read()

    def schedule_faults(self, name: str | None) -> None:
        """Schedule the faults of a line, or of the broker where no name is given."""
        line, broker = self.faults.line, self.faults.broker

        def happen() -> None:
            if name is None:
                memory = str(self._rng.choice(["whole", "snapshot", "empty"]))
                memory = memory if broker.memory == "any" else broker.memory
                self.restart(float(self._rng.exponential(broker.away_s)), memory)
            else:
                self.cut_off(name, float(self._rng.exponential(line.partition_s)))

        self._scheduler.again(self._rng, broker.restarts if name is None else line.partitions, happen)


def flipped(payload: bytes, rng: np.random.Generator) -> bytes:
    """Return a chunk with one bit of what it carries turned over: its header says what it always said."""
    body = payload.find(b"\n") + 1
    place, bit = int(rng.integers(max(min(body, len(payload) - 1), 0), len(payload))), int(rng.integers(8))
    return payload[:place] + bytes([payload[place] ^ 1 << bit]) + payload[place + 1 :]


def concerns(name: str, topic: str) -> bool:
    """Tell whether a client has subscribed to a topic: gateways and aggregator as their shells do, who acts on alarms
    to its answers.
    """
    _, _, _, gateway, channel, item = topic.split("/")
    if gateway == CLOUD or name == REMOTE:
        return (channel == "action" and name == "cloud") or (channel == "answer" and item == name)
    if name == "cloud":
        return channel in WATCHED and (gateway != ALL or channel == "newest")
    return channel in OF_ALL if gateway == ALL else gateway == name and channel in OF_ITS_OWN
