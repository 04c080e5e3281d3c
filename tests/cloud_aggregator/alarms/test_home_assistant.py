"""Home Assistant is told what it documents that it reads, through a real broker with the access list that we ship.

The documented keys of an MQTT binary sensor's discovery document stand here as Home Assistant's pages list them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.alarms.handling import DESCRIBED_S
from fedgate.cloud_aggregator.alarms.home_assistant import _escape
from fedgate.cloud_aggregator.events import Connection, Durable, Effect, Publish, RecordDiscovery, Tick
from fedgate.cloud_aggregator.runtime.app import Aggregator
from fedgate.cloud_aggregator.state import State, Stored
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Alarm, Status
from fedgate.config.settings.settings import AggregatorSettings, SettingsError, load
from fedgate.config.settings.settings import Broker as BrokerSettings
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim import broker as broker_module
from fedgate.firmware_sim.broker import Broker, broker, mosquitto_program
from fedgate.models.time_units import NS
from tests.cloud_aggregator.alarms.test_fleet import WATCHING, alarm, status
from tests.cloud_aggregator.alarms.test_service_requests import DEVICE
from tests.cloud_aggregator.test_aggregator_machine import after, heard
from tests.support.sites import SITE, T0_NS, aggregator_settings, start_cloud
from tests.support.syntax import ROOT
from tests.support.waiting import until, until_all_came

MARK = "homeassistant/mark"
ACL = ROOT / "config" / "mosquitto.acl"
TOPIC = re.compile(r"homeassistant/(?:binary_sensor|sensor)/[a-zA-Z0-9_-]+/[a-zA-Z0-9_-]+/config")
# https://www.home-assistant.io/integrations/binary_sensor.mqtt
KEYS = {
    *("availability", "availability_mode", "availability_template", "availability_topic", "default_entity_id"),
    *("device", "device_class", "enabled_by_default", "encoding", "entity_category", "entity_picture", "expire_after"),
    *("force_update", "icon", "json_attributes_template", "json_attributes_topic", "name", "off_delay", "origin"),
    *("payload_available", "payload_not_available", "payload_off", "payload_on", "platform", "qos", "state_topic"),
    *("unique_id", "value_template"),
}
# https://www.home-assistant.io/integrations/sensor.mqtt
SENSOR_KEYS = KEYS - {"off_delay", "payload_off", "payload_on"}
SENSOR_KEYS |= {"last_reset_value_template", "options", "state_class", "suggested_display_precision"}
SENSOR_KEYS |= {"unit_of_measurement"}
OF_A_GATEWAY = ("sanomaly", "mlast-seen", "mscore-over-level", "mversion")  # what each has from the first
DEVICE_KEYS = {
    *("configuration_url", "connections", "hw_version", "identifiers", "manufacturer", "model", "model_id", "name"),
    *("serial_number", "suggested_area", "sw_version", "via_device"),
}
AVAILABILITY_KEYS = {"topic", "payload_available", "payload_not_available", "value_template"}
ON = {"home_assistant": {"enabled": True}}
Retained = dict[str, bytes]


def started(*gateways: str, store: Store | None = None, **tables: Any) -> State:
    known = store.read_statuses() if store else dict.fromkeys(gateways, WATCHING)
    settings = aggregator_settings(**{**ON, **tables})
    stored = Stored(gateways=known, alarms=store.read_alarms()) if store else Stored(gateways=known)
    return start_cloud(settings, stored, T0_NS)


def retained(effects: list[Effect], onto: Retained | None = None) -> Retained:
    """Return what a broker holds for Home Assistant after some effects."""
    held = dict(onto or {})
    for one in effects:
        if isinstance(one, Publish) and not one.topic.startswith("fedgate/"):
            assert one.retain
            held[one.topic] = one.payload
    return {where: payload for where, payload in held.items() if payload}


def checked(held: Retained) -> dict[str, Any]:
    """Return the documents by unique id, after a look at each as Home Assistant would take."""
    documents = {}
    for where, payload in held.items():
        assert TOPIC.fullmatch(where), where
        document = json.loads(payload)
        known = KEYS if "/binary_sensor/" in where else SENSOR_KEYS
        assert document.keys() <= known and {"state_topic", "unique_id", "device", "origin"} <= document.keys()
        assert document["device"].keys() <= DEVICE_KEYS and document["device"]["identifiers"]
        assert all(value for value in document["device"].values())
        assert document["origin"].keys() <= {"name", "sw_version", "support_url"} and document["origin"]["name"]
        for availability in document.get("availability", ()):
            assert availability.keys() <= AVAILABILITY_KEYS
        assert document["unique_id"] not in documents
        documents[document["unique_id"]] = document
    return documents


def of_all() -> str:
    """Return the unique id of the fleet alarm."""
    return f"fedgate_s{SITE}_sall_sfleet"


def of_gateway(name: str) -> set[str]:
    """Return the unique ids of what each gateway has from the first."""
    return {f"fedgate_s{SITE}_s{name}_{what}" for what in OF_A_GATEWAY}


def rendered(template: str, payload: bytes) -> str:
    """Return what the two templates that we use make of a message; Home Assistant renders them with Jinja."""
    state: str = json.loads(payload)["state"]
    if template == "{{ value_json.state }}":
        return state
    assert template == "{{ 'ON' if value_json.state == 'raised' else 'OFF' }}"
    return "ON" if state == "raised" else "OFF"


def test_each_gateway_its_sensors_and_the_fleet_are_told() -> None:
    state, effects = after(started("a", "b"), Connection(True))
    held = retained(effects)
    assert set(checked(held)) == {of_all(), *of_gateway("a"), *of_gateway("b")}
    state, effects = after(state, alarm("a", kind="sensor", cause="silent-deck"))
    assert set(checked(retained(effects))) == {f"fedgate_s{SITE}_sa_ssilent-deck"}
    assert retained(after(state, alarm("a", "cleared", kind="sensor", cause="silent-deck"))[1]) == {}
    state, effects = after(state, status("c", device=DEVICE, version="0.4.0"))
    documents = checked(retained(effects))
    assert set(documents) == of_gateway("c")
    (device,) = {json.dumps(document["device"]) for document in documents.values()}
    assert json.loads(device) == {
        "identifiers": [f"fedgate_s{SITE}_sc"],
        "name": f"{SITE} c",
        "manufacturer": "Acme",
        "model": "T-1",
        "serial_number": "4711",
        "suggested_area": "Room 12",
        "sw_version": "0.4.0",
        "via_device": f"fedgate_s{SITE}_sall",
    }
    assert retained(after(state, status("c", device=DEVICE, version="0.4.0", windows=9))[1]) == {}
    changed = DEVICE.model_copy(update={"location": "Room 13"})
    # Each of its alarms is told anew with it, so that is done once a minute, however often it is changed.
    for location in ("Room 12", "Room 12a"):
        state, effects = after(state, status("c", device=DEVICE.model_copy(update={"location": location})))
        assert retained(effects) == {}
    state, effects = after(state, status("c", device=changed), Tick())
    assert retained(effects) == {}
    state, effects = after(state, Tick(), at_s=DESCRIBED_S)
    assert {one["device"]["suggested_area"] for one in checked(retained(effects)).values()} == {"Room 13"}
    assert retained(after(state, Tick())[1]) == {}
    assert len(retained(after(state, Connection(True))[1])) == 3 * len(OF_A_GATEWAY) + 2


def test_states_and_availability_are_read_from_the_messages_that_are_there() -> None:
    state, effects = after(started("a", "b", "c"), Connection(True))
    documents = checked(retained(effects))
    anomaly, fleet = documents[f"fedgate_s{SITE}_sa_sanomaly"], documents[f"fedgate_s{SITE}_sall_sfleet"]
    message = alarm("a")
    assert message.topic.rpartition("/")[0] + "/anomaly" == anomaly["state_topic"] == anomaly["json_attributes_topic"]
    for payload, value in ((message.payload, "payload_on"), (alarm("a", "cleared").payload, "payload_off")):
        assert rendered(anomaly["value_template"], payload) == anomaly[value]
    (availability,) = anomaly["availability"]
    assert availability["topic"] == f"fedgate/v1/{SITE}/a/status/agent"
    for word, value in (("online", "payload_available"), ("offline", "payload_not_available")):
        payload = Status.model_validate({"state": word}).to_bytes()
        assert rendered(availability["value_template"], payload) == availability[value]
    state, effects = after(state, *[alarm(gateway) for gateway in "abc"], Tick())
    (told,) = [one for one in effects if isinstance(one, Publish) and one.topic == fleet["state_topic"]]
    assert rendered(fleet["value_template"], told.payload) == "ON" and told.retain
    assert fleet["availability"][0]["topic"] == f"fedgate/v1/{SITE}/all/status/cloud"
    without = checked(retained(after(started("a", fleet={"enabled": False}), Connection(True))[1]))
    assert set(without) == of_gateway("a")


def shown(document: Any, payload: bytes, before: str = "unknown") -> str:
    """Return what Home Assistant makes of a message, by Jinja and the filter of its own that we use."""
    environment = jinja2.Environment()  # noqa: S701 - as Home Assistant has it, and nothing of it is shown as HTML
    environment.filters["as_datetime"] = lambda unix_s: datetime.fromtimestamp(unix_s, UTC)
    template = environment.from_string(document["value_template"])
    return template.render(value_json=json.loads(payload), this={"state": before})


def test_score_last_seen_and_version_are_read_from_the_statuses_that_are_there() -> None:
    documents = checked(retained(after(started("a"), Connection(True))[1]))
    score, seen, version = (
        documents[f"fedgate_s{SITE}_sa_m{what}"] for what in ("score-over-level", "last-seen", "version")
    )
    assert {one["state_topic"] for one in (score, seen, version)} == {f"fedgate/v1/{SITE}/a/status/agent"}
    said = WATCHING.model_copy(
        update={"score_over_level": 0.25, "version": "0.6.0", "t_ns": T0_NS, "clock": "synchronised"}
    )
    payload, will = said.to_bytes(), Status(state="offline").to_bytes()
    assert [shown(one, payload) for one in (score, version)] == ["0.25", "0.6.0"]
    assert datetime.fromisoformat(shown(seen, payload)).timestamp() == T0_NS / NS
    unknown = said.model_copy(update={"score_over_level": None}).to_bytes()
    assert shown(score, unknown) == "None"  # by which Home Assistant means that it is unknown
    # Of a gateway that is away the time stays, and nothing else is available.
    assert shown(seen, will, "2027-01-15T08:00:00+00:00") == "2027-01-15T08:00:00+00:00"
    assert shown(seen, will) == "None" and "availability" not in seen
    wrong = said.model_copy(update={"clock": "unsynchronised"}).to_bytes()
    assert shown(seen, wrong, "2027-01-15T08:00:00+00:00") == "2027-01-15T08:00:00+00:00"
    for one in (score, version):
        assert one["availability"][0]["topic"] == f"fedgate/v1/{SITE}/a/status/agent"


def test_a_status_is_no_reason_to_publish_for_home_assistant() -> None:
    """Goal: what changes with each status is read from it, and costs the broker no message more."""
    state, _ = after(started("a"), Connection(True), status("a", version="0.6.0"))
    for number in range(50):
        state, effects = after(state, status("a", version="0.6.0", windows=number, score_over_level=number / 50))
        assert retained(effects) == {}


@given(st.lists(st.text("ab_.-s", min_size=1, max_size=5), min_size=2, max_size=2, unique=True))
def test_names_that_differ_stay_different_in_the_letters_that_discovery_allows(names: list[str]) -> None:
    plain = [_escape(name) for name in names]
    assert plain[0] != plain[1] and all(re.fullmatch(r"[a-zA-Z0-9_-]+", one) for one in plain)
    assert not any(re.search(r"(?<!_)(__)*_[sm]", one) for one in plain)  # which part site, gateway and object


def test_what_is_told_no_more_is_taken_back_at_every_connect(tmp_path: Path) -> None:
    store = Store(tmp_path / "aggregator.db")
    state, effects = after(started("a"), heard("a", "status", WATCHING.to_bytes()), Connection(True))
    state, more = after(state, alarm("a", kind="sensor", cause="silent-deck"), status("b"))
    store.commit([one for one in (*effects, *more) if isinstance(one, Durable)])
    held = retained([*effects, *more])
    stored = [one.topic for one in (*effects, *more) if isinstance(one, RecordDiscovery)]
    count = 2 * len(OF_A_GATEWAY) + 2  # of two gateways, a fault of one, and the fleet
    assert sorted(stored) == sorted(held) and len(set(stored)) == len(stored) == count
    for prefix in ("ha/discovery", "homeassistant"):
        renamed = started(store=store, home_assistant={"enabled": True, "prefix": prefix})
        effects = after(renamed, Connection(True))[1]
        store.commit([one for one in effects if isinstance(one, Durable)])
        assert (
            len([one for one in effects if isinstance(one, Publish) and "/config" in one.topic]) == 2 * count
        )  # told here, taken back there
        assert len(retained(effects, held)) == count
    for _ in range(2):
        off, effects = after(started(store=store, home_assistant={"enabled": False}), Connection(True))
        assert retained(effects, held) == {}
    assert retained(after(off, status("new"), alarm("new"))[1]) == {}
    store.close()
    never = after(started("a", home_assistant={"enabled": False}), Connection(True))[1]
    assert not any(isinstance(one, Publish) and "homeassistant" in one.topic for one in never)


def test_it_is_stored_before_it_is_told() -> None:
    effects = after(started("a"), Connection(True))[1]
    kinds = [isinstance(one, RecordDiscovery) for one in effects if "sensor/" in str(getattr(one, "topic", ""))]
    assert kinds == [True] * 5 + [False] * 5


@pytest.mark.parametrize("prefix", ["", "/ha", "ha/", "h#", "h+/a", "a//b", "a b"])
def test_a_prefix_that_is_no_topic_is_named_on_its_line(tmp_path: Path, prefix: str) -> None:
    assert cloud_aggregator(["init", str(tmp_path), "--loopback"]) == 0
    path = tmp_path / "aggregator.toml"
    text = path.read_text().replace('prefix = "homeassistant"', f'prefix = "{prefix}"')
    path.write_text(text)
    line = text[: text.index("prefix =")].count("\n") + 1
    with pytest.raises(SettingsError, match=rf"{path}:{line}: home_assistant\.prefix: String should match"):
        load(path, AggregatorSettings)


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A Mosquitto that keeps the access list as we ship it."""
    if mosquitto_program() is None:
        pytest.skip("Mosquitto is not installed (Debian: apt-get install mosquitto)")
    written = broker_module._mosquitto_configuration
    # Debian's Mosquitto wants the list to be nobody else's.
    acl = tmp_path / "mosquitto.acl"
    acl.write_bytes(ACL.read_bytes())
    acl.chmod(0o600)
    monkeypatch.setattr(broker_module, "_mosquitto_configuration", lambda *where: f"{written(*where)}acl_file {acl}\n")
    with broker(tmp_path / "broker", "mosquitto") as server:
        yield server


@contextmanager
def client(server: Broker, user: str, *topics: str) -> Iterator[tuple[Link, Retained]]:
    """Connect as a user who is there to hear what is retained."""
    held: Retained = {}
    connected = threading.Event()
    link = Link(
        BrokerSettings(host=server.host, port=server.port, user=user),
        user,
        topics,
        held.__setitem__,
        lambda up: connected.set() if up else None,
    )
    link.start()
    until(connected.is_set)
    try:
        yield link, held
    finally:
        link.stop()


@contextmanager
def serving(folder: Path, server: Broker, enabled: bool) -> Iterator[Aggregator]:
    path = folder / "aggregator.toml"
    settings = load(path, AggregatorSettings)
    here = settings.broker.model_copy(update={"port": server.port})
    home = settings.home_assistant.model_copy(update={"enabled": enabled})
    aggregator = Aggregator(settings.model_copy(update={"broker": here, "home_assistant": home}))
    thread = threading.Thread(target=aggregator.run)
    thread.start()
    try:
        yield aggregator
    finally:
        aggregator.stop()
        until(lambda: not thread.is_alive())


@pytest.mark.slow
def test_through_a_real_broker_with_our_access_list(guarded: Broker, tmp_path: Path) -> None:
    assert cloud_aggregator(["init", str(tmp_path / "site"), "--loopback"]) == 0
    raised = Alarm.from_bytes(alarm("a").payload)
    with client(guarded, "a") as (gateway, _):
        assert gateway.publish(f"fedgate/v1/{SITE}/a/status/agent", WATCHING.to_bytes(), retain=True)
        assert gateway.publish(f"fedgate/v1/{SITE}/a/alarm/anomaly", raised.to_bytes(), retain=True)
        # What a gateway may not say: another's alarm, what the aggregator says, what Home Assistant reads.
        for where in ("b/alarm/anomaly", "all/alarm/fleet", "a/service-request/anomaly", "all/round/open"):
            assert gateway.publish(f"fedgate/v1/{SITE}/{where}", b"forged", retain=True)
        assert gateway.publish("homeassistant/binary_sensor/x/y/config", b"forged", retain=True)
        until(lambda: gateway.drain(0.1))
    building = f"fedgate/v1/{SITE}/a/service-request/anomaly"
    with (
        serving(tmp_path / "site", guarded, True),
        client(guarded, "home-assistant", "homeassistant/#", f"fedgate/v1/{SITE}/+/alarm/+") as (_, held),
        client(guarded, "building", "fedgate/v1/+/+/service-request/+", f"fedgate/v1/{SITE}/a/status/+") as (_, mended),
    ):
        until(lambda: len(held) == 2 + len(OF_A_GATEWAY) and mended)
        states = {where: held.pop(where) for where in list(held) if where.startswith("fedgate/")}
        assert set(checked(held)) == {of_all(), *of_gateway("a")}
        assert states == {f"fedgate/v1/{SITE}/a/alarm/anomaly": raised.to_bytes()}
        assert mended.keys() == {building}
    with serving(tmp_path / "site", guarded, False):
        until(lambda: not late(guarded))


def late(server: Broker) -> Retained:
    """Return what a Home Assistant that starts now is told."""
    with client(server, "home-assistant", "homeassistant/#") as (link, held):
        until_all_came(link, MARK, lambda: MARK in held)
        del held[MARK]
        return {**held}


def test_a_state_without_discovery_is_left_as_it_is() -> None:
    state = started("a", home_assistant={"enabled": False})
    state, _ = after(state, Connection(True), status("b"), alarm("a"))
    assert state.alarms == replace(state.alarms, discovered=frozenset())
