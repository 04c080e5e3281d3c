"""Goal: another system's action is carried out once, in the name that the broker vouches for, and answered after it is
stored; nobody else's is.

Method: the service with its store, which is opened anew in between; and through a real broker with the access list
that we ship.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.alarms import actions, remote_actions
from fedgate.cloud_aggregator.events import Connection, Outward, Publish, Received, Tick
from fedgate.cloud_aggregator.runtime.service import ORDERS_AT_ONCE, Service
from fedgate.cloud_aggregator.storage import store as store_module
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import ActionAnswer, AlarmAction, AlarmState
from fedgate.config.settings.settings import AggregatorSettings, SettingsError, load
from fedgate.firmware_sim.broker import Broker
from fedgate.models.time_units import NS
from tests.cloud_aggregator.alarms.test_fleet import WATCHING, alarm, status
from tests.cloud_aggregator.alarms.test_home_assistant import client, guarded, serving
from tests.support.sites import KEY, SITE, T0_NS, aggregator_settings
from tests.support.waiting import until

__all__ = ["guarded"]
ALARM = f"a/a.anomaly.{T0_NS}"
ACKNOWLEDGE = {"request": "1", "action": "acknowledge", "alarms": [ALARM]}


class Place:
    """A service over a store, that can be started anew."""

    def __init__(self, path: Path) -> None:
        self.path, self.now_ns, self.lines = path, T0_NS, list[str]()
        self.begin()

    def begin(self) -> None:
        settings = aggregator_settings(alarms={"actions_from": ["building", "scada"]})
        store = Store(self.path)
        self.service = Service(settings, store, KEY, uptime_ns=self.now_ns, anchor_ns=0, beginning="first")
        self.step(Connection(True))

    def restart(self) -> None:
        self.service.close()
        self.begin()

    def step(self, *events: Any) -> list[Outward]:
        self.now_ns += NS
        effects = self.service.step_all(self.now_ns, events)
        self.lines += [one.text for one in effects if hasattr(one, "text")]
        return effects

    def act(self, *bodies: Any, user: str = "building", is_retained: bool = False) -> list[ActionAnswer]:
        """Send actions of one user and return what was answered, to whom it belongs, after the next tick."""
        where = f"fedgate/v1/{SITE}/cloud/action/{user}"
        sent = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in bodies]
        effects = self.step(*[Received(where, one, is_retained) for one in sent])
        return self.answers([*effects, *self.tick()], user)

    def tick(self) -> list[Outward]:
        effects = list[Outward]()
        for order in self.service.read_orders():
            effects += self.step(order)
        return [*effects, *self.step(Tick())]

    @staticmethod
    def answers(effects: list[Outward], user: str = "building") -> list[ActionAnswer]:
        found = [one for one in effects if isinstance(one, Publish) and "/cloud/answer/" in one.topic]
        assert all(one.topic == f"fedgate/v1/{SITE}/cloud/answer/{user}" and not one.retain for one in found)
        return [ActionAnswer.from_bytes(one.payload) for one in found]

    def events(self) -> list[tuple[str, str]]:
        return [(one.who, one.kind) for one in self.service.store.read_alarm_events()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "aggregator.db")
    made.step(status("a"), alarm("a"))
    yield made
    made.service.close()


def test_an_action_is_carried_out_once_however_often_it_comes(place: Place) -> None:
    (first,) = place.act(ACKNOWLEDGE, ACKNOWLEDGE)
    assert first == ActionAnswer(request="1", answer=f"{ALARM}: acknowledged")
    assert place.act(ACKNOWLEDGE) == [first]
    place.restart()
    assert place.act(ACKNOWLEDGE | {"alarms": ["a/other"]}) == [first]  # the same number is the same request
    assert place.events() == [("building", "acknowledge")]
    (again,) = place.act(ACKNOWLEDGE | {"request": "2"})
    assert "was acknowledged by building already" in again.answer and len(place.events()) == 1
    (other,) = place.act(ACKNOWLEDGE | {"action": "note", "text": "seen"}, user="scada")  # whose number it is too
    assert other.answer == f"{ALARM}: noted" and place.events()[-1] == ("scada", "note")


def test_what_was_taken_in_before_a_power_cut_is_carried_out_after_it(place: Place) -> None:
    note = {"request": "n", "action": "note", "alarms": [ALARM], "text": "once"}
    where = f"fedgate/v1/{SITE}/cloud/action/building"
    assert place.answers(place.step(Received(where, json.dumps(note).encode()))) == []
    place.restart()
    assert place.answers(place.step(Received(where, json.dumps(note).encode()))) == []  # it waits already
    (answer,) = place.answers(place.tick())
    assert answer.answer == f"{ALARM}: noted" and place.events() == [("building", "note")]


def test_who_did_it_is_said_by_the_topic_alone_and_whoever_is_not_named_is_dropped(place: Place) -> None:
    place.act(ACKNOWLEDGE | {"who": "the director"})
    assert place.events() == [("building", "acknowledge")]
    for user in ("stranger", "a", "cloud.bridge"):
        assert place.act(ACKNOWLEDGE, user=user) == []
    assert any("stranger may not act on alarms" in line for line in place.lines)
    assert place.act(ACKNOWLEDGE | {"request": "r"}, is_retained=True) == []
    assert len(place.events()) == 1 and len(place.service.store.read_rows("orders")) == 1


@pytest.mark.parametrize("action", ["out-of-service", "in-service", "window"])
def test_nobody_names_a_gateway_that_the_site_does_not_have(place: Place, action: str) -> None:
    """By either way: there is no end of names, and of each the events are kept."""
    begin_s = place.now_ns / NS
    body: dict[str, Any] = {"action": action, "cause": "anomaly", "text": "w", "from_s": begin_s, "to_s": begin_s + 900}
    problem = "gateway: 'nowhere' given; expected one of this site (a), or all"
    (answer,) = place.act({"request": "1", "gateway": "nowhere", **body})
    assert answer.problem == problem
    number = place.service.store.order("alarm", {"gateway": "nowhere", "who": "ann", **body})
    place.tick()
    assert place.service.store.answer(number) == ("refused", problem) and place.events() == []


def test_only_the_alarm_of_the_site_is_taken_out_of_service_for_all(place: Place) -> None:
    out = {"action": "out-of-service", "gateway": "all"}
    refused, done = place.act({"request": "1", "cause": "anomaly", **out}, {"request": "2", "cause": "fleet", **out})
    assert "cause: 'anomaly' given; alarms of 'all', the whole site, have the cause 'fleet'" in refused.problem
    assert done.answer == "all/fleet: out-of-service"


def test_a_cause_of_a_gateway_that_is_gone_is_put_back_in_service(place: Place) -> None:
    cause = {"gateway": "a", "cause": "anomaly"}
    place.act({"request": "1", "action": "out-of-service", **cause})
    state = place.service.state
    gone = replace(state.access, gateways={}), replace(state.alarms, book={})
    place.service.state = replace(state, access=gone[0], alarms=gone[1])
    (answer,) = place.act({"request": "2", "action": "in-service", **cause})
    assert answer.answer == "a/anomaly: in-service" and not answer.problem


@pytest.mark.soak
def test_so_many_orders_are_carried_out_in_a_tick_and_the_rest_in_the_next(place: Place) -> None:
    store = place.service.store
    for number in range(ORDERS_AT_ONCE + 5):
        body = {"action": "note", "alarms": [ALARM], "text": f"{number}", "who": "ann"}
        store.order("alarm", body)
    place.tick()
    assert len(store.read_orders()) == 5
    place.tick()
    assert [event.body["text"] for event in store.read_alarm_events()] == [f"{n}" for n in range(ORDERS_AT_ONCE + 5)]


def test_a_gateway_may_not_act_whatever_the_settings_say(place: Place) -> None:
    place.step(status("scada"))
    assert place.act(ACKNOWLEDGE, user="scada") == [] and place.events() == []
    assert any("scada is a gateway, and no gateway acts on alarms" in line for line in place.lines)


def test_an_alarm_is_named_by_the_beginning_of_its_id(place: Place) -> None:
    place.step(alarm("a", cause="silent-load", kind="sensor"), alarm("a", cause="silent-air", kind="sensor"))
    short = ("a/a.silent-a", "a.silent-l", "a/a.anomaly.1", ALARM, ALARM.split("/")[1])
    (answer,) = place.act({"request": "1", "action": "note", "alarms": short, "text": "seen"})
    names = [f"a/a.silent-air.{T0_NS}", f"a/a.silent-load.{T0_NS}", ALARM]
    assert sorted(answer.answer.splitlines()) == sorted(f"{name}: noted" for name in names)
    (answer,) = place.act({"request": "2", "action": "acknowledge", "alarms": ["a/a.silent"]})
    assert f"a/a.silent: it begins several alarms ({names[0]}, {names[1]}); give more of it" in answer.problem
    for number, name in enumerate(("a/A.anomaly", "b/a.anomaly", "a/", "%", "a_a")):  # no letter stands for another
        (answer,) = place.act({"request": f"r{number}", "action": "acknowledge", "alarms": [name]})
        assert "there is no such alarm" in answer.problem


WRONG: list[tuple[Any, str, str]] = [
    (b"\xff", "", "Invalid"),
    (b"{'request': 1}", "", """got "{'request': 1}\""""),
    (b"[" * 100_000, "", "AlarmAction"),
    ({"request": "7"}, "7", "action: Field required"),
    ({"request": "7", "action": "burn"}, "7", "action: Input should be 'acknowledge'"),
    ({"request": 7, "action": "acknowledge"}, "", "request:"),
    ({"request": "a b", "action": "acknowledge"}, "a b", "request: String should match"),
    ({"request": "7", "action": "acknowledge", "alarms": ["a/b"] * 101}, "7", "alarms"),
    ({"request": "7", "action": "acknowledge"}, "7", "alarms: expected 1 to 100 names"),
    ({"request": "7", "action": "acknowledge", "alarms": ["a/nothing"]}, "7", "there is no such alarm"),
    ({"request": "7", "action": "note", "alarms": [ALARM], "text": "\x1b[2J"}, "7", "printable"),
    ({"request": "7", "action": "shelve", "alarms": [ALARM], "for_s": 1}, "7", "for: expected 1 minute to 7 days"),
    ({"request": "7", "action": "window", "gateway": "all", "text": "w"}, "7", "to: expected a time to come"),
    ({"request": "7", "action": "window-end", "window": 3}, "7", "there is no maintenance window 3"),
]


@pytest.mark.parametrize(("body", "request_id", "words"), WRONG, ids=lambda one: str(one)[:40])
def test_what_is_wrong_is_answered_with_what_was_expected(place: Place, body: Any, request_id: str, words: str) -> None:
    (answer,) = place.act(body)
    assert (answer.request, answer.answer) == (request_id, "refused") and words in answer.problem
    assert place.events() == []


def test_every_action_of_an_operator_is_one_of_another_system(place: Place) -> None:
    allowed = AlarmAction.model_fields["action"].annotation
    assert set(getattr(allowed, "__args__", ())) == {*actions.OF_ALARMS, *actions.OF_SITE}
    begin_s = place.now_ns / NS
    bodies: list[dict[str, Any]] = [
        {"action": "shelve", "alarms": [ALARM], "for_s": 600},
        {"action": "unshelve", "alarms": [ALARM]},
        {"action": "label", "alarms": [ALARM], "label": "damage"},
        {"action": "assign", "alarms": [ALARM], "to": "ben"},
        {"action": "out-of-service", "gateway": "a", "cause": "anomaly"},
        {"action": "in-service", "gateway": "a", "cause": "anomaly"},
        {"action": "window", "gateway": "all", "from_s": begin_s, "to_s": begin_s + 900, "text": "why"},
        {"action": "window-end", "window": 1},
    ]
    found = place.act(*[{"request": f"r{number}", **body} for number, body in enumerate(bodies)])
    assert [one.problem for one in found] == [""] * len(bodies)
    assert [kind for who, kind in place.events() if who] == [body["action"] for body in bodies]


@pytest.mark.soak
def test_a_user_that_sends_without_end_is_slowed_and_holds_up_no_other(place: Place) -> None:
    bodies = [{"request": f"r{number}", "action": "note", "alarms": [ALARM], "text": "x"} for number in range(100)]
    found = place.act(*bodies)
    assert len(found) == remote_actions.ACTIONS
    assert any("building sends more than 60 actions at once" in line for line in place.lines)
    assert len(place.act(ACKNOWLEDGE, user="scada")) == 1
    place.now_ns += 60 * NS
    assert len(place.act(bodies[-1])) == 1  # which it had no answer for, and sends again


def test_an_action_of_an_alarm_that_the_store_alone_has_is_carried_out_too(place: Place) -> None:
    place.step(alarm("a", "cleared"))
    for number in range(1, 20):
        place.step(alarm("a", onset_s=number), alarm("a", "cleared", number))
    assert ALARM.split("/")[1] not in place.service.state.alarms.book["a"]
    answers = [place.act(ACKNOWLEDGE | {"request": f"{number}"})[0].answer for number in range(2)]
    assert answers == [
        f"{ALARM}: acknowledged; it is over, and normal",
        f"{ALARM}: was acknowledged by building already",
    ]


@pytest.mark.soak
def test_what_is_kept_of_requests_is_bounded_for_each_user(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "ORDERS_KEPT", 5)
    place.act(ACKNOWLEDGE, user="scada")
    for number in range(30):
        place.act({"request": f"r{number}", "action": "note", "alarms": [ALARM], "text": "x"})
    kinds = [row["kind"] for row in place.service.store.read_rows("orders")]
    assert (kinds.count("action:building"), kinds.count("action:scada")) == (5, 1)
    place.restart()
    assert "acknowledged" in place.act(ACKNOWLEDGE, user="scada")[0].answer  # another's many push out none of its own


def test_an_action_that_fails_by_a_defect_is_answered(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(actions, "carry_out", fail)
    (answer,) = place.act(ACKNOWLEDGE)
    assert "it could not be carried out" in answer.problem and place.act(ACKNOWLEDGE) == [answer]


@pytest.mark.parametrize("users", ['["a b"]', '["building", 3]', f"{[f'u{number}' for number in range(9)]}"])
def test_a_user_that_cannot_be_is_named_on_its_line(tmp_path: Path, users: str) -> None:
    assert cloud_aggregator(["init", str(tmp_path / "site"), "--loopback"]) == 0
    path = tmp_path / "site" / "aggregator.toml"
    path.write_text(path.read_text().replace("actions_from = []", f"actions_from = {users}"))
    with pytest.raises(SettingsError, match=r"alarms\.actions_from"):
        load(path, AggregatorSettings)


@pytest.mark.slow
def test_through_a_real_broker_with_our_access_list(guarded: Broker, tmp_path: Path) -> None:
    assert cloud_aggregator(["init", str(tmp_path / "site"), "--loopback"]) == 0
    path, top = tmp_path / "site" / "aggregator.toml", f"fedgate/v1/{SITE}"
    path.write_text(path.read_text().replace("actions_from = []", 'actions_from = ["building", "operator"]'))
    mine, where = f"{top}/cloud/answer/building", f"{top}/a/alarm-state/anomaly"

    def state() -> str:
        payload = held.get(where)
        return AlarmState.from_bytes(payload).state if payload else ""

    with (
        serving(path.parent, guarded, False) as aggregator,
        client(guarded, "a") as (gateway, _),
        client(guarded, "building", where, mine) as (building, held),
        client(guarded, "operator", f"{top}/#") as (operator, seen),
    ):
        gateway.publish(f"{top}/a/status/agent", WATCHING.to_bytes(), retain=True)
        gateway.publish(f"{top}/a/alarm/anomaly", alarm("a").payload, retain=True)
        until(lambda: state() == "unacknowledged")
        # In another's name, and as a gateway: the broker lets neither through.
        forged = json.dumps({**ACKNOWLEDGE, "request": "forged"}).encode()
        for link in (gateway, operator):
            link.publish(f"{top}/cloud/action/building", forged)
        for user in ("a", "operator"):
            building.publish(f"{top}/cloud/action/{user}", forged)
        gateway.publish(f"{top}/cloud/action/a", forged)
        until(lambda: all(link.drain(0.1) for link in (gateway, operator, building)))
        building.publish(f"{top}/cloud/action/building", json.dumps(ACKNOWLEDGE).encode())
        until(lambda: mine in held and state() == "acknowledged")
        first = held.pop(mine)
        assert ActionAnswer.from_bytes(first).answer == f"{ALARM}: acknowledged"
        assert not [one for one in seen if "/cloud/action/" in one and not one.endswith("/building")]
        building.publish(f"{top}/cloud/action/building", json.dumps(ACKNOWLEDGE).encode())
        until(lambda: held.get(mine) == first)
        known = aggregator.service.state.alarms
        assert [*known.requests] == ["building"] and [*known.requests["building"]] == ["1"]
        gateway.publish(f"{top}/a/alarm/anomaly", alarm("a", "cleared").payload, retain=True)
        until(lambda: held.get(where) == b"")
