"""The outbox on its way: alarms first, a few at a time, again with growing pauses, and never a late listener told of
the past.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.backoff import JITTER, WAIT_S_MAX, wait_ns
from fedgate.config.protocol.messages import Alarm, Receipt, Status, Want
from fedgate.gateway_agent.events import (
    ALARM_PRIORITY,
    EVIDENCE_PRIORITY,
    SAMPLES_PRIORITY,
    SENSOR_PRIORITY,
    TELEMETRY_PRIORITY,
    UPDATE_PRIORITY,
    Connection,
    Dequeue,
    Effect,
    Item,
    Publish,
    Save,
    StoreState,
    Tick,
)
from fedgate.gateway_agent.outbox.outbox import BYTES_MAX, ITEMS_MAX
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from fedgate.models.time_units import NS
from tests.support.agents import (
    ME,
    TICK,
    after,
    changed,
    clear_fault,
    commissioned,
    deliver,
    heard,
    kinds,
    raise_fault,
    sent,
)
from tests.support.sites import T0_NS, Shelf, agent, gateway_settings, topic

CHANNEL = {
    ALARM_PRIORITY: "alarm",
    SENSOR_PRIORITY: "alarm",
    EVIDENCE_PRIORITY: "evidence",
    UPDATE_PRIORITY: "update",
    TELEMETRY_PRIORITY: "telemetry",
    SAMPLES_PRIORITY: "samples",
}
TAKEN = Receipt(accepted=True).to_bytes()
AT_ONCE: dict[str, Any] = {"exchange": {"spread_s": 0.0}}


def item(name: str, priority: int = ALARM_PRIORITY, payloads: tuple[bytes, ...] = ()) -> Item:
    return Item(topic(ME, CHANNEL[priority], name), payloads or (name.encode(),), retain=False, priority=priority)


def queued(state: State, *items: tuple[str, Item]) -> tuple[State, list[Effect]]:
    effects: list[Effect] = []
    for name, one in items:
        state, more = deliver(state, name, one)
        effects += more
    return state, effects


def cut_off(**tables: Any) -> State:
    return after(commissioned(**{**AT_ONCE, **tables}), Connection(False))[0]


def words(effects: list[Effect]) -> list[bytes]:
    """Return what is said of items, in its order."""
    return [one.payload for one in kinds(effects, Publish) if one.topic.split("/")[-2] in CHANNEL.values()]


def settled(state: State, name: str) -> tuple[State, list[Effect]]:
    return after(state, heard("receipt", name, TAKEN))


def test_alarms_go_first_then_evidence_then_updates_then_telemetry_oldest_first() -> None:
    given_items = [("t", 4), ("u", 3), ("e", 2), ("s", 1), ("a", 0), ("b", 0)]
    state, effects = queued(cut_off(), *((name, item(name, priority)) for name, priority in given_items))
    assert not kinds(effects, Publish)
    state, effects = after(state, Connection(True))
    assert words(effects) == [b"a", b"b", b"s", b"e", b"u", b"t"] and sent(effects, "status")[0].retain
    assert not words(after(state, TICK, now_ns=T0_NS + 29 * NS)[1])
    assert words(after(state, Connection(False), Connection(True))[1]) == [b"a", b"b", b"s", b"e", b"u", b"t"]
    assert set(words(after(state, TICK, now_ns=T0_NS + 38 * NS)[1])) == {b"a", b"b", b"s", b"e", b"u", b"t"}


def test_no_more_is_under_way_than_the_aggregator_is_likely_to_take_and_receipts_let_the_next_follow() -> None:
    names = [f"{number:03d}" for number in range(100)]
    state, _ = queued(cut_off(), *((name, item(name)) for name in names))
    state, effects = after(state, Connection(True))
    order = [payload.decode() for payload in words(effects)]
    assert order == names[:ITEMS_MAX]
    assert not words(after(state, *[TICK] * 5)[1])
    for place in range(100):
        state, effects = settled(state, order[place])
        order += [payload.decode() for payload in words(effects)]
        assert len(order) - place - 1 <= ITEMS_MAX
    assert order == names and not state.outbox.items and not state.outbox.sent_ns and not state.outbox.tries


def test_bulk_is_bounded_in_bytes_and_stops_no_alarm() -> None:
    large = bytes(BYTES_MAX // 2 + 1)
    telemetry = [(name, item(name, TELEMETRY_PRIORITY, (name.encode() + large,))) for name in "xyz"]
    state, _ = queued(cut_off(), *telemetry)
    state, effects = after(state, Connection(True))
    assert [payload[:1] for payload in words(effects)] == [b"x"]
    state, effects = queued(state, ("update", item("update", UPDATE_PRIORITY, (large, large, large))))
    assert len(words(effects)) == 3  # what is less important under way does not count
    state, effects = queued(state, *((f"a{number}", item(f"a{number}")) for number in range(5)))
    assert [payload[:1] for payload in words(effects)] == [b"a"] * 5


@given(st.lists(st.tuples(st.sampled_from(sorted(CHANNEL)), st.integers(0, 90_000)), max_size=80), st.randoms())
@settings(max_examples=40, deadline=None)
def test_whatever_gathers_all_of_it_leaves_and_a_class_in_its_order(
    given_items: list[tuple[int, int]], rng: Random
) -> None:
    state = FRESH
    names = [f"{priority}.{number:03d}" for number, (priority, _) in enumerate(given_items)]
    for name, (priority, size) in zip(names, given_items, strict=True):
        state, _ = queued(state, (name, item(name, priority, (name.encode() + bytes(size),))))
    state, effects = after(state, Connection(True))
    under_way, order = [payload[:5].decode() for payload in words(effects)], list[str]()
    while under_way:
        order.append(under_way.pop(rng.randrange(len(under_way))))
        state, effects = settled(state, order[-1])
        under_way += [payload[:5].decode() for payload in words(effects)]
    assert sorted(order) == sorted(names) and not state.outbox.items


FRESH = cut_off()


@pytest.mark.soak
def test_the_pause_between_tries_grows_is_bounded_and_ends_with_the_first_answer() -> None:
    state, _ = queued(cut_off(), ("first", item("first")), ("second", item("second")))
    state, _ = after(state, Connection(True))
    tries_s, now_s = list[int](), 0
    while now_s < 3_000:
        now_s += 1
        state, effects = after(state, TICK, now_ns=T0_NS + now_s * NS)
        if b"first" in words(effects):
            tries_s.append(now_s)
    pauses_s = [later - earlier for earlier, later in pairwise(tries_s)]
    expected_s = [60, 120, 240] + [WAIT_S_MAX] * (len(pauses_s) - 3)
    assert 30 <= tries_s[0] <= 38 and len(pauses_s) > 6
    assert all(one <= pause <= one * (1 + JITTER) + 1 for one, pause in zip(expected_s, pauses_s, strict=True))
    state, effects = settled(state, "second")  # somebody is there again
    assert words(effects) == [b"first"] or state.context.now_ns - state.outbox.sent_ns["first"] < 38 * NS


@pytest.mark.soak
def test_a_fleet_does_not_return_in_step() -> None:
    """100 gateways lose and get their broker in the same second; each has an alarm, an update and scores to send."""
    first_s: dict[str, Counter[int]] = {"alarm": Counter(), "update": Counter()}
    for number in range(100):
        name = f"gateway-{number}"
        state = agent(gateway_settings(name), Shelf())
        state, _ = after(state, Connection(True), Connection(False))
        for kind, priority in (("alarm", ALARM_PRIORITY), ("update", UPDATE_PRIORITY)):
            one = Item(topic(name, kind, kind), (kind.encode(),), retain=False, priority=priority)
            state, _ = deliver(state, kind, one)
        state, effects = after(state, Connection(True))
        assert not words(effects)
        for tenth in range(1, 120):
            state, effects = after(state, TICK, now_ns=T0_NS + tenth * NS // 10)
            for payload in words(effects):
                first_s[payload.decode()][tenth] += 1
    for kind, spread_tenths, most in (("alarm", 20, 16), ("update", 100, 6)):
        turns = first_s[kind]
        assert turns.total() == 100 and max(turns) <= spread_tenths + 1, kind
        assert max(turns.values()) <= most, (kind, turns)
    waits_ns = {wait_ns(30.0, 3, f"gateway-{number}", "item") for number in range(100)}
    assert len(waits_ns) == 100 and max(waits_ns) - min(waits_ns) > 120 * JITTER * 0.9 * NS


def test_a_body_that_was_sent_before_is_not_sent_whole_again() -> None:
    """Its last chunk is enough: the aggregator has it and says so, or asks for what it lacks."""
    chunks = (b"1", b"2", b"3")
    state, _ = queued(cut_off(), ("update", item("update", UPDATE_PRIORITY, chunks)))
    state, effects = after(state, Connection(True))
    assert words(effects) == list(chunks)
    busy = Tick("synchronised", 0, 0, bytes_waiting=1)
    assert not words(after(state, busy, now_ns=T0_NS + 3_600 * NS)[1])  # still leaving, on a slow line
    assert words(after(state, TICK, now_ns=T0_NS + 40 * NS)[1]) == [b"3"]
    assert words(after(state, Connection(False), Connection(True))[1]) == [b"3"]
    shelf = Shelf()
    shelf.outbox = dict(state.outbox.items)
    assert words(after(agent(gateway_settings(**AT_ONCE), shelf), Connection(True))[1]) == [b"3"]
    state, effects = after(state, heard("resend", "update", Want(missing=(0, 1)).to_bytes()))
    assert words(effects) == [b"1", b"2"]


def test_a_request_to_send_again_is_answered_once_however_often_it_names_a_chunk() -> None:
    state, _ = deliver(commissioned(), "update", Item(topic(ME, "update", "u"), (b"a", b"b", b"c"), False, 2))
    for missing, expected in (((2, 0, 2, 2, 99), [b"a", b"c"]), ((), [b"a", b"b", b"c"])):
        _, effects = after(state, heard("resend", "update", Want(missing=missing).to_bytes()))
        assert [one.payload for one in sent(effects, "update")] == expected
    assert after(state, heard("resend", "unknown", Want().to_bytes()))[1] == []


def test_an_old_change_of_an_alarm_sent_again_is_never_what_late_listeners_see() -> None:
    """Raised and cleared wait for their receipts; the alarm is raised anew; then the old ones are due again."""
    state = commissioned()
    for onset, well in ((1, True), (2, False)):
        state, raised = raise_fault(state, "faulty-load", "stuck", onset)
        assert [one.retain for one in sent(raised, "alarm")] == [True]
        if well:
            state, cleared = clear_fault(state, "faulty-load", onset)
            assert [one.retain for one in sent(cleared, "alarm")] == [True]
    state, effects = after(state, TICK, now_ns=T0_NS + 60 * NS)
    again = [(Alarm.from_bytes(one.payload).onset_ns, one.retain) for one in sent(effects, "alarm")]
    assert again == [(1, False), (1, False), (2, True)]
    name = Alarm.from_bytes(sent(effects, "alarm")[-1].payload).item
    state, _ = after(state, heard("receipt", name, TAKEN))
    state, effects = after(state, TICK, now_ns=T0_NS + 180 * NS)
    assert [one.retain for one in sent(effects, "alarm")] == [False, False]
    state, _ = clear_fault(state, "faulty-load", 3)
    state, effects = after(state, TICK, now_ns=T0_NS + 400 * NS)
    assert True in [one.retain for one in sent(effects, "alarm")]


def test_of_an_end_and_a_beginning_in_one_step_only_the_beginning_is_retained() -> None:
    state, _ = after(commissioned(), StoreState("store-damaged", "lost a page"))
    _, effects = after(state, StoreState("store-damaged", "lost another"), now_ns=state.context.now_ns + NS)
    changes = [(Alarm.from_bytes(one.payload).state, one.retain) for one in sent(effects, "alarm")]
    assert changes == [("cleared", False), ("raised", True)]


def test_only_the_receipt_of_the_aggregator_takes_an_item_out() -> None:
    state, effects = queued(commissioned(**AT_ONCE), ("a", item("a")))
    state, effects = after(state, *[TICK] * 5, Connection(False), Connection(True), heard("receipt", "b", TAKEN))
    assert list(state.outbox.items) == ["a"] and not kinds(effects, Dequeue)
    state, effects = settled(state, "a")
    assert not state.outbox.items and kinds(effects, Dequeue) == [Dequeue("a")]


def test_the_sequence_counts_what_was_ever_queued_and_a_start_is_counted_durably() -> None:
    shelf = Shelf()
    for start in range(1, 4):
        state = agent(gateway_settings(), shelf)
        state, effects = queued(state, *((f"{start}.{number}", item(f"{number}")) for number in range(5)))
        shelf.commit(effects)
        assert (status(state).starts, status(state).sequence) == (start, 5 * start)
        assert [one.key for one in kinds(effects, Save)] == ["sequence"] * 5
    named = {status(state).store_id, status(agent(gateway_settings(), Shelf())).store_id}
    assert len(named) == 1 and len(named.pop()) == 32
    other = Shelf()
    other.blobs["secret"] = b"another secret"
    assert status(agent(gateway_settings(), other)).store_id != status(state).store_id
    assert state.context.secret.hex() not in Status.from_bytes(status(state).to_bytes()).model_dump_json()


@pytest.mark.parametrize("accepted", [True, False])
def test_the_next_update_says_which_was_counted_last(accepted: bool) -> None:
    waiting = {"awaited": "digest", "answered": ("run", 3), "is_counted": False, "last_counted": "before"}
    state = changed(commissioned(), "training", **waiting)
    state, _ = queued(state, ("digest", item("digest", UPDATE_PRIORITY)))
    state, _ = after(
        state, heard("receipt", "digest", Receipt(accepted=accepted, reason="" if accepted else "no").to_bytes())
    )
    assert state.training.last_counted == ("digest" if accepted else "before")
