"""The link to a broker: the only place that knows paho.

The link connects in the background, keeps trying with growing, jittered pauses, and subscribes anew after every
connect. It queues nothing: what must not be lost lies in the store of its sender until the other side's receipt.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from config.settings import Broker, SettingsError

RECONNECT_S_MIN = 1
RECONNECT_S_MAX = 60
IN_FLIGHT_MAX = 20
WAITING_BYTES_MAX = 4 * 1024 * 1024  # then a slow link is not asked to carry the same again
STOP_S = 2.0
LOG = logging.getLogger("fedgate.mqtt")


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained, when this client vanishes without a word."""

    topic: str
    payload: bytes


class Link:
    """One client of one broker.

    `on_message(topic, payload)` and `on_connection(connected)` are called from the network thread and should only hand
    over.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        subscriptions: Sequence[str],
        on_message: Callable[[str, bytes], None],
        on_connection: Callable[[bool], None],
        will: Will | None = None,
    ) -> None:
        self.bytes_sent = 0
        self.bytes_received = 0
        self._last: paho.MQTTMessageInfo | None = None
        self._waiting: deque[tuple[paho.MQTTMessageInfo, int]] = deque()  # handed over, not acknowledged by the broker
        self._waiting_bytes = 0
        self._attempts = 0  # to connect, since the last time it worked
        self._broker, self._subscriptions = broker, tuple(subscriptions)
        self._on_message, self._on_connection = on_message, on_connection
        self._client = client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
        client.username_pw_set(broker.user or client_id, _password(broker))
        if broker.ca_file is not None:
            _use_tls(client, broker)
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1, retain=True)
        client.max_inflight_messages_set(IN_FLIGHT_MAX)
        # paho doubles its pause but does not jitter it; without that a fleet returns all at once after an outage.
        client.reconnect_delay_set(RECONNECT_S_MIN, RECONNECT_S_MAX + random.randrange(RECONNECT_S_MAX))  # noqa: S311 - spreads load, guards nothing
        client.on_connect_fail = self._not_connected
        client.on_connect, client.on_disconnect, client.on_message = self._connected, self._disconnected, self._received

    def start(self) -> None:
        """Begin to connect; returns at once, also where there is no broker yet."""
        self._client.connect_async(self._broker.host, self._broker.port, keepalive=self._broker.keepalive_s)
        self._client.loop_start()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, qos: int = 1) -> bool:
        """Hand a message to the broker; False, and nothing sent, without a connection or behind too much unsent."""
        while self._waiting and self._waiting[0][0].is_published():
            self._waiting_bytes -= self._waiting.popleft()[1]
        if not self._client.is_connected() or self._waiting_bytes > WAITING_BYTES_MAX:
            return False
        info = self._client.publish(topic, payload, qos=qos, retain=retain)
        if qos > 0:
            self._last = info
            self._waiting.append((info, len(payload)))
            self._waiting_bytes += len(payload)
        self.bytes_sent += len(topic) + len(payload)
        return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until the broker has acknowledged what was handed over; False where it did not in time."""
        if self._last is None:
            return True
        with suppress(RuntimeError):  # paho's word for a message that a lost connection took along
            self._last.wait_for_publish(timeout_s)
        return self._last.is_published()

    def stop(self) -> None:
        """Send what was handed over, say goodbye (so the will stays unsaid) and end the network thread."""
        if self._client.is_connected():
            self.drain(STOP_S)
        self._client.disconnect()
        # An attempt to connect to a host that does not answer cannot be broken off, and must not delay the end.
        ending = threading.Thread(target=self._client.loop_stop, daemon=True)
        ending.start()
        ending.join(STOP_S)

    def _connected(self, client: paho.Client, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            LOG.warning("broker %s:%d refused the connection: %s", self._broker.host, self._broker.port, reason)
            return
        self._attempts = 0
        LOG.info("connected to broker %s:%d", self._broker.host, self._broker.port)
        for topic in self._subscriptions:
            client.subscribe(topic, qos=1)
        self._on_connection(True)

    def _not_connected(self, _client: Any, _data: Any) -> None:
        self._attempts += 1
        if self._attempts.bit_count() == 1:  # at 1, 2, 4, 8, ...: an outage may last for weeks
            broker = self._broker
            LOG.warning("no broker at %s:%d (attempt %d); trying on", broker.host, broker.port, self._attempts)

    def _disconnected(self, _client: Any, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        LOG.info("connection to %s:%d ended: %s", self._broker.host, self._broker.port, reason)
        self._on_connection(False)

    def _received(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        self.bytes_received += len(message.topic) + len(message.payload)
        self._on_message(message.topic, bytes(message.payload))


def check(broker: Broker) -> None:
    """Raise `SettingsError` where the files that a link to this broker needs cannot be used."""
    _password(broker)
    if broker.ca_file is not None:
        _use_tls(paho.Client(CallbackAPIVersion.VERSION2), broker)


def _password(broker: Broker) -> str | None:
    if broker.password_file is None:
        return None
    try:
        return broker.password_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"broker.password_file: {broker.password_file} cannot be read ({error})") from None


def _use_tls(client: paho.Client, broker: Broker) -> None:
    try:
        client.tls_set(
            ca_certs=str(broker.ca_file),
            certfile=None if broker.certificate_file is None else str(broker.certificate_file),
            keyfile=None if broker.key_file is None else str(broker.key_file),
        )
    except (OSError, ValueError) as error:
        raise SettingsError(f"broker: TLS files cannot be used ({error})") from None
