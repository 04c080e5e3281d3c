"""Which MQTT a broker is asked for: 5, and 3.1.1 where it does not speak that.

A broker of 3.1.1 has to refuse 5 in words, and some end the connection instead, or answer nothing, as many a broken
line does too. So where a connection had no answer the next one asks for the other version, and after one that had an
answer 5 is asked for again, unless it was refused in words: a broken line hides what 5 tells until the next connection
and no longer, and a broker that hangs up on 5 costs one attempt more at each.
"""

from __future__ import annotations

from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from fedgate.config.transport.send_queue import UNKNOWN, Limits

MQTT_3, MQTT_5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5
NAMES = {MQTT_3: "3.1.1", MQTT_5: "5"}
UNSUPPORTED = 0x84
# For ever, as sessions of MQTT 3.1.1 last: a gateway may be off for a winter, and how long is long enough is for the
# owner of the broker to say, in one place for both versions (Mosquitto: persistent_client_expiration).
SESSION_EXPIRY_S = 0xFFFF_FFFF


class ProtocolVersion:
    """What one broker was asked for, and what it answered; only the network's thread uses it."""

    def __init__(self) -> None:
        self.asked = MQTT_5
        self._refused: MQTTProtocolVersion | None = None  # in words, last
        self._has_answer = False  # of the connection at hand

    def __str__(self) -> str:
        return NAMES[self.asked]

    def note_answer(self, reason: ReasonCode) -> None:
        """The broker took the connection, or refused it for a reason."""
        self._has_answer = True
        if reason.value == UNSUPPORTED:
            self._refused = self.asked

    def note_end(self) -> None:
        """The connection is over, with an answer or without."""
        first, second = (MQTT_5, MQTT_3) if self._has_answer or self.asked == MQTT_3 else (MQTT_3, MQTT_5)
        self.asked = second if first == self._refused else first
        self._has_answer = False


def lasting_session() -> Properties:
    """Return the properties of a connection whose session outlasts it; MQTT 3.1.1 has no use for them."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # as paho has it
    properties.SessionExpiryInterval = SESSION_EXPIRY_S
    return properties


def limits_of(properties: Properties | None) -> Limits:
    """Return what a broker said of itself when it took the connection; with MQTT 3.1.1 it says nothing."""
    packet_bytes = getattr(properties, "MaximumPacketSize", UNKNOWN.packet_bytes)
    messages = getattr(properties, "ReceiveMaximum", UNKNOWN.messages)
    return Limits(packet_bytes, min(max(messages, 1), UNKNOWN.messages))
