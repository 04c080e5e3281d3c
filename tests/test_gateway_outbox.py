"""The outbox: alarms first, again when due, in order, bounded, and never a late listener told of the past."""

from __future__ import annotations

from dataclasses import replace

import pytest

from config.messages import Alarm, Receipt, Want
from gateway_agent import alarms, outbox
from gateway_agent.events import SENSOR_PRIORITY, UPDATE_PRIORITY, Connection, Item, Publish, Settle
from gateway_agent.state import status
from tests.agents import ME, TICK, after, commissioned, heard, kinds, sent
from tests.sites import NS, T0_NS, topic


def test_the_outbox_sends_alarms_first_again_when_due_and_everything_after_an_outage() -> None:
    state, _ = after(commissioned(), Connection(False))
    for name, priority in (("u" * 64, 1), ("first.raised", 0), ("second.raised", 0)):
        item = Item(topic(ME, "alarm", "anomaly"), (name.encode(),), retain=False, priority=priority)
        state, effects = outbox.queue(state, name, item)
        assert not kinds(effects, Publish)
    order = [b"first.raised", b"second.raised", b"u" * 64]
    state, effects = after(state, Connection(True))
    assert [one.payload for one in sent(effects, "alarm")] == order
    assert sent(effects, "status")[0].retain
    assert not sent(after(state, TICK, now_ns=T0_NS + 29 * NS)[1], "alarm")
    assert [one.payload for one in sent(after(state, Connection(False), Connection(True))[1], "alarm")] == order
    assert [one.payload for one in sent(after(state, TICK, now_ns=T0_NS + 30 * NS)[1], "alarm")] == order


def test_the_outbox_is_bounded_and_what_goes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "ITEMS_MAX", 4)
    state = replace(commissioned(), connected=False)
    names = ["0.raised", "update", "sensor", "1.raised", "2.raised", "3.raised", "4.raised"]
    less = {"update": UPDATE_PRIORITY, "sensor": SENSOR_PRIORITY}
    given_up: list[str] = []
    for name in names:
        item = Item(topic(ME, "alarm", "anomaly"), (b"x",), retain=True, priority=less.get(name, 0))
        state, effects = outbox.queue(state, name, item)
        given_up += [effect.name for effect in kinds(effects, Settle)]
    assert given_up == ["sensor", "0.raised", "1.raised"]  # an update stays: the next one depends on its receipt
    assert list(state.outbox) == ["update", *names[4:]] and status(state).dropped == {"outbox": 3}


def test_a_request_to_send_again_is_answered_once_however_often_it_names_a_chunk() -> None:
    state, _ = outbox.queue(commissioned(), "update", Item(topic(ME, "update", "u"), (b"a", b"b", b"c"), False, 1))
    for missing, expected in (((2, 0, 2, 2, 99), [b"a", b"c"]), ((), [b"a", b"b", b"c"])):
        _, effects = after(state, heard("resend", "update", Want(missing=missing).to_bytes()))
        assert [one.payload for one in sent(effects, "update")] == expected
    assert after(state, heard("resend", "unknown", Want().to_bytes()))[1] == []


def test_an_old_change_of_an_alarm_sent_again_is_never_what_late_listeners_see() -> None:
    """Raised and cleared wait for their receipts; the alarm is raised anew; then the old ones are due again."""
    state = commissioned()
    for onset, well in ((1, True), (2, False)):
        state, raised = alarms.sensor(state, "faulty-load", "stuck", onset)
        assert [one.retain for one in sent(raised, "alarm")] == [True]
        if well:
            state, cleared = alarms.sensor_well(state, "faulty-load", onset)
            assert [one.retain for one in sent(cleared, "alarm")] == [True]
    state, effects = after(state, TICK, now_ns=T0_NS + 60 * NS)
    again = [(Alarm.from_bytes(one.payload).onset_ns, one.retain) for one in sent(effects, "alarm")]
    assert again == [(1, False), (1, False), (2, True)]
    name = Alarm.from_bytes(sent(effects, "alarm")[-1].payload).item
    state, _ = after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))
    state, effects = after(state, TICK, now_ns=T0_NS + 120 * NS)
    assert [one.retain for one in sent(effects, "alarm")] == [False, False]
    state, _ = alarms.sensor_well(state, "faulty-load", 3)
    state, effects = after(state, TICK, now_ns=T0_NS + 180 * NS)
    assert [one.retain for one in sent(effects, "alarm")][-1] is True
