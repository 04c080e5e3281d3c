"""The doctors at real brokers, each with one thing wrong: it is found, the rest is well, and nothing stays behind.

Goal: a claim such as "122880 bytes pass" is only worth something where the doctor also says so when they do not.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.config.doctor import broker as doctor_broker
from fedgate.config.doctor import network
from fedgate.config.doctor.broker import QUEUED, Trial, try_aggregator, try_gateway
from fedgate.config.doctor.report import Finding
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.settings import AggregatorSettings, Broker, load
from fedgate.config.transport.probe import Probe
from fedgate.config.transport.protocol_version import MQTT_3, MQTT_5
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import HOST, mosquitto_program
from fedgate.firmware_sim.broker import broker as embedded
from tests.support.site_folders import listens
from tests.support.sites import SITE, topic
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(mosquitto_program() is None, reason="Mosquitto is not installed"),
]
ME, LARGEST = "north", 122_880
ANYBODY = ("allow_anonymous true", "max_queued_messages 100000")
ACL = ROOT / "config" / "mosquitto.acl"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def mosquitto(folder: Path, *lines: str) -> Iterator[Broker]:
    """Run a broker with these lines in its configuration."""
    port, file = free_port(), folder / "broker.conf"
    owner = ["user root"] if os.geteuid() == 0 else []
    file.write_text("\n".join([f"listener {port} {HOST}", *owner, *lines]) + "\n")
    with started(file, port):
        yield Broker(host=HOST, port=port)


@contextmanager
def started(file: Path, port: int) -> Iterator[None]:
    process = children.start([str(mosquitto_program()), "-c", file], stderr=subprocess.DEVNULL)
    try:
        until(lambda: listens(port), file.read_text)
        yield
    finally:
        process.terminate()
        children.wait_for_end(process, PATIENCE_S)


def examined(trial: Trial) -> dict[str, Finding]:
    return {one.name: one for one in doctor_broker.examine(trial, time.monotonic() + 20.0)}


def wrong(found: dict[str, Finding]) -> dict[str, str]:
    return {name: one.level for name, one in found.items() if one.level != "ok"}


def retained(broker: Broker, user: str) -> list[str]:
    with Probe(broker, user, "looker") as looker:
        looker.subscribe("fedgate/#")
        looker.listen(0.3)
        return [message.topic for message in looker.messages]


@pytest.mark.soak
def test_a_good_broker_is_well_for_both_and_nothing_stays_behind(tmp_path: Path) -> None:
    with mosquitto(tmp_path, *ANYBODY) as broker:
        for trial in (try_gateway(broker, SITE, ME, LARGEST), try_aggregator(broker, f"cloud.{SITE}", SITE, LARGEST)):
            found = examined(trial)
            assert not wrong(found) and f"{LARGEST} bytes pass" in found["broker message size"].text
            assert found["broker protocol"].text == "MQTT 5"
        assert not retained(broker, ME)


def test_the_service_of_that_name_goes_on_undisturbed(tmp_path: Path) -> None:
    with mosquitto(tmp_path, *ANYBODY) as broker, Probe(broker, ME, ME, keeps_session=True) as agent:
        for channel in ("receipt", "chunk", "resend", "sample", "manifest"):
            agent.subscribe(topic(ME, channel, "x").removesuffix("x") + "+")
        examined(try_gateway(broker, SITE, ME, LARGEST))

        def heard() -> bool:
            agent.listen(0.2)
            return bool(agent.messages)

        until(heard)
        assert {message.topic: message.payload for message in agent.messages} == {topic(ME, "receipt", "doctor"): b""}
        assert agent.publish(topic(ME, "status", "agent"), b"still here") == ""


@pytest.mark.parametrize("how", ["message_size_limit 1000", "message_size_limit 50000", "max_packet_size 50000"])
def test_the_largest_message_that_passes_is_found(tmp_path: Path, how: str) -> None:
    limit = int(how.split()[1])
    with mosquitto(tmp_path, *ANYBODY, how) as broker:
        found = examined(try_gateway(broker, SITE, ME, LARGEST))
    assert wrong(found) == {"broker message size": "failure"}
    assert ("packets of up to 50000 bytes" in found["broker protocol"].text) == ("packet" in how)
    passes = int(found["broker message size"].text.split()[0])
    assert 0.9 * limit - 100 < passes <= limit
    assert ("at least 1024 must" in found["broker message size"].advice) == (limit < 1024)


@pytest.mark.soak
def test_a_broker_without_mqtt_5_is_well_and_said_to_hide_things(tmp_path: Path) -> None:
    with embedded(tmp_path, "embedded") as running:
        found = examined(try_gateway(Broker(host=HOST, port=running.port), SITE, ME, LARGEST))
    assert found["broker protocol"].text.startswith("MQTT 3.1.1 only") and found["broker protocol"].level == "ok"
    assert found["broker may say"].level == "ok" and found["broker login"].text.endswith("which speaks MQTT 3.1.1")


@pytest.mark.soak
@pytest.mark.parametrize("speaks_5", [True, False])
def test_all_is_tried_by_the_version_that_the_services_would_speak(
    tmp_path: Path, speaks_5: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[MQTTProtocolVersion] = []

    class Listening(Probe):
        def __init__(self, *args: Any, protocol: MQTTProtocolVersion, **more: Any) -> None:
            asked.append(protocol)
            super().__init__(*args, protocol=protocol, **more)

    monkeypatch.setattr(doctor_broker, "Probe", Listening)
    with mosquitto(tmp_path, *ANYBODY) if speaks_5 else embedded(tmp_path, "embedded") as running:
        found = examined(try_gateway(Broker(host=HOST, port=running.port), SITE, ME, LARGEST))
    first, *others = asked
    assert first == MQTT_5 and set(others) == {MQTT_5 if speaks_5 else MQTT_3}
    assert ("which speaks MQTT 5" in found["broker login"].text) == speaks_5


def test_what_cannot_be_seen_is_said_and_not_claimed(tmp_path: Path) -> None:
    with mosquitto(tmp_path, *ANYBODY, "persistence false") as broker:
        found = examined(try_gateway(broker, SITE, ME, LARGEST))
    assert not wrong(found) and "a restart of the broker is not tried" in found["broker session"].text


def test_a_short_queue_and_a_broker_that_retains_nothing(tmp_path: Path) -> None:
    lines = ("allow_anonymous true", "max_queued_messages 50", "max_inflight_messages 20", "retain_available false")
    with mosquitto(tmp_path, *lines) as broker:
        found = examined(try_gateway(broker, SITE, ME, LARGEST))
    assert wrong(found) == {"broker session": "warning", "broker retained": "failure"}
    assert f"of {QUEUED} messages to an absent client" in found["broker session"].text


def test_a_wrong_password_is_named_as_such(tmp_path: Path) -> None:
    salt = bytes(12)
    key = hashlib.pbkdf2_hmac("sha512", b"right", salt, 101)
    line = f"{ME}:$7$101${base64.b64encode(salt).decode()}${base64.b64encode(key).decode()}\n"
    (tmp_path / "passwords").write_text(line)
    (tmp_path / "right").write_text("right\n")
    (tmp_path / "wrong").write_text("wrong\n")
    with mosquitto(tmp_path, "allow_anonymous false", f"password_file {tmp_path / 'passwords'}") as broker:
        for name, told in (("right", {"broker session": "warning"}), ("wrong", {"broker login": "failure"})):
            known = broker.model_copy(update={"password_file": tmp_path / name})
            found = examined(try_gateway(known, SITE, ME, LARGEST))
            assert wrong(found) | {"broker session": "warning"} == told | {"broker session": "warning"}
    assert "refuses user north" in found["broker login"].text


@pytest.mark.soak
def test_the_access_list_of_the_templates_lets_through_what_it_must_and_no_more(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text(ACL.read_text())
    with mosquitto(tmp_path, *ANYBODY, f"acl_file {acl}") as broker:
        with Probe(broker, "other", "other") as other:
            other.publish(topic("other", "status", "agent"), Status(state="online").to_bytes(), retain=True)
        for trial in (try_gateway(broker, SITE, ME, LARGEST), try_aggregator(broker, f"cloud.{SITE}", SITE, LARGEST)):
            found = examined(trial)
            assert not wrong(found), wrong(found)
        assert (
            "is refused what is another's"
            in examined(try_gateway(broker, SITE, ME, LARGEST))["broker others' topics"].text
        )


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["pattern write fedgate/v1/+/%u/#"], {"broker echo": "failure"}),
        (["pattern readwrite fedgate/v1/+/%u/doctor/+"], {"broker may say": "failure"}),
        (["pattern readwrite fedgate/v1/#", "pattern read %u"], {"broker others' topics": "warning"}),
    ],
)
def test_an_access_list_that_lets_through_too_little_or_too_much(
    tmp_path: Path, lines: list[str], told: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_broker, "is_loopback", lambda _host: False)  # where no list at all would be well
    acl = tmp_path / "acl"
    acl.write_text("\n".join(lines) + "\n")
    acl.chmod(0o600)
    with mosquitto(tmp_path, *ANYBODY, f"acl_file {acl}") as broker:
        with Probe(broker, "other", "other") as other:
            other.publish(topic("other", "status", "agent"), b"{}", retain=True)
        assert wrong(examined(try_gateway(broker, SITE, ME, LARGEST))) == told


@pytest.mark.soak
def test_with_the_certificates_of_a_site(tmp_path: Path) -> None:
    site, port = tmp_path / "site", free_port()
    assert cloud_aggregator(["init", str(site), "--port", str(port), "--host", "localhost"]) == 0
    cloud = load(site / "aggregator.toml", AggregatorSettings).broker
    user = f"cloud.{SITE}"
    with started(site / "mosquitto.conf", port):
        found, is_there = network.reach(cloud)
        assert is_there and not wrong({one.name: one for one in found}), found
        assert "TLSv1." in found[-1].text
        assert not wrong({one.name: one for one in network.check_certificates(cloud, user, "renew")})
        assert not wrong(examined(try_aggregator(cloud, user, SITE, LARGEST)))
        names = {one.name: one.level for one in network.check_certificates(cloud, ME, "enrol")}
        assert names["certificate name"] == "failure"
        nameless = replace(try_aggregator(cloud, user, SITE, LARGEST))
        bare = cloud.model_copy(update={"certificate_file": None, "key_file": None})
        assert wrong(examined(replace(nameless, broker=bare))) == {"broker login": "failure"}
    other = tmp_path / "other"
    assert cloud_aggregator(["init", str(other), "--port", str(port), "--host", "localhost"]) == 0
    with started(other / "mosquitto.conf", port):
        found, is_there = network.reach(cloud)
        assert not is_there and "certificate is refused" in found[-1].text and "ca.pem" in found[-1].advice
