"""Alarms whose gateway never tells their end: one of a cause stands at a time, and what a gateway forgot does not stand
for ever; how many causes a gateway may have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.cloud_aggregator.alarms import register
from fedgate.cloud_aggregator.alarms.register import ACTIVE_CAUSES_MAX, CAUSES_MAX, GRACE_S
from fedgate.cloud_aggregator.events import (
    Connection,
    Durable,
    Effect,
    Enqueue,
    Log,
    Received,
    RecordAlarm,
    RecordCount,
)
from fedgate.cloud_aggregator.state import State
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Alarm, Receipt, ServiceRequest, Status
from fedgate.config.settings.notifications import Webhook
from fedgate.models.time_units import NS
from tests.cloud_aggregator.alarms.test_fleet import alarm, site, status
from tests.cloud_aggregator.alarms.test_service_requests import retained
from tests.cloud_aggregator.test_aggregator_machine import after, heard, published
from tests.support.sites import T0_NS, with_record

LATER_S = 10_000.0
HOOK = Webhook(url="http://127.0.0.1:1/")
DONE = Alarm.from_bytes(alarm("a", "cleared").payload)
CLOCKS = st.tuples(st.sampled_from([-1e9, -1e4, 0.0, 5e3, 1e8]), st.sampled_from(["synchronised", "unsynchronised"]))
CHANGES = ("raised", "cleared")
STORY = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(CHANGES)), min_size=1, unique=True)


def active(state: State, gateway: str = "a") -> list[str]:
    return [known.alarm.id.removeprefix(f"{gateway}.") for known in register.select_active(state.alarms.book, gateway)]


def kept(store: Store, effects: Iterable[Effect]) -> None:
    store.commit([one for one in effects if isinstance(one, Durable)])


@pytest.mark.soak
@given(story=STORY, data=st.data())
def test_only_the_latest_of_a_cause_can_stand_in_whatever_order_it_was_heard(
    story: list[tuple[int, str]], data: st.DataObject
) -> None:
    """The oracle: the alarm that was raised last of all that were ever told of stands, where it was not cleared. Each
    was raised and cleared in any boot, by a clock that may be wrong by any time, whatever it says of itself.
    """
    clocks = [data.draw(CLOCKS, label=f"clock of alarm {number}") for number in range(6)]
    state, onto = with_record(site(), "context", uptime_ns=T0_NS + round(LATER_S * NS)), dict[str, ServiceRequest]()
    card = {"store_id": "card"} if data.draw(st.booleans(), label="alarms tell of their store") else {}
    if not card:
        state, _ = after(state, *[started("xyz"[number], 1 + number, 1) for number in range(3)], at_s=LATER_S)
    for at, (number, change) in enumerate(data.draw(st.permutations(story))):
        wrong_s, clock = clocks[number]
        said = {
            "id": f"a.{number}",
            "sequence": 1 + number,
            "clock": clock,
            "boot_id": data.draw(st.sampled_from("xyz")),
            **card,
        }
        ours_s = data.draw(st.sampled_from([-1e9, -1e4, 0.0, 5e3]), label="our clock")
        state = with_record(state, "context", anchor_ns=round(ours_s * NS))
        state, effects = after(state, alarm("a", change, wrong_s + 100.0 * number, **said), at_s=LATER_S + at)
        onto = retained(effects, onto)
    last = max(number for number, _ in story)
    is_up = (last, "raised") in story and (last, "cleared") not in story
    assert active(state) == ([str(last)] if is_up else [])
    assert [one.state for one in onto.values()] == ["raised" if is_up else "cleared"]
    assert retained(after(state, Connection(True))[1]) == onto


def test_a_later_alarm_ends_the_one_that_was_forgotten_and_everyone_is_told(tmp_path: Path) -> None:
    store, state = Store(tmp_path / "a.db"), site()
    onto: dict[str, ServiceRequest] = {}
    for event in (alarm("a", rule="point"), alarm("a", onset_s=50), alarm("a", "cleared", 50)):
        state, effects = after(state, event)
        onto = retained(effects, onto)
        kept(store, effects)
    first, second = store.read_rows("alarms")
    assert (first["ended"], first["cleared_ns"], first["rule"]) == ("superseded", T0_NS + 50 * NS, "point")
    assert (second["ended"], second["cleared_ns"]) == ("", T0_NS + 51 * NS)
    assert [(one.state, one.id) for one in onto.values()] == [("cleared", f"a.anomaly.{T0_NS + 50 * NS}")]
    again = site(alarms=store.read_alarms())
    held, was = (
        {key: (one.ended, one.active, one.onset_ns) for key, one in end.alarms.book["a"].items()}
        for end in (again, state)
    )
    assert held == was and active(again) == []
    effects = after(again, alarm("a", "cleared", t_ns=T0_NS + 20 * NS))[1]  # its own word comes after all
    kept(store, effects)
    assert (store.read_rows("alarms")[0]["ended"], store.read_rows("alarms")[0]["cleared_ns"]) == ("", T0_NS + 20 * NS)
    store.close()


def test_a_change_that_ends_another_is_posted_after_that_end() -> None:
    state = site()
    state = with_record(state, "context", settings=state.context.settings.model_copy(update={"webhook": HOOK}))
    effects = after(state, alarm("a"), alarm("a", onset_s=50))[1]
    posts = [one.item.body for one in effects if isinstance(one, Enqueue)]
    assert [b'"active":true' in body for body in posts] == [True, False, True] and b"superseded: " in posts[1]


def test_without_a_clock_what_came_later_is_later_also_after_a_restart(tmp_path: Path) -> None:
    store, state = Store(tmp_path / "a.db"), site()
    unset: dict[str, Any] = {"clock": "unsynchronised"}
    told = [(alarm("a", onset_s=-9e8, **unset), 10.0), (alarm("a", onset_s=-9.5e8, **unset), 20.0)]
    for event, at_s in [*told, (alarm("a", "cleared", -9e8, **unset), 30.0)]:
        state, effects = after(state, event, at_s=at_s)
        kept(store, effects)
    expected = [f"anomaly.{T0_NS - 950_000_000 * NS}"]
    assert active(state) == expected
    assert active(site(alarms=store.read_alarms())) == expected
    store.close()


@pytest.mark.parametrize("sequence", [0, 5])
def test_without_a_clock_what_came_later_is_later_though_our_own_clock_went_back(sequence: int) -> None:
    """Also where the two seem to be of two cards, which count each for itself."""
    of_another: dict[str, Any] = {"clock": "unsynchronised", "sequence": sequence, "store_id": "another"}
    state, _ = after(site(), *[alarm("a", change, sequence=2 * sequence, store_id="card") for change in CHANGES])
    state, _ = after(state, alarm("a", onset_s=-130.0, id="a.new", **of_another), at_s=-220.0)
    assert active(state) == ["new"]


def test_an_alarm_of_ours_is_later_than_those_before_it_though_our_clock_went_back() -> None:
    state, ours = site(), {"cause": "identity-restored", "kind": "sensor"}
    for at_s in (0.0, -500.0, -100.0):
        state, _ = after(state, alarm("a", onset_s=at_s, **ours), at_s=at_s)
        assert active(state) == [f"identity-restored.{T0_NS + round(at_s) * NS}"]


def started(boot_id: str, starts: int, said_s: int, store_id: str = "card", challenge: int = 0) -> Received:
    said = {"store_id": store_id, "boot_id": boot_id, "starts": starts, "challenge": challenge}
    return status("a", **said, monotonic_ns=said_s * NS)


@pytest.mark.parametrize("tells", [False, True])
@pytest.mark.parametrize("is_heard_of", [False, True])
def test_a_new_card_counts_anew_and_its_alarm_stands_whatever_the_old_one_counted(
    is_heard_of: bool, tells: bool
) -> None:
    """`tells`: its alarms name their store, which those of 0.5 do not."""
    old, new = (dict[str, Any](store_id=name if tells else "") for name in ("card", "new"))
    raised, cleared = (alarm("a", change, boot_id="x", sequence=50, **old) for change in CHANGES)
    state, _ = after(site(), started("x", 50, 100), raised, cleared)
    state, _ = after(state, *[started("y", 1, 1, "new")] * is_heard_of, at_s=500.0)
    state, _ = after(state, alarm("a", onset_s=490.0, id="a.new", boot_id="y", sequence=6, **new), at_s=500.0)
    for number in range(9):  # of its boots only the last few are remembered
        state, _ = after(state, started(f"z{number}", 2 + number, 1, "new"), at_s=600.0 + number)
    assert active(state) == ["new"]
    state, _ = after(state, alarm("a", onset_s=700.0, id="a.newer", boot_id="z8", sequence=9, **new), at_s=700.0)
    assert active(state) == ["newer"]


@pytest.mark.parametrize("clock", ["synchronised", "unsynchronised"])
@pytest.mark.parametrize("is_over", [False, True])
def test_an_alarm_of_a_new_store_in_the_same_boot_is_later_though_it_counts_anew(is_over: bool, clock: str) -> None:
    """Whoever commissions anew removes the store and starts the agent; the machine goes on."""
    old, new = (dict[str, Any](boot_id="x", store_id=name, clock=clock) for name in ("old", "new"))
    told = [alarm("a", change, sequence=5, **old) for change in CHANGES[: 1 + is_over]]
    state, _ = after(site(), started("x", 3, 100, "old"), *told)
    state, _ = after(state, started("x", 1, 900, "new"), at_s=900.0)
    state, effects = after(state, alarm("a", onset_s=990.0, id="a.new", sequence=4, **new), at_s=1_000.0)
    assert "new" in active(state) and f"anomaly.{T0_NS}" not in active(state)
    assert {one.state for one in retained(effects).values()} == {"raised"}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
@pytest.mark.parametrize("clock", ["synchronised", "unsynchronised"])
def test_of_stores_of_one_boot_the_time_since_the_boot_tells_though_the_clock_was_set_back(
    order: tuple[int, ...], clock: str
) -> None:
    """World 5050: the store was removed twice in one boot, and the clock set back between."""
    onsets_s, spent_s = (100.0, 130.0, 90.0), (50, 70, 85)
    state = site()
    for at, index in enumerate(order):
        said: dict[str, Any] = {"boot_id": "x", "store_id": f"store {index}", "monotonic_ns": spent_s[index] * NS}
        told = alarm("a", onset_s=onsets_s[index], id=f"a.{index}", sequence=9 - index, clock=clock, **said)
        state, _ = after(state, told, at_s=200.0 + at)
    assert active(state) == ["2"]


def test_after_a_card_was_set_back_its_new_alarms_are_later_though_it_counts_anew() -> None:
    """In boot x of its fifth start alarm 11; then the card of its fourth start is put in."""

    state, _ = after(site(), started("x", 5, 100), alarm("a", boot_id="x", sequence=11))
    state, _ = after(state, started("y", 5, 1), at_s=500.0)
    state, _ = after(state, alarm("a", onset_s=490.0, id="a.new", boot_id="y", sequence=6), at_s=500.0)
    assert active(state) == ["new"]  # which card it is on is not known yet
    state, _ = after(state, alarm("a", onset_s=-50.0, id="a.old", boot_id="x", sequence=8), at_s=510.0)
    assert active(state) == ["new"]
    challenge = state.access.sessions["a"].challenge
    state, _ = after(state, started("y", 5, 2, challenge=challenge), at_s=520.0)
    troubled = f"identity-restored.{T0_NS + 520 * NS}"
    assert active(state) == ["new", troubled]
    state, _ = after(state, alarm("a", onset_s=515.0, id="a.newer", boot_id="y", sequence=7), at_s=520.0)
    state, _ = after(state, alarm("a", onset_s=-60.0, id="a.older", boot_id="x", sequence=9), at_s=530.0)
    assert active(state) == ["newer", troubled]


def quiet(**change: Any) -> Received:
    return status("a", **{"alarms_active": 0, "outbox": 0, **change})


def test_what_a_gateway_forgot_is_ended_after_the_grace() -> None:
    state, _ = after(site(), alarm("a"), alarm("a", cause="silent-x", kind="sensor"), alarm("b"), quiet())
    state, _ = after(state, quiet(), at_s=GRACE_S - 1)
    assert len(active(state)) == 2
    state, effects = after(state, quiet(), at_s=GRACE_S)
    ended = [(one.alarm.cause, one.ended) for one in effects if isinstance(one, RecordAlarm)]
    assert ended == [("anomaly", "forgotten"), ("silent-x", "forgotten")]
    assert {one.state for one in retained(effects).values()} == {"cleared"}
    assert active(state) == [] and len(active(state, "b")) == 1
    assert not [one for one in after(state, quiet(), at_s=2 * GRACE_S)[1] if isinstance(one, RecordAlarm)]


SPEAKS = [
    quiet(alarms_active=1),
    quiet(outbox=1),
    quiet(boot_id="two"),
    quiet(boot_id=""),
    heard("a", "status", Status(state="offline").to_bytes()),
    heard("a", "status", b'{"state":"online","boot_id":"one"}'),  # of a version that says nothing of alarms
    alarm("a"),
    alarm("a", "cleared", -50),
    Connection(True),
]


@pytest.mark.parametrize("event", SPEAKS)
def test_whatever_speaks_against_it_begins_the_grace_anew(event: Received | Connection) -> None:
    state, _ = after(site(), alarm("a"), quiet())
    state, _ = after(state, event, at_s=GRACE_S - 1)
    state, _ = after(state, quiet(), at_s=GRACE_S + 1)
    assert active(state) == [f"anomaly.{T0_NS}"]
    state, _ = after(state, quiet(), at_s=2 * GRACE_S + 1)
    assert active(state) == []


@pytest.mark.soak
def test_causes_have_an_end_and_the_anomaly_is_always_taken() -> None:
    state, _ = after(site(), *[alarm("a", cause=f"c{number}") for number in range(ACTIVE_CAUSES_MAX)])
    more = [alarm("a", cause="more")] * 3
    state, effects = after(state, *more, at_s=3_700.0)  # by then what one gateway may have of the log is whole again
    receipts = [Receipt.from_bytes(one.payload) for one in published(effects, "receipt")]
    assert not any(one.accepted for one in receipts) and "200 are the most of one gateway" in receipts[0].reason
    assert [one.value for one in effects if isinstance(one, RecordCount)] == [1, 2, 3]
    assert len([one for one in effects if isinstance(one, Log)]) == 2 and not published(effects, "service-request")
    state, _ = after(state, alarm("a"), alarm("b", cause="more"))
    assert len(active(state)) == ACTIVE_CAUSES_MAX + 1
    state, _ = after(state, *[alarm("a", "cleared", cause=f"c{number}") for number in (0, 1)])
    state, _ = after(state, alarm("a", cause="more"))
    assert f"more.{T0_NS}" in active(state) and len(active(state)) == ACTIVE_CAUSES_MAX and len(active(state, "b")) == 1


def test_causes_that_are_over_have_an_end_too() -> None:
    alarms: register.Register = {}
    known = register.AlarmRecord(DONE, T0_NS, is_raised=True, is_cleared=True)
    for number in range(CAUSES_MAX):
        one = DONE.model_copy(update={"id": str(number), "cause": f"c{number}"})
        alarms.setdefault("a", {})[one.id] = replace(known, alarm=one)
    fresh = DONE.model_copy(update={"id": "x", "cause": "x"})
    assert "1000 are the most" in register.find_refusal(alarms, "a", fresh)
    assert register.find_refusal(alarms, "a", fresh.model_copy(update={"cause": "c7"})) == ""
    assert register.find_refusal(alarms, "a", fresh.model_copy(update={"cause": "anomaly"})) == ""


def test_an_alarm_has_one_cause_and_a_message_that_says_another_is_refused() -> None:
    state, _ = after(site(), alarm("a"), alarm("a", "cleared"))
    (known,) = state.alarms.book["a"].values()
    other = known.alarm.model_copy(update={"state": "raised", "cause": "other"})
    state, effects = after(state, heard("a", "alarm", other.to_bytes(), "other"))
    (receipt,) = (Receipt.from_bytes(one.payload) for one in published(effects, "receipt"))
    assert not receipt.accepted and f"that of an alarm of cause {known.alarm.cause}" in receipt.reason
    assert state.alarms.book["a"] == {known.alarm.id: known}
