"""Which MQTT a broker is asked for: 5, and 3.1.1 where it does not speak that.

A broker of 3.1.1 has to refuse 5 in words, and some end the connection instead, or answer nothing, as many a broken
line does too. So both versions are asked for in turn until one has an answer, and that one stays: only a refusal in
words changes it any more.
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
        self._has_answer = False

    def __str__(self) -> str:
        return NAMES[self.asked]

    def answered(self, reason: ReasonCode) -> None:
        """The broker took the connection, or refused it for a reason."""
        self._has_answer = True
        if reason.value == UNSUPPORTED:
            self._switch()

    def ended(self) -> None:
        """The connection is over, with an answer or without."""
        if not self._has_answer:
            self._switch()

    def _switch(self) -> None:
        self.asked = MQTT_3 if self.asked == MQTT_5 else MQTT_5


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
