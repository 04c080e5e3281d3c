"""MQTT 5 is spoken where the broker speaks it, with its limits and refusals, and 3.1.1 elsewhere.

Method: the real link with Mosquitto, with the embedded broker, which has 3.1.1 alone, and with a scripted one for what
neither of them says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from fedgate.config.settings.settings import Broker as BrokerSettings
from fedgate.config.transport import session_conflict
from fedgate.config.transport.mqtt import Link
from fedgate.config.transport.protocol_version import MQTT_3, MQTT_5, UNSUPPORTED, ProtocolVersion
from fedgate.config.transport.session_conflict import ENOUGH, SessionConflict
from fedgate.firmware_sim import broker as broker_module
from fedgate.firmware_sim.broker import Kind, broker
from tests.config.transport.test_link import ALARM, UPDATE, Ends, needs_mosquitto, wait
from tests.support.scripted_broker import CONNECT, PUBLISH, SUBSCRIBE, VERSION_AT, Answer, scripted_broker
from tests.support.waiting import until, until_subscribed

ACCEPTED_5, ACCEPTED_3 = b"\x20\x03\x00\x00\x00", b"\x20\x02\x00\x00"
Heard = tuple[str, bytes, bool]
KINDS = [pytest.param("mosquitto", marks=needs_mosquitto), "embedded"]


def logged(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [text for record in caplog.records if words in (text := record.getMessage())]


@pytest.fixture(autouse=True)
def _all_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedgate.mqtt")


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_each_broker_is_spoken_to_in_its_version_and_keeps_what_an_absent_client_is_owed(
    kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with broker(tmp_path, kind) as started:
        with Ends(started.port, "north", "fedgate/v1/+/+/+/+") as north:
            wait(lambda: north.connections[-1])
            until_subscribed(north.link)
        with Ends(started.port, "cloud") as cloud:
            wait(lambda: cloud.connections[-1])
            assert cloud.link.publish(UPDATE, b"while it was away") and cloud.link.drain(10.0)
        with Ends(started.port, "north") as north:  # which does not subscribe again
            wait(lambda: bool(north.heard))
            assert [payload for _, _, payload in north.heard] == [b"while it was away"]
    version, refusals = ("5", 0) if kind == "mosquitto" else ("3.1.1", 3)
    assert len(logged(caplog, f"connected to broker {started.address} with MQTT {version}")) == 3
    assert len(logged(caplog, "Unsupported protocol version (attempt 1); trying on with MQTT 3.1.1")) == refusals


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_retained_is_told_as_it_comes_where_the_version_can(kind: Kind, tmp_path: Path) -> None:
    """A retained message that comes live has no mark of it in MQTT 3.1.1, and in 5 where it was subscribed to so."""
    topics, heard = ("fedgate/v1/bridge/cloud/action/one", "fedgate/v1/bridge/north/status/agent"), list[Heard]()
    with broker(tmp_path, kind) as started, Ends(started.port, "sender") as sender:
        link = Link(
            BrokerSettings(port=started.port),
            "cloud",
            topics,
            lambda topic, payload: heard.append((topic, payload, False)),
            lambda _up: None,
            on_retained=lambda topic, payload: heard.append((topic, payload, True)),
            as_published=topics[:1],
        )
        link.start()
        try:
            wait(lambda: link.is_connected and sender.connections[-1])
            until_subscribed(link)
            for topic in topics:
                assert sender.link.publish(topic, b"kept", retain=True) and sender.link.publish(topic, b"live")
            wait(lambda: len(heard) == 4)
        finally:
            link.stop()
    told = [(topic, payload) for topic, payload, is_retained in heard if is_retained]
    assert told == ([(topics[0], b"kept")] if kind == "mosquitto" else [])


@pytest.mark.soak
def test_a_version_that_was_refused_is_not_asked_for_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with broker(tmp_path, "embedded") as started, Ends(started.port, "north") as north:
        wait(lambda: north.connections[-1])
        started.restart()
        wait(lambda: north.connections.count(True) == 2)
    assert len(logged(caplog, "Unsupported protocol version")) == 1


def hanging_up_on(version: int, accepted: bytes) -> tuple[Answer, list[int]]:
    """Return a broker that ends the connection of who asks for a version, and which versions it was asked for."""
    asked: list[int] = []

    def answer(kind: int, body: bytes) -> bytes | None:
        if kind != CONNECT:
            return b""
        asked.append(body[VERSION_AT])
        return None if asked[-1] == version else accepted

    return answer, asked


def test_a_broker_that_hangs_up_on_mqtt_5_is_spoken_to_in_3(caplog: pytest.LogCaptureFixture) -> None:
    answer, asked = hanging_up_on(MQTT_5, ACCEPTED_3)
    with scripted_broker(answer) as port, Ends(port, "north") as north:
        wait(lambda: north.connections[-1])
    assert asked == [MQTT_5, MQTT_3] and len(logged(caplog, "trying on with MQTT 3.1.1")) == 1


def test_both_versions_are_asked_for_until_one_is_answered_and_5_again_after_an_answer() -> None:
    version = ProtocolVersion()
    asked = []
    for _ in range(4):
        asked.append(version.asked)
        version.note_end()
    assert asked == [MQTT_5, MQTT_3, MQTT_5, MQTT_3]
    version.note_end()
    assert version.asked == MQTT_3  # of a broker of both, for one connection
    version.note_answer(ReasonCode(PacketTypes.CONNACK, "Success"))
    version.note_end()
    assert version.asked == MQTT_5
    for expected in (MQTT_3, MQTT_5):  # a broker of another version took its place
        version.note_answer(ReasonCode(PacketTypes.CONNACK, identifier=UNSUPPORTED))
        version.note_end()
        assert version.asked == expected
        version.note_end()
        assert version.asked == expected  # what was refused in words is not asked for again


@needs_mosquitto
def test_a_broker_s_own_limit_counts_and_its_refusals_are_told_once_for_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written, acl = broker_module._mosquitto_configuration, tmp_path / "acl"
    acl.write_text("user north\ntopic readwrite fedgate/v1/bridge/north/alarm/+\n")
    acl.chmod(0o600)
    lines = f"max_packet_size 5000\nacl_file {acl}\n"
    monkeypatch.setattr(broker_module, "_mosquitto_configuration", lambda *where: written(*where) + lines)
    with (
        broker(tmp_path / "broker", "mosquitto") as started,
        Ends(started.port, "north", "fedgate/v1/bridge/+/+/+") as north,
    ):
        until_subscribed(north.link)
        assert not north.link.publish(ALARM, bytes(5_000)) and north.link.publish(ALARM, bytes(4_000))
        for _ in range(3):
            assert north.link.publish(UPDATE, b"chunk") and north.link.drain(10.0)
        assert north.link.conflict == "the broker refuses update: Not authorized"
        wait(lambda: bool(north.heard))
        assert [topic for _, topic, _ in north.heard] == [ALARM] and north.connections == [True]
    assert len(logged(caplog, "the broker takes 5000 (as it says itself; number 1)")) == 1
    assert logged(caplog, "refuses it") == [
        f"{UPDATE}: the broker refuses it and passes none of its kind on: Not authorized"
    ]


def saying(connack: bytes, subscribed: int = 1, publish: Callable[[bytes], bytes] = lambda _: b"") -> Answer:
    """Return a broker of MQTT 5 that takes connections with these words, and answers subscriptions with this code."""

    def answer(kind: int, body: bytes) -> bytes:
        if kind == CONNECT:
            return connack
        if kind == SUBSCRIBE:
            return b"\x90\x04" + body[:2] + bytes([0, subscribed])
        return publish(body) if kind == PUBLISH else b""

    return answer


def test_a_refused_subscription_is_an_error_with_its_topic(caplog: pytest.LogCaptureFixture) -> None:
    words = "fedgate/a: the broker refuses the subscription, so nothing of it comes: Not authorized"
    with scripted_broker(saying(ACCEPTED_5, 0x87)) as port, Ends(port, "north", "fedgate/a"):
        wait(lambda: bool(logged(caplog, words)))
    assert {record.levelname for record in caplog.records if words in record.getMessage()} == {"ERROR"}


@pytest.mark.soak
def test_no_more_messages_are_on_the_line_than_the_broker_takes_at_once() -> None:
    came: list[bytes] = []

    def publish(body: bytes) -> bytes:
        came.append(body)
        return b""

    only_two = b"\x20\x06\x00\x00\x03\x21\x00\x02"
    with scripted_broker(saying(only_two, publish=publish)) as port, Ends(port, "north") as north:
        assert all(north.link.publish(ALARM, bytes([number])) for number in range(5))
        wait(lambda: len(came) == 2)
        time.sleep(0.1)
        assert len(came) == 2 and not north.link.drain(0.0)


def test_another_client_of_the_same_id_is_told_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_conflict, "RECONNECT_S_MIN", 0)  # as paho's pauses are whole seconds
    taken_over = b"\xe0\x02\x8e\x00"
    with scripted_broker(saying(ACCEPTED_5, publish=lambda _: taken_over)) as port, Ends(port, "north") as north:
        assert north.link.publish(ALARM, b"sent again after each connection")
        until(lambda: north.link.conflict and len(north.connections) >= 2 * ENOUGH)
        assert "connections in a row were ended by the broker, which says: Session taken over" in north.link.conflict
        assert north.connections[: 2 * ENOUGH] == [True, False] * ENOUGH
    assert logged(caplog, "ended: Session taken over") and logged(caplog, f"{ENOUGH} connections in a row were ended")


def test_a_client_that_is_taken_over_is_in_conflict_however_long_it_was_connected() -> None:
    made = SessionConflict()
    for number in range(1, ENOUGH + 1):
        made.begin(1_000.0 * number)
        assert made.end(1_000.0 * number + 900.0, session_conflict.TAKEN_OVER) == (number == ENOUGH)
