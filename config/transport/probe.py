"""A client that asks a broker one thing at a time and waits for the answer: what the doctor examines brokers with.

`fedgate.config.transport.mqtt.Link` keeps trying and never waits, which is right for a service and wrong for a
question. Nothing here takes longer than the time it is given, whatever the other side does or leaves.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from fedgate.config.settings.settings import Broker
from fedgate.config.transport import tls
from fedgate.config.transport.mqtt import identify
from fedgate.config.transport.protocol_version import MQTT_3, MQTT_5, lasting_session, limits_of
from fedgate.config.transport.send_queue import UNKNOWN

ANSWER_S = 3.0
SLICE_S = 0.05


class ProbeError(OSError):
    """The broker cannot be asked: not reached, not let in, or the connection ended; the message says which."""


class RefusedError(ProbeError):
    """The broker answered, and does not let this client in."""


class Probe:
    """One connection; use it in a `with` block. `answer_s` bounds each wait for the broker."""

    def __init__(
        self,
        broker: Broker,
        user: str,
        client_id: str,
        *,
        keeps_session: bool = False,
        protocol: MQTTProtocolVersion = MQTT_3,
        answer_s: float = ANSWER_S,
    ) -> None:
        """Connect as `user`. Raises `ProbeError`, and `fedgate.config.settings.settings.SettingsError` for files that
        cannot be used.
        """
        self.messages: deque[paho.MQTTMessage] = deque()
        self.session_present, self.limits = False, UNKNOWN
        self._answer_s = answer_s
        self._connected: ReasonCode | None = None
        self._ended, self._complaint = False, ""
        self._answers: dict[int, list[ReasonCode]] = {}
        clean = None if protocol == MQTT_5 else not keeps_session  # of MQTT 5 it is said when connecting
        is_lasting = keeps_session and protocol == MQTT_5
        lasting: dict[str, Any] = {"clean_start": False, "properties": lasting_session()} if is_lasting else {}
        self._client = client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=protocol, clean_session=clean
        )
        identify(client, broker, user, tls.make_context(broker))
        client.connect_timeout = answer_s
        client.on_log = self._on_log
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_message = lambda _client, _data, message: self.messages.append(message)
        client.on_subscribe = lambda _client, _data, number, codes, _properties: self._on_answered(number, codes)
        client.on_publish = lambda _client, _data, number, code, _properties: self._on_answered(number, [code])
        try:
            client.connect(broker.host, broker.port, keepalive=broker.keepalive_s, **lasting)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ProbeError(f"cannot connect ({error})") from None
        self._wait(lambda: self._connected is not None)
        if self._connected is None:
            ended = f"the connection ended before the broker answered{tls.advise(self._complaint)}"
            raise ProbeError(ended if self._ended else self._describe_silence())
        if self._connected.is_failure:
            raise RefusedError(str(self._connected))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError, ValueError):
            self._client.disconnect()
            self._client.loop(SLICE_S)

    def subscribe(self, topic: str) -> bool:
        """Subscribe with QoS 1; return whether the broker grants it."""
        result, number = self._client.subscribe(topic, qos=1)
        return not any(code.is_failure for code in self._answer(result, number, "a subscription"))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> str:
        """Publish with QoS 1; return the reason of a refusal, empty where there is none, or MQTT 3.1.1 hides it."""
        sent = self._client.publish(topic, payload, qos=1, retain=retain)
        refused = [str(code) for code in self._answer(sent.rc, sent.mid, f"{len(payload)} bytes") if code.is_failure]
        return refused[0] if refused else ""

    def receive(self, topic: str, within_s: float | None = None) -> paho.MQTTMessage | None:
        """Return the next message on a topic, none where it does not come in time; others are thrown away."""
        self._wait(lambda: any(message.topic == topic for message in self.messages), within_s)
        while self.messages:
            message = self.messages.popleft()
            if message.topic == topic:
                return message
        return None

    def listen(self, seconds: float) -> None:
        """Gather messages for a while."""
        self._wait(lambda: False, seconds)

    def _answer(self, result: int, number: int | None, what: str) -> list[ReasonCode]:
        if result == MQTTErrorCode.MQTT_ERR_SUCCESS and number is not None:
            self._wait(lambda: number in self._answers)
            if number in self._answers:
                return self._answers.pop(number)
        raise ProbeError(
            f"the connection ended after {what}" if self._ended else f"{self._describe_silence()} to {what}"
        )

    def _describe_silence(self) -> str:
        return f"no answer within {self._answer_s:g} s"

    def _wait(self, done: Callable[[], bool], within_s: float | None = None) -> None:
        end_s = time.monotonic() + (self._answer_s if within_s is None else within_s)
        while not done() and not self._ended and time.monotonic() < end_s:
            if self._client.loop(SLICE_S) != MQTTErrorCode.MQTT_ERR_SUCCESS:
                self._ended = True

    def _on_answered(self, number: int, codes: list[ReasonCode]) -> None:
        self._answers[number] = codes

    def _on_connect(
        self, _client: Any, _data: Any, flags: paho.ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self.session_present, self.limits = flags.session_present, limits_of(properties)
        self._connected = reason

    def _on_log(self, _client: Any, _data: Any, level: int, text: str) -> None:
        if level == paho.MQTT_LOG_ERR:  # with TLS 1.3 the broker's reason to refuse us stands there
            self._complaint = f": {text}"

    def _on_disconnect(self, *_details: object) -> None:
        self._ended = True
