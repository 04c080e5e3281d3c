"""Goal: whatever runs against `broker()` gets a working broker, or the reason why not, and nothing is left running.

Method: both brokers for real, through paho and the operating system; no broker and no client is faked.
"""

import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import psutil
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from fedgate.firmware_sim import broker as broker_module
from fedgate.firmware_sim.broker import (
    Broker,
    BrokerMissingError,
    BrokerNotReadyError,
    Kind,
    PortInUseError,
    broker,
    mosquitto_program,
)
from fedgate.firmware_sim.embedded_broker import Subscriptions
from tests.support.waiting import taken, until

needs_mosquitto = pytest.mark.skipif(mosquitto_program() is None, reason="Mosquitto is not installed")
KINDS = [pytest.param("mosquitto", marks=needs_mosquitto), "embedded"]


@pytest.fixture(params=KINDS, scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp(request.param), request.param) as started:
        yield started


class Peer:
    """A paho client that waits for what it asks for."""

    def __init__(self, client: mqtt.Client) -> None:
        self.client = client
        self.received: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
        self.connected = threading.Event()
        self.subscribed = threading.Event()
        self.connect_code = -1
        client.on_connect = self._on_connect
        client.on_subscribe = lambda *_: self.subscribed.set()
        client.on_message = lambda _client, _data, message: self.received.put(message)

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        self.connect_code = reason.value
        self.connected.set()

    def subscribe(self, topic: str) -> None:
        self.subscribed.clear()
        self.client.subscribe(topic, qos=1)
        until(self.subscribed.is_set, poll_s=0.005)

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        sent = self.client.publish(topic, payload, qos=1, retain=retain)
        until(sent.is_published, poll_s=0.005)

    def next(self) -> mqtt.MQTTMessage:
        return taken(self.received)


@contextmanager
def peer(at: Broker, name: str, *, user: str | None = "any-name", keep_session: bool = False) -> Iterator[Peer]:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=not keep_session)
    if user is not None:
        client.username_pw_set(user)
    made = Peer(client)
    client.connect(at.host, at.port)
    client.loop_start()
    try:
        until(made.connected.is_set, poll_s=0.005)
        yield made
    finally:
        client.disconnect()
        client.loop_stop()


def is_running(pid: int) -> bool:
    return bool(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


def test_says_what_it_is_and_listens_on_loopback_only(running: Broker) -> None:
    listening = {c.laddr for c in psutil.Process(running.pid).net_connections() if c.status == psutil.CONN_LISTEN}
    assert listening == {("127.0.0.1", running.port)}
    assert running.version[0].isdigit()
    assert str(running.address) == f"127.0.0.1:{running.port}"


@pytest.mark.parametrize("size", [0, 10, 1_300_000])
def test_delivers_qos_1_unchanged(running: Broker, size: int) -> None:
    payload = os.urandom(size)
    with peer(running, "listener") as listener, peer(running, "speaker") as speaker:
        listener.subscribe(f"size/{size}")
        speaker.publish(f"size/{size}", payload)
        message = listener.next()
    assert (message.topic, message.qos, message.payload) == (f"size/{size}", 1, payload)


def test_retained_message_reaches_a_late_subscriber(running: Broker) -> None:
    with peer(running, "speaker") as speaker:
        speaker.publish("retained/topic", b"kept", retain=True)
    with peer(running, "latecomer") as latecomer:
        latecomer.subscribe("retained/#")
        message = latecomer.next()
    assert (message.payload, message.retain) == (b"kept", True)


@pytest.mark.soak
def test_queue_of_an_absent_client_is_longer_than_the_default_of_mosquitto(running: Broker) -> None:
    sent = [str(i).encode() for i in range(1200)]
    with peer(running, "absent", keep_session=True) as absent:
        absent.subscribe("offline")
    time.sleep(0.2)  # no packet tells when the broker has noticed that the client left
    with peer(running, "speaker") as speaker:
        publishing = [speaker.client.publish("offline", payload, qos=1) for payload in sent]
        for publication in publishing:
            until(publication.is_published, poll_s=0.005)
    with peer(running, "absent", keep_session=True) as absent:
        assert [absent.next().payload for _ in sent] == sent


def test_client_without_a_user_name_is_served_or_refused_but_never_half_served(running: Broker) -> None:
    with peer(running, "anonymous", user=None) as anonymous:
        assert anonymous.connect_code == {"mosquitto": 0, "embedded": 0x87}[running.kind]  # 0x87: not authorized


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_ends_with_the_block_even_after_an_error(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(ZeroDivisionError), broker(tmp_path, kind) as started:
        assert is_running(started.pid)
        raise ZeroDivisionError
    assert not is_running(started.pid)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_restart_comes_back_on_the_same_port(tmp_path: Path, kind: Kind) -> None:
    with broker(tmp_path, kind) as started:
        before = (started.pid, started.port)
        started.restart()
        assert not is_running(before[0])
        assert started.port == before[1]
        with peer(started, "listener") as listener:
            listener.subscribe("after")
            listener.publish("after", b"restart")
            assert listener.next().payload == b"restart"
        started.kill()
        assert not is_running(started.pid)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_survives_is_what_the_module_says(tmp_path: Path, kind: Kind, end: str) -> None:
    with broker(tmp_path, kind) as started:
        with peer(started, "speaker") as speaker:
            speaker.publish("kept/retained", b"before", retain=True)
        getattr(started, end)()
        started.start()
        with peer(started, "listener") as listener:
            listener.subscribe("kept/#")
            listener.publish("kept/marker", b"after")
            first = listener.next().payload
    assert first == (b"before" if (kind, end) == ("mosquitto", "stop") else b"after")


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_port_in_use_is_named_and_its_owner_is_not_taken_for_ours(running: Broker, tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(PortInUseError, match=rf"127\.0\.0\.1:{running.port}"), broker(tmp_path, kind, running.port):
        pass
    assert is_running(running.pid)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_port_taken_over_while_the_broker_was_down_is_noticed(tmp_path: Path, kind: Kind) -> None:
    with broker(tmp_path / "ours", kind) as ours:
        ours.kill()
        with broker(tmp_path / "theirs", kind, ours.port) as theirs, pytest.raises(PortInUseError):
            ours.start()
        assert not is_running(ours.pid) and ours.pid != theirs.pid


@pytest.mark.soak
def test_free_port_that_was_taken_meanwhile_is_replaced(
    running: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = iter([running.port, broker_module.find_free_port()])
    monkeypatch.setattr(broker_module, "find_free_port", lambda: next(choices))
    with broker(tmp_path, running.kind) as second:
        assert second.port != running.port


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_broker_that_cannot_start_shows_its_own_words(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(BrokerNotReadyError, match=r"ended with code \d+(.|\n)*[Pp]ort"), broker(tmp_path, kind, 70_000):
        pass


@needs_mosquitto
def test_broken_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mosquitto.db").write_bytes(bytes(4096))
    with pytest.raises(BrokerNotReadyError, match=r"(?i)persisten"), broker(tmp_path, "mosquitto"):
        pass


def test_broker_that_takes_too_long_is_ended_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "READY_WITHIN_S", 0.0)
    children_before = psutil.Process().children()
    with pytest.raises(BrokerNotReadyError, match="accepted no client within 0 s"), broker(tmp_path, "embedded"):
        pass
    assert psutil.Process().children() == children_before


@pytest.mark.soak
def test_without_mosquitto_auto_is_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "mosquitto_program", lambda: None)
    with broker(tmp_path) as started:
        assert started.kind == "embedded"
    with pytest.raises(BrokerMissingError, match="apt install mosquitto"), broker(tmp_path, "mosquitto"):
        pass


@pytest.mark.soak
def test_who_goes_over_the_subscriptions_of_the_embedded_broker_is_not_ended_by_another() -> None:
    subscriptions = Subscriptions(north=[], south=[])
    for topic in subscriptions:
        subscriptions[f"{topic} again"] = []
    for topic, held in subscriptions.items():
        assert held == []
        del subscriptions[topic]
    assert not subscriptions
