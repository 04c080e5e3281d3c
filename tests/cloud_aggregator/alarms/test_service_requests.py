"""Service requests: device, what, since when; retained as each cause is now, never told before they are stored."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.alarms.register import KEPT
from fedgate.cloud_aggregator.events import Connection, Durable, Effect, Publish, RecordAlarm, Tick
from fedgate.cloud_aggregator.state import State, Stored
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Device, ServiceRequest, Status
from fedgate.config.settings.settings import GatewaySettings, SettingsError, load
from fedgate.gateway_agent.status import status as gateway_status
from fedgate.models.time_units import NS
from tests.cloud_aggregator.alarms.test_fleet import ALL, WATCHING, alarm, site, status
from tests.cloud_aggregator.test_aggregator_machine import after, heard, published
from tests.support.sites import (
    SITE,
    T0_NS,
    WINDOWS,
    Shelf,
    Site,
    agent,
    aggregator_settings,
    gateway_settings,
    samples,
    start_cloud,
)
from tests.support.syntax import ROOT

DEVICE = Device(manufacturer="Acme", model="T-1", serial="4711", location="Room 12", category="thermostats")
TABLE = {**DEVICE.model_dump()}


def told(effects: list[Effect]) -> list[ServiceRequest]:
    return [ServiceRequest.from_bytes(one.payload) for one in published(effects, "service-request")]


def retained(effects: list[Effect], onto: dict[str, ServiceRequest] | None = None) -> dict[str, ServiceRequest]:
    """Return what a broker would hand to a late listener."""
    kept = dict(onto or {})
    for one in published(effects, "service-request"):
        if one.retain:
            kept[one.topic] = ServiceRequest.from_bytes(one.payload)
    return kept


def test_an_alarm_becomes_a_message_with_its_device_since_and_until() -> None:
    state, _ = after(site(), status("a", device=DEVICE))
    state, effects = after(state, alarm("a", severity="major", text="score 3 is above 1"))
    (raised,) = told(effects)
    where = f"fedgate/v1/{SITE}/a/service-request/anomaly"
    assert [(one.topic, one.retain) for one in published(effects, "service-request")] == [(where, True)]
    assert raised == ServiceRequest(
        **TABLE,
        id=f"a.anomaly.{T0_NS}",
        state="raised",
        site=SITE,
        device="a",
        what="anomaly",
        kind="anomaly",
        severity="major",
        text="score 3 is above 1",
        since="2027-01-15T08:00:00+00:00",
        clock="synchronised",
    )
    (cleared,) = told(after(state, alarm("a", "cleared", t_ns=T0_NS + 3_600 * NS))[1])
    assert (cleared.state, cleared.until, cleared.since) == ("cleared", "2027-01-15T09:00:00+00:00", raised.since)


def test_it_is_told_in_the_step_that_stores_it_and_a_repeat_tells_nothing() -> None:
    state, effects = after(site(), alarm("a"))
    kinds = [isinstance(one, Durable) for one in effects if isinstance(one, RecordAlarm | Publish)]
    assert kinds == sorted(kinds, reverse=True) and kinds[0]
    state, effects = after(state, alarm("a"))
    assert told(effects) == [] and len(published(effects, "receipt")) == 1


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_what_is_retained_is_how_a_cause_is_now_in_whatever_order_it_was_heard(order: tuple[int, ...]) -> None:
    messages = [alarm("a"), alarm("a", "cleared"), alarm("a", onset_s=50), alarm("a", kind="sensor", cause="silent-x")]
    state, kept = site(), dict[str, ServiceRequest]()
    for index in order:
        state, effects = after(state, messages[index])
        kept = retained(effects, kept)
    anomaly, silent = (
        kept[f"fedgate/v1/{SITE}/a/service-request/anomaly"],
        kept[f"fedgate/v1/{SITE}/a/service-request/silent-x"],
    )
    assert (anomaly.id, anomaly.state) == (f"a.anomaly.{T0_NS + 50 * NS}", "raised")
    assert (silent.state, silent.kind) == ("raised", "sensor")
    assert retained(after(state, Connection(True))[1]) == kept


def test_the_late_end_of_an_earlier_alarm_is_told_but_does_not_hide_the_one_that_stands() -> None:
    state, _ = after(site(), alarm("a"), alarm("a", onset_s=50))
    effects = after(state, alarm("a", "cleared"))[1]
    assert [(one.state, one.id) for one in told(effects)] == [("cleared", f"a.anomaly.{T0_NS}")]
    assert not retained(effects)


def test_a_raising_that_comes_after_its_clearing_does_not_raise_again() -> None:
    state, effects = after(site(), alarm("a", "cleared"), alarm("a"))
    assert {one.state for one in retained(effects).values()} == {"cleared"}
    assert {one.state for one in retained(after(state, Connection(True))[1]).values()} == {"cleared"}


def test_a_device_that_is_told_later_or_changed_is_told_again() -> None:
    state, effects = after(site(), alarm("a"))
    assert told(effects)[0].manufacturer == "" and told(effects)[0].category == "other"
    state, effects = after(state, status("a", device=DEVICE))
    assert [one.serial for one in told(effects)] == ["4711"]
    assert told(after(state, status("a", device=DEVICE))[1]) == []
    state, effects = after(state, heard("a", "status", Status(state="offline").to_bytes()))
    assert told(effects) == []
    assert told(after(state, alarm("a", "cleared"))[1])[0].serial == "4711"  # a last will knows nothing of devices


def test_the_fleet_alarm_is_told_of_the_whole_site() -> None:
    effects = after(site(), *[alarm(gateway) for gateway in ALL], Tick())[1]
    (fleet,) = [one for one in told(effects) if one.what == "fleet"]
    assert (fleet.device, fleet.state, fleet.manufacturer) == ("all", "raised", "")


def test_after_a_reconnect_and_a_restart_everything_that_stands_is_told_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "aggregator.db")
    state = site()
    for number in range(3 * KEPT):
        for change in ("raised", "cleared"):
            state, effects = after(state, alarm("a", change, number))
            store.commit([one for one in effects if isinstance(one, Durable)])
    state, effects = after(state, status("a", device=DEVICE), alarm("b"), alarm("b", kind="sensor", cause="silent-x"))
    store.commit([one for one in effects if isinstance(one, Durable)])
    expected = retained(after(state, Connection(False), Connection(True))[1])
    assert [(one.device, one.what, one.state) for one in expected.values()] == [
        ("a", "anomaly", "cleared"),
        ("b", "anomaly", "raised"),
        ("b", "silent-x", "raised"),
    ]
    stored = Stored(gateways={**dict.fromkeys(ALL, WATCHING), **store.read_statuses()}, alarms=store.read_alarms())
    again = start_cloud(aggregator_settings(), stored, T0_NS)
    store.close()
    assert retained(after(again, Connection(True))[1]) == expected
    assert told(after(again, alarm("a", "cleared", 3 * KEPT - 1))[1]) == []  # the broker's retained one is no news


def test_a_gateway_tells_its_device_in_its_status() -> None:
    settings = gateway_settings(gateway={"id": "north", "site": SITE, "device": TABLE})
    assert gateway_status(agent(settings, Shelf())).device == DEVICE
    assert gateway_status(agent(gateway_settings(), Shelf())).device is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            'category = "lifts"',
            "gateway.device.category: expected 'lights', 'thermostats', 'occupancy', 'water-leakage'",
        ),
        ('colour = "red"', "gateway.device.colour: is not a known key, got 'red'"),
        ("serial = 4711", "gateway.device.serial: expected a valid string, got 4711"),
        (f'model = "{"x" * 121}"', "gateway.device.model: String should have at most 120 characters"),
    ],
)
def test_a_mistake_about_the_device_is_named_on_its_line(tmp_path: Path, line: str, words: str) -> None:
    shipped = (ROOT / "config" / "gateway.toml").read_text()
    (tmp_path / "gateway.toml").write_text(f"{shipped}\n[gateway.device]\n{line}\n")
    with pytest.raises(SettingsError) as caught:
        load(tmp_path / "gateway.toml", GatewaySettings)
    assert f"{shipped.count(chr(10)) + 3}: {words}" in str(caught.value)


@pytest.mark.soak
def test_an_alarm_of_a_real_gateway_reaches_the_building_through_both_machines() -> None:
    names = ("east", "north", "west")
    tables: dict[str, Any] = {
        name: {"gateway": {"id": name, "site": SITE, "device": {**TABLE, "serial": name}}} for name in names
    }
    made = Site(
        aggregator_settings(rounds={"quorum": 3}),
        [gateway_settings(name, **tables[name]) for name in names],
    )
    heard_by_building: dict[str, dict[str, Any]] = {}
    made.connect_all()
    made.commission()
    made.run(made.in_force)
    for name in names:
        made.feed(name, samples(7, 10, shift=60.0), float(WINDOWS))
    made.run(lambda: "fedgate/v1/bridge/all/alarm/fleet" in made.retained and made.settled())
    for where, payload in made.retained.items():
        if "/service-request/" in where:
            heard_by_building[where] = json.loads(payload)
    assert {where.split("/")[3]: one["serial"] for where, one in heard_by_building.items()} == {
        **{name: name for name in names},
        "all": "",
    }
    assert all(one["what"] in ("anomaly", "fleet") and one["state"] == "raised" for one in heard_by_building.values())


@pytest.mark.soak
def test_the_store_holds_the_state_of_every_alarm_that_stands(tmp_path: Path) -> None:
    """However many are over: the ones that stand are never among those that a restart forgets."""
    store, state = Store(tmp_path / "aggregator.db"), site()
    events = [alarm("a", onset_s=30), *[alarm("a", change, n) for n in range(30) for change in ("raised", "cleared")]]
    for event in events:
        state, effects = after(state, event)
        store.commit([one for one in effects if isinstance(one, Durable)])
    restored: State = site(alarms=store.read_alarms())
    store.close()
    standing = [known.alarm.id for known in restored.alarms.book["a"].values() if known.active]
    assert standing == [f"a.anomaly.{T0_NS + 30 * NS}"]  # the first of all that came
