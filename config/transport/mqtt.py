"""The link of a service to its broker.

It connects in the background, keeps trying with growing, jittered pauses, and subscribes anew after every connect. With
MQTT 5 it heeds what the broker says of its limits, and logs what it refuses; see `protocol_version`.
What the line does not take at once waits in a `SendQueue`, alarms first; that is no store: what must not be lost lies
in that of its sender until the other side's receipt.
"""

from __future__ import annotations

import logging
import queue
import random
import ssl
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from fedgate.config.protocol.topics import urgency
from fedgate.config.settings.settings import Broker, SettingsError
from fedgate.config.transport import tls
from fedgate.config.transport.protocol_version import MQTT_5, ProtocolVersion, lasting_session, limits_of
from fedgate.config.transport.send_queue import MESSAGES_MAX, Outgoing, SendQueue
from fedgate.config.transport.session_conflict import RECONNECT_S_MAX, RECONNECT_S_MIN, SessionConflict

STOP_S = 2.0
LOG = logging.getLogger("fedgate.mqtt")


@dataclass(frozen=True)
class Will:
    """What is published, retained, when this client ends: by itself or, where it vanishes, by the broker."""

    topic: str
    payload: bytes


class Link:
    """One client of one broker.

    `on_message(topic, payload)` and `on_connection(connected)` are called from the network thread and should only hand
    over. `on_retained` is called instead of `on_message`, where it is given, with what the broker had kept of earlier;
    of subscriptions that are `as_published` also with what is retained as it comes, which MQTT 5 alone tells.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        subscriptions: Sequence[str],
        on_message: Callable[[str, bytes], None],
        on_connection: Callable[[bool], None],
        will: Will | None = None,
        on_retained: Callable[[str, bytes], None] | None = None,
        as_published: Collection[str] = (),
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self._queue = SendQueue(broker.max_packet_bytes)
        self._lock = threading.Lock()  # of the queue; never held while paho is called, which has locks of its own
        self._is_idle = threading.Condition(self._lock)
        # What the thread that sends has to do to the queue; None ends it. A SimpleQueue, because paho tells of
        # acknowledgements while it holds the locks that publishing needs.
        self._news: queue.SimpleQueue[Callable[[SendQueue], object] | None] = queue.SimpleQueue()
        self._version = ProtocolVersion()
        self._asked: dict[int | None, str] = {}  # id of a subscription -> its topic
        self._conflict = SessionConflict()
        self._attempts = 0  # to connect, since the last time it worked
        self._is_open, self._complaint = False, ""
        self._broker, self._subscriptions = broker, tuple(subscriptions)
        self._on_message, self._on_connection = on_message, on_connection
        self._on_retained, self._as_published = on_retained or on_message, frozenset(as_published)
        self._client = client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        identify(client, broker, broker.user or client_id, tls.make_rereading_context(broker))
        self._will = will
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1, retain=True)
        client.max_inflight_messages_set(MESSAGES_MAX)
        # paho doubles its pause but does not jitter it; without that a fleet returns all at once after an outage.
        self._pause_s_max = RECONNECT_S_MAX + random.randrange(RECONNECT_S_MAX)  # noqa: S311 - spreads load, guards nothing
        self._pauses_s = (0, 0)
        self._set_pauses((RECONNECT_S_MIN, self._pause_s_max))
        client.on_publish, client.on_subscribe = self._on_published, self._on_subscribed
        client.on_connect_fail, client.on_log = self._on_not_connected, self._on_logged
        client.on_connect, client.on_disconnect, client.on_message = (
            self._on_connected,
            self._on_disconnected,
            self._on_received,
        )

    def start(self) -> None:
        """Begin to connect; returns at once, also where there is no broker yet."""
        self._ask_for_version()
        self._client.connect_async(
            self._broker.host,
            self._broker.port,
            keepalive=self._broker.keepalive_s,
            clean_start=False,
            properties=lasting_session(),
        )
        self._client.loop_start()
        threading.Thread(target=self._send, daemon=True).start()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were handed to `publish`, and that the broker has not acknowledged."""
        with self._lock:
            return self._queue.waiting_bytes

    @property
    def payload_bytes(self) -> int:
        """How long a piece of a body should be, by the line and the broker as they were lately."""
        with self._lock:
            return self._queue.payload_bytes

    @property
    def is_connected(self) -> bool:
        """True while the broker has let us in."""
        return bool(self._client.is_connected())

    @property
    def conflict(self) -> str:
        """What keeps ending the connection, or what the broker refuses; empty where nothing is wrong."""
        with self._lock:
            refused = sorted(self._queue.refused.items())
        return self._conflict.text or "; ".join(f"the broker refuses {kind}: {reason}" for kind, reason in refused)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, qos: int = 1) -> bool:
        """Send a message as soon as the line takes it, before all that are less urgent
        (`fedgate.config.protocol.topics.urgency`).

        False, and nothing sent, without a connection, where too many bytes wait already, or where it is larger than the
        broker takes.
        """
        if not self._client.is_connected():
            return False
        with self._lock:
            taken = self._queue.add(Outgoing(topic, payload, retain, qos), urgency(topic))
        if taken:
            self._news.put(SendQueue.wake)
        return taken

    def drain(self, timeout_s: float) -> bool:
        """Wait until the broker has acknowledged what was handed over; False where it did not in time."""
        with self._is_idle:
            return self._is_idle.wait_for(lambda: self._queue.is_empty, timeout_s)

    def stop(self) -> None:
        """Say the will, send what was handed over, take leave of the broker and end the threads."""
        if self._will is not None:
            self.publish(self._will.topic, self._will.payload, retain=True)
        if self._client.is_connected():
            self.drain(STOP_S)
        self._client.disconnect()
        self._news.put(None)
        # An attempt to connect to a host that does not answer cannot be broken off, and must not delay the end.
        ending = threading.Thread(target=self._client.loop_stop, daemon=True)
        ending.start()
        ending.join(STOP_S)
        client = self._client  # which closes its last sockets when nobody holds it any more, so no circle may
        client.on_publish = client.on_connect = client.on_disconnect = client.on_message = client.on_connect_fail = None
        client.on_subscribe = client.on_log = None

    def _send(self) -> None:
        """Keep the line busy, in a thread of its own: only it hands messages to paho."""
        while (change := self._news.get()) is not None:
            with self._lock:
                change(self._queue)
                if self._queue.is_empty:
                    self._is_idle.notify_all()
                message = self._queue.take()
            while message is not None:
                number = self._client.publish(message.topic, message.payload, message.qos, message.retain).mid
                self.bytes_sent += message.size
                with self._lock:
                    self._queue.note_handed_over(number, message, time.monotonic())
                    message = self._queue.take()

    def _on_published(self, _client: Any, _data: Any, number: int, reason: ReasonCode, _properties: Any) -> None:
        refusal = str(reason) if reason.is_failure else ""
        self._news.put(partial(SendQueue.acknowledge, number=number, now_s=time.monotonic(), refusal=refusal))

    def _on_connected(
        self, client: paho.Client, _data: Any, _flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._version.note_answer(reason)
        if reason.is_failure:
            self._complaint = str(reason)
            return
        self._attempts = 0
        self._is_open, self._complaint = True, ""
        self._conflict.begin(time.monotonic())
        LOG.info("connected to broker %s:%d with MQTT %s", self._broker.host, self._broker.port, str(self._version))
        self._asked = {self._subscribe(client, topic): topic for topic in self._subscriptions}
        self._news.put(partial(SendQueue.open, limits=limits_of(properties)))
        self._on_connection(True)

    def _subscribe(self, client: paho.Client, topic: str) -> int | None:
        if self._version.asked != MQTT_5 or topic not in self._as_published:
            return client.subscribe(topic, qos=1)[1]
        return client.subscribe(topic, options=SubscribeOptions(qos=1, retainAsPublished=True))[1]

    def _on_subscribed(
        self, _client: Any, _data: Any, number: int, reasons: Sequence[ReasonCode], _properties: Any
    ) -> None:
        topic = self._asked.pop(number, "")
        for reason in reasons:
            if reason.is_failure:
                LOG.error("%s: the broker refuses the subscription, so nothing of it comes: %s", topic, reason)

    def _ask_for_version(self) -> None:
        # As paho goes from 3.1.1 to 3.1 itself; a new client would not know what is on the line.
        self._client._protocol = self._version.asked

    def _on_not_connected(self, _client: Any, _data: Any) -> None:
        why = sys.exc_info()[1]  # paho calls this while it handles what went wrong, and does not tell it
        self._note_attempt(f"cannot be reached: {why}")

    def _note_attempt(self, problem: str) -> None:
        """Say why an attempt to connect failed, at 1, 2, 4, 8, ... of them: an outage may last for weeks."""
        self._attempts += 1
        if self._attempts.bit_count() == 1:
            words = (self._broker.host, self._broker.port, problem, self._attempts)
            LOG.warning("broker %s:%d %s (attempt %d); trying on with MQTT %s", *words, str(self._version))

    def _on_disconnected(
        self, _client: Any, _data: Any, flags: paho.DisconnectFlags, reason: ReasonCode, _properties: Any
    ) -> None:
        self._note_end(reason)
        if self._conflict.end(time.monotonic(), str(reason) if flags.is_disconnect_packet_from_server else ""):
            LOG.warning("broker %s:%d: %s", self._broker.host, self._broker.port, self._conflict.text)
        self._set_pauses(self._conflict.pauses_s(self._pause_s_max))
        self._news.put(SendQueue.cut)
        self._on_connection(False)

    def _note_end(self, reason: ReasonCode) -> None:
        if "[SSL" not in self._complaint:  # where TLS ended it, the broker was never asked
            self._version.note_end()
            self._ask_for_version()
        why = tls.advise(self._complaint) or reason
        if self._is_open:
            LOG.info("connection to %s:%d ended: %s", self._broker.host, self._broker.port, why)
        else:
            self._note_attempt(f"ended the connection before it began: {why}")
        self._is_open, self._complaint = False, ""

    def _on_logged(self, _client: Any, _data: Any, level: int, text: str) -> None:
        """Note what paho says of an error: with TLS 1.3 that is where the broker's reason to refuse us stands."""
        if level == paho.MQTT_LOG_ERR:
            self._complaint = text.removeprefix("failed to receive on socket: ")

    def _set_pauses(self, pauses_s: tuple[int, int]) -> None:
        if pauses_s != self._pauses_s:  # paho begins anew with the shortest pause wherever they are set
            self._pauses_s = pauses_s
            self._client.reconnect_delay_set(*pauses_s)

    def _on_received(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.bytes_received += len(message.topic) + len(message.payload)
        (self._on_retained if message.retain else self._on_message)(message.topic, bytes(message.payload))


def check(broker: Broker) -> None:
    """Raise `SettingsError` where the files that a link to this broker needs cannot be used."""
    _password(broker)
    tls.make_context(broker)


def identify(client: paho.Client, broker: Broker, user: str, context: ssl.SSLContext | None) -> None:
    """Give a client what it logs in with; raises `SettingsError` where the file of the password cannot be read."""
    client.username_pw_set(user, _password(broker))
    if context is not None:
        client.tls_set_context(context)


def _password(broker: Broker) -> str | None:
    if broker.password_file is None:
        return None
    try:
        return broker.password_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"broker.password_file: {broker.password_file} cannot be read ({error})") from None
