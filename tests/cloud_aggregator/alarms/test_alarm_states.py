"""Goal: what the broker retains of an alarm's state is how it is now, said on change alone, whatever was lost on the
way, and costs no walk over all alarms.

Method: the machine, with a broker's memory of what was published beside it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.cloud_aggregator.alarms import alarm_states
from fedgate.cloud_aggregator.alarms.records import Alarms, CauseKey
from fedgate.cloud_aggregator.events import Connection, Durable, Effect, Publish, Tick
from fedgate.cloud_aggregator.state import State
from fedgate.cloud_aggregator.storage import history_table
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import AlarmState
from tests.cloud_aggregator.alarms.test_fleet import ALL, alarm, site
from tests.cloud_aggregator.alarms.test_workflow import act, escalating, name_of
from tests.cloud_aggregator.test_aggregator_machine import after, published
from tests.support.sites import SITE, T0_NS

WHERE = f"fedgate/v1/{SITE}/a/alarm-state/anomaly"
WINDOW: dict[str, Any] = {"gateway": "a", "from_s": T0_NS / 1e9, "to_s": T0_NS / 1e9 + 500, "text": "new bearings"}


def said(effects: list[Effect]) -> list[Publish]:
    return published(effects, "alarm-state")


def states(effects: list[Effect]) -> list[str]:
    return [json.loads(one.payload)["state"] if one.payload else "" for one in said(effects)]


def tick(state: State, at_s: float) -> tuple[State, list[str]]:
    state, effects = after(state, Tick(), at_s=at_s)
    return state, states(effects)


def test_a_state_is_said_when_it_changes_and_taken_back_when_there_is_nothing_to_handle() -> None:
    state, _ = after(escalating(), Connection(True), Tick(), at_s=0)
    state, effects = after(state, alarm("a", severity="major"), Tick(), at_s=1)
    (one,) = said(effects)
    assert (one.topic, one.retain) == (WHERE, True)
    assert json.loads(one.payload) == {
        "id": name_of(0).split("/")[1],
        "gateway": "a",
        "cause": "anomaly",
        "kind": "anomaly",
        "severity": "major",
        "state": "unacknowledged",
        "since": "2027-01-15T08:00:00+00:00",
        "acknowledged_by": "",
        "acknowledged_at": "",
        "shelved_until": "",
        "label": "",
        "assignee": "",
        "time": "2027-01-15T08:00:01+00:00",
    }
    assert tick(state, 2)[1] == [] and tick(state, 300)[1] == []
    state, _ = act(state, "assign", 3, alarms=[name_of(0)], to="ben")
    state, _ = act(state, "acknowledge", 3, alarms=[name_of(0)])
    state, effects = after(state, Tick(), at_s=4)
    told = json.loads(said(effects)[0].payload)
    assert len(said(effects)) == 1 and (told["state"], told["assignee"]) == ("acknowledged", "ben")
    assert (told["acknowledged_by"], told["acknowledged_at"]) == ("ann", "2027-01-15T08:00:03+00:00")
    state, _ = act(state, "note", 5, alarms=[name_of(0)], text="which says nothing of its state")
    state, found = tick(state, 6)
    assert found == []
    state, effects = after(state, alarm("a", "cleared"), Tick(), at_s=7)
    assert [(one.topic, one.payload, one.retain) for one in said(effects)] == [(WHERE, b"", True)]


def test_what_the_time_ends_is_said_when_it_ends() -> None:
    state, _ = after(escalating(), Connection(True), alarm("a"), Tick(), at_s=1)
    state, _ = act(state, "shelve", 2, alarms=[name_of(0)], for_s=600)
    state, effects = after(state, Tick(), at_s=3)
    assert json.loads(said(effects)[0].payload)["shelved_until"] == "2027-01-15T08:10:02+00:00"
    state, _ = act(state, "window", 4, **WINDOW | {"from_s": WINDOW["from_s"] - 9})
    state, found = tick(state, 9)
    assert found == ["suppressed"]
    state, found = tick(state, 501)
    assert found == ["shelved"]
    state, found = tick(state, 603)
    assert found == ["unacknowledged"]
    assert tick(state, 900)[1] == ["unacknowledged"] * 0


def test_one_that_is_over_and_not_acknowledged_is_said_until_somebody_has() -> None:
    state, _ = after(escalating(), Connection(True), alarm("a"), alarm("a", "cleared"), at_s=1)
    state, _ = after(state, alarm("a", onset_s=60), at_s=61)
    state, found = tick(state, 62)
    assert found == ["unacknowledged"]
    state, _ = act(state, "acknowledge", 63, alarms=[name_of(60)])
    state, _ = after(state, alarm("a", "cleared", 60), at_s=64)
    state, effects = after(state, Tick(), at_s=65)
    (left,) = [json.loads(one.payload) for one in said(effects)]
    assert (left["state"], left["id"]) == ("returned-unacknowledged", name_of(0).split("/")[1])
    state, _ = act(state, "acknowledge", 66, alarms=[name_of(0)])
    assert tick(state, 67)[1] == [""]


def test_the_alarm_of_the_site_has_a_state_too() -> None:
    _, effects = after(site(), *[alarm(gateway) for gateway in ALL], Tick(), at_s=1)
    fleet = [one for one in said(effects) if one.topic == f"fedgate/v1/{SITE}/all/alarm-state/fleet"]
    assert [json.loads(one.payload)["gateway"] for one in fleet] == ["all"]


def test_after_a_connection_all_is_said_once_and_some_of_it_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_states, "AT_ONCE_MAX", 7)
    causes = [f"silent-{number}" for number in range(20)]
    state, _ = after(escalating(), *[alarm("a", cause=cause, kind="sensor") for cause in causes])
    state, _ = after(state, alarm("a", "cleared", cause=causes[0], kind="sensor"), at_s=1)
    state, _ = act(state, "acknowledge", 2, alarms=[f"a/a.{causes[0]}.{T0_NS}"])
    state, _ = after(state, Connection(False), Connection(True), at_s=3)
    found = list[int]()
    for at_s in range(4, 9):
        state, effects = after(state, Tick(), at_s=at_s)
        found.append(len(said(effects)))
    assert found == [7, 7, 6, 0, 0]


def test_nothing_is_looked_through_at_a_tick_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = after(escalating(), Connection(True), alarm("a"), Tick(), at_s=1)
    asked = list[CauseKey]()
    real = alarm_states.describe_state

    def describe(alarms: Alarms, key: CauseKey, now_ns: int) -> AlarmState | None:
        asked.append(key)
        return real(alarms, key, now_ns)

    monkeypatch.setattr(alarm_states, "describe_state", describe)
    for at_s in range(2, 60):
        state, _ = after(state, Tick(), at_s=at_s)
    assert asked == []
    after(state, alarm("a", "cleared"), Tick(), at_s=61)
    assert asked == [CauseKey("a", "anomaly")]


@pytest.mark.soak
def test_what_a_broker_retains_of_an_alarm_is_right_after_a_restart_with_a_store_that_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_table, "ALARMS_KEPT", 5)
    monkeypatch.setattr(history_table, "ALARMS_BETWEEN", 1)
    store, broker = Store(tmp_path / "aggregator.db"), dict[str, bytes]()
    state, effects = after(escalating(), Connection(True))
    causes = ["silent-early", *[f"silent-{number}" for number in range(9)], "silent-late"]
    for at_s, cause in enumerate((*causes, *["silent-late"] * 20), start=1):  # of one the store keeps the newest alone
        one = [alarm("a", kind, at_s, cause=cause, kind="sensor") for kind in ("raised", "cleared")]
        state, effects = after(state, *one, Tick(), at_s=at_s)
        store.commit([effect for effect in effects if isinstance(effect, Durable)])
        note(broker, effects)
    assert all(json.loads(payload)["state"] == "returned-unacknowledged" for payload in broker.values())
    restarted = replace(state, alarms=store.read_alarms())
    store.close()
    restarted, effects = after(restarted, Connection(False), Connection(True), Tick(), at_s=100)
    note(broker, effects)
    assert len(broker) == len(causes)
    for cause in causes:
        told = alarm_states.describe_state(restarted.alarms, CauseKey("a", cause), restarted.context.now_ns)
        payload = broker[WHERE.replace("anomaly", cause)]
        assert AlarmState.from_bytes(payload).model_copy(update={"time": ""}) == told if told else payload == b""


DOING = st.lists(
    st.sampled_from(
        [
            "raise",
            "clear",
            "acknowledge",
            "shelve",
            "unshelve",
            "out",
            "in",
            "window",
            "end",
            "down",
            "up",
            "wait",
            "cut",
        ]
    ),
    max_size=40,
)


@pytest.mark.soak
@given(DOING)
@settings(max_examples=80, deadline=None)
def test_what_is_retained_is_how_it_is_once_there_is_a_connection(doing: list[str]) -> None:
    state, onset_s, now_s, broker = escalating(), 0.0, 1.0, dict[str, bytes]()
    cause: dict[str, Any] = {"gateway": "a", "cause": "anomaly"}
    for one in doing:
        now_s += 10
        match one:
            case "raise":
                onset_s = now_s
                state, effects = after(state, alarm("a", onset_s=onset_s), at_s=now_s)
            case "clear":
                state, effects = after(state, alarm("a", "cleared", onset_s), at_s=now_s)
            case "shelve":
                state, effects = act(state, "shelve", now_s, alarms=[name_of(onset_s)], for_s=60)
            case "acknowledge" | "unshelve":
                state, effects = act(state, one, now_s, alarms=[name_of(onset_s)])
            case "out" | "in":
                state, effects = act(state, "out-of-service" if one == "out" else "in-service", now_s, **cause)
            case "window":
                begin_s = T0_NS / 1e9 + now_s - 20
                times = {"from_s": begin_s, "to_s": begin_s + 100}
                state, effects = act(state, "window", now_s, gateway="all", text="w", **times)
            case "end":
                state, effects = act(state, "window-end", now_s, window=1)
            case "down" | "up":
                state, effects = after(state, Connection(one == "up"), at_s=now_s)
            case "cut":  # what nobody stores is gone, and so is what the broker kept
                alarms = replace(state.alarms, published={}, unpublished=frozenset(), looked_ns=None)
                state, effects = after(replace(state, alarms=alarms), Connection(False), Connection(True), at_s=now_s)
            case _:
                now_s += 50
                effects = []
        note(broker, effects)
        state, effects = after(state, Tick(), at_s=now_s)
        note(broker, effects)
    now_s += 10
    state, effects = after(state, *([] if state.context.is_connected else [Connection(True)]), Tick(), at_s=now_s)
    note(broker, effects)
    state, effects = after(state, Tick(), at_s=now_s + 1)
    note(broker, effects)
    expected = alarm_states.describe_state(state.alarms, CauseKey("a", "anomaly"), state.context.now_ns)
    told = {key: value for key, value in json.loads(broker.get(WHERE) or b"{}").items() if key != "time"}
    assert told == ({} if expected is None else expected.model_dump(exclude={"time"}))


def note(broker: dict[str, bytes], effects: list[Effect]) -> None:
    broker |= {one.topic: one.payload for one in said(effects)}
