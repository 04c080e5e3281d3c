"""Goal: the state of an alarm follows from what was done about it and nothing else, and nobody is called in vain, nor
left uncalled.

Method: a service with its store against an oracle that keeps a few plain facts of each alarm; hypothesis says what
gateways and operators do, when the clock moves on and when the power goes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fedgate.cloud_aggregator.alarms import actions
from fedgate.cloud_aggregator.alarms.workflow import (
    STATES,
    WINDOWS_KEPT,
    AlarmCondition,
    AlarmKey,
    Workflow,
    find_state,
    fold,
)
from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    Answered,
    Durable,
    Effect,
    Enqueue,
    Ordered,
    Posted,
    RecordAlarm,
    Send,
    Tick,
)
from fedgate.cloud_aggregator.state import State
from fedgate.cloud_aggregator.storage.history_table import EVENTS_BETWEEN
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.models.time_units import DAY_NS, HOUR_S, NS
from tests.cloud_aggregator.alarms.test_fleet import alarm, site, status
from tests.cloud_aggregator.test_aggregator_machine import after
from tests.support.sites import T0_NS, aggregator_settings

WEBHOOK = {"url": "http://127.0.0.1:1/"}
ESCALATION = {"after_s": 600.0, "severity": "major"}
SECONDS = st.integers(1, 4_000)


def escalating(**tables: Any) -> State:
    """Return a site of one gateway with a webhook and an escalation."""
    state = site(["a"], enabled=False)
    chosen = aggregator_settings(webhook=WEBHOOK, escalation=ESCALATION, fleet={"enabled": False}, **tables)
    return replace(state, context=replace(state.context, settings=chosen))


def act(state: State, action: str, at_s: float, **body: Any) -> tuple[State, list[Effect]]:
    return after(state, Ordered(1, "alarm", {"action": action, "who": "ann", **body}), at_s=at_s)


def answer(effects: list[Effect]) -> Answered:
    (found,) = (one for one in effects if isinstance(one, Answered))
    return found


def posted(effects: list[Effect]) -> list[tuple[str, bool, bool | None]]:
    """Return of each post that was queued the state of its alarm, whether it stands, and if it is an escalation."""
    bodies = [json.loads(one.item.body) for one in effects if isinstance(one, Enqueue)]
    return [(body["alarm"]["state"], body["active"], body.get("escalated")) for body in bodies]


def key_of(onset_s: float) -> AlarmKey:
    return AlarmKey("a", f"a.anomaly.{T0_NS + round(onset_s * NS)}")


def name_of(onset_s: float) -> str:
    return "/".join(key_of(onset_s))


def state_of(state: State, onset_s: float = 0.0) -> str:
    key = key_of(onset_s)
    found = actions.find_alarm(state.alarms, key)
    assert found is not None
    return find_state(state.alarms.workflow, key, found, state.context.now_ns)


def test_an_alarm_goes_from_its_raising_to_its_close() -> None:
    state, effects = after(escalating(), alarm("a", severity="major"))
    assert state_of(state) == "unacknowledged" and posted(effects) == [("raised", True, None)]
    state, effects = act(state, "acknowledge", 9, alarms=[name_of(0)], text="seen")
    assert state_of(state) == "acknowledged" and answer(effects).problem == ""
    again, effects = act(state, "acknowledge", 10, alarms=[name_of(0)])
    assert "was acknowledged by ann already" in answer(effects).text
    assert again.alarms.workflow == state.alarms.workflow and not [
        one for one in effects if isinstance(one, AlarmEvent)
    ]
    state, effects = after(again, alarm("a", "cleared"))
    assert state_of(state) == "normal" and posted(effects) == [("cleared", False, None)]
    state, _ = after(state, alarm("a", onset_s=60))  # another alarm of the cause, of which nobody knows
    assert (state_of(state), state_of(state, 60)) == ("normal", "unacknowledged")
    state, _ = after(state, alarm("a", "cleared", 60))
    assert state_of(state, 60) == "returned-unacknowledged"
    state, _ = act(state, "acknowledge", 70, alarms=[name_of(60)])
    assert state_of(state, 60) == "normal"


def test_a_shelved_alarm_asks_anew_when_it_ends_and_stands_and_is_normal_when_it_is_over() -> None:
    state, _ = after(escalating(), alarm("a"))
    state, _ = act(state, "acknowledge", 1, alarms=[name_of(0)])
    state, effects = act(state, "shelve", 2, alarms=[name_of(0)], for_s=HOUR_S)
    assert state_of(state) == "shelved" and "shelved for 1 h" in answer(effects).text
    assert posted(after(state, Tick(), at_s=3_601)[1]) == []
    stands, effects = after(state, Tick(), at_s=3_602)
    assert state_of(stands) == "unacknowledged" and posted(effects) == [("raised", True, False)]
    assert posted(after(stands, Tick(), at_s=3_700)[1]) == []
    over, effects = after(state, alarm("a", "cleared"), at_s=100)  # the receiver was told that it stands
    assert state_of(over) == "normal" and posted(effects) == [("cleared", False, None)]
    assert posted(after(over, Tick(), at_s=4_000)[1]) == []
    early, _ = act(state, "unshelve", 50, alarms=[name_of(0)])
    assert posted(after(early, Tick(), at_s=60)[1]) == [("raised", True, False)]
    seen, _ = act(state, "acknowledge", 50, alarms=[name_of(0)])
    seen, effects = after(seen, Tick(), at_s=3_602)
    assert state_of(seen) == "acknowledged" and posted(effects) == []
    for state, problem in ((over, "it is over; only an alarm that stands"), (early, "expected 1 minute to 7 days")):
        refused = answer(act(state, "shelve", 200, alarms=[name_of(0)], for_s=1 if state is early else 60)[1])
        assert problem in refused.problem


def test_what_begins_within_maintenance_calls_nobody_until_that_is_over() -> None:
    state = escalating()
    window = {"gateway": "a", "from_s": T0_NS / NS, "to_s": T0_NS / NS + 500, "text": "new bearings"}
    state, effects = act(state, "window", 0, **window)
    assert answer(effects).text == "maintenance window 1 of a"
    state, effects = after(state, alarm("a", onset_s=10), at_s=20)
    assert state_of(state, 10) == "suppressed" and posted(effects) == []
    over, effects = after(state, alarm("a", "cleared", 10), at_s=30)
    assert state_of(over, 10) == "normal" and posted(effects) == []
    stands, effects = after(state, Tick(), at_s=501)
    assert state_of(stands, 10) == "unacknowledged" and posted(effects) == [("raised", True, False)]
    ended, effects = act(state, "window-end", 100, window=1)
    assert answer(effects).text == "maintenance window 1 ended" and state_of(ended, 10) == "unacknowledged"
    assert "is over already" in answer(act(ended, "window-end", 101, window=1)[1]).text
    _, effects = after(ended, alarm("a", "cleared", 10), alarm("a", onset_s=120), at_s=121)
    assert posted(effects)[-1] == ("raised", True, None)


def test_the_end_of_what_was_acknowledged_within_maintenance_calls_nobody_either() -> None:
    window = {"gateway": "a", "from_s": T0_NS / NS, "to_s": T0_NS / NS + 500, "text": "new bearings"}
    state, _ = after(act(escalating(), "window", 0, **window)[0], alarm("a", onset_s=10), at_s=20)
    state, _ = act(state, "acknowledge", 30, alarms=[name_of(10)])
    state, effects = after(state, Tick(), at_s=501)
    assert state_of(state, 10) == "acknowledged" and posted(effects) == []
    assert posted(after(state, alarm("a", "cleared", 10), at_s=600)[1]) == []


def test_a_clock_that_was_ahead_leaves_no_mask_when_it_is_set_right() -> None:
    """As of a board whose clock has local time: what was masked by it calls as soon as the time is right."""
    key, standing, later = AlarmKey("a", "x"), AlarmCondition("anomaly", T0_NS, True), T0_NS + 400 * DAY_NS
    shelved = fold([AlarmEvent("a", "x", "", later, "ann", "shelve", {"until_ns": later + DAY_NS})])
    assert find_state(shelved, key, standing, later) == "shelved"
    assert find_state(shelved, key, standing, T0_NS) == "unacknowledged"
    body = {"window": 1, "from_ns": T0_NS, "to_ns": later + DAY_NS, "text": "w"}
    added = AlarmEvent("a", "", "", later, "ann", "window", body)
    ended = AlarmEvent("a", "", "", later + 1, "ann", "window-end", {"window": 1, "to_ns": T0_NS + 5})
    assert find_state(fold([added]), key, standing, T0_NS + 6) == "suppressed"
    assert find_state(fold([added, ended]), key, standing, T0_NS + 6) == "unacknowledged"
    ahead = fold([replace(added, body=body | {"from_ns": later})])
    assert find_state(ahead, key, standing._replace(onset_ns=later), T0_NS) == "unacknowledged"


def window_event(number: int, from_ns: int, to_ns: int, t_ns: int = T0_NS, gateway: str = "a") -> AlarmEvent:
    body = {"window": number, "from_ns": from_ns, "to_ns": to_ns, "text": "w"}
    return AlarmEvent(gateway, "", "", t_ns, "ann", "window", body)


def test_a_window_at_hand_is_kept_whatever_a_clock_said_when_the_next_was_announced() -> None:
    standing, year = AlarmCondition("anomaly", T0_NS, True), 366 * DAY_NS
    at_hand = window_event(1, T0_NS, T0_NS + DAY_NS)
    ahead = [window_event(2 + n, T0_NS + year, T0_NS + year + DAY_NS, T0_NS + year) for n in range(WINDOWS_KEPT - 1)]
    assert find_state(fold([at_hand, *ahead]), AlarmKey("a", "x"), standing, T0_NS + 1) == "suppressed"
    over = [window_event(2 + n, T0_NS - DAY_NS, T0_NS - n) for n in range(2 * WINDOWS_KEPT)]
    known = fold([at_hand, *over])
    assert len(known.windows) == WINDOWS_KEPT and known.windows[0].number == 1
    assert find_state(known, AlarmKey("a", "x"), standing, T0_NS + 1) == "suppressed"
    assert fold(over[7:], fold([at_hand, *over[:7]])) == known


def test_windows_that_overlap_or_adjoin_prolong_one_another() -> None:
    key, standing = AlarmKey("a", "x"), AlarmCondition("anomaly", T0_NS + 5, True)
    first, second = window_event(1, T0_NS, T0_NS + 10), window_event(2, T0_NS + 10, T0_NS + 20, gateway="all")
    state = partial(find_state, fold([first, second, window_event(3, T0_NS + 15, T0_NS + 30)]), key)
    assert [state(standing, T0_NS + at) for at in (9, 10, 19, 29)] == ["suppressed"] * 4
    assert state(standing, T0_NS + 30) == "unacknowledged"
    assert state(standing._replace(onset_ns=T0_NS - 1), T0_NS + 9) == "unacknowledged"
    apart = fold([first, window_event(2, T0_NS + 11, T0_NS + 20)])
    assert find_state(apart, key, standing, T0_NS + 12) == "unacknowledged"
    others = fold([first, window_event(2, T0_NS + 10, T0_NS + 20, gateway="b")])
    assert find_state(others, key, standing, T0_NS + 12) == "unacknowledged"
    taken_back = AlarmEvent("all", "", "", T0_NS, "ann", "window-end", {"window": 2, "to_ns": T0_NS - 5})
    assert find_state(fold([first, second, taken_back]), key, standing, T0_NS + 12) == "unacknowledged"
    extended = act(escalating(), "window", 0, gateway="a", from_s=T0_NS / NS, to_s=T0_NS / NS + 500, text="w")[0]
    extended, _ = after(extended, alarm("a", onset_s=10), at_s=20)
    again = {"from_s": T0_NS / NS + 400, "to_s": T0_NS / NS + 900, "text": "not done yet"}
    extended, _ = act(extended, "window", 450, gateway="a", **again)
    extended, effects = after(extended, Tick(), at_s=600)
    assert state_of(extended, 10) == "suppressed" and posted(effects) == []
    assert posted(after(extended, Tick(), at_s=901)[1]) == [("raised", True, False)]


@pytest.mark.soak
def test_a_mask_that_comes_and_goes_leaves_a_bounded_table_and_the_same_state(tmp_path: Path) -> None:
    store, cause = Store(tmp_path / "aggregator.db"), {"gateway": "a", "cause": "anomaly"}
    state, effects = after(escalating(), alarm("a", severity="major"))
    counts = list[int]()
    for number in range(600):
        store.commit([one for one in effects if isinstance(one, AlarmEvent | RecordAlarm)])
        at_s = 1_000.0 * number
        state, done = act(state, "in-service" if number % 2 else "out-of-service", at_s, **cause)
        state, effects = after(state, Tick(), at_s=at_s + 6)
        state, escalated = after(state, Tick(), at_s=at_s + 900)
        effects = [*done, *effects, *escalated]
        counts.append(len(store.read_alarm_events()))
    assert max(counts[300:]) <= max(counts[:300]) + EVENTS_BETWEEN < 400
    assert store.read_alarms().workflow.handled != {}
    store.commit([one for one in effects if isinstance(one, AlarmEvent | RecordAlarm)])
    assert store.read_alarms().workflow == state.alarms.workflow
    noted, effects = act(state, "note", 600_001, alarms=[name_of(0)], text="the mask has used up no operator's events")
    assert not answer(effects).problem and noted.alarms.workflow.handled[key_of(0)].events == 1
    store.close()


def test_what_is_in_the_store_alone_is_acknowledged_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "aggregator.db")
    state, effects = after(escalating(), alarm("a"), alarm("a", "cleared"))
    forgotten = replace(state.alarms, book={})
    state = replace(state, alarms=forgotten)
    store.commit([one for one in effects if isinstance(one, Durable)])
    answers = list[str]()
    for who in ("ann", "ben", "cem"):
        body = {"action": "acknowledge", "who": who, "alarms": [name_of(0)]}
        order = Ordered(1, "alarm", body, stored={name_of(0): tuple(store.read_alarm_events(gateway="a"))})
        state, effects = after(state, order, at_s=9)
        store.commit([one for one in effects if isinstance(one, AlarmEvent)])
        answers.append(answer(effects).text.split(": ")[1])
        state = replace(state, alarms=actions.forget_old(state.alarms)) if who == "ben" else state
    assert answers == ["acknowledged; it is over, and normal", *["was acknowledged by ann already"] * 2]
    assert [one.who for one in store.read_alarm_events()] == ["ann"]
    store.close()


def test_a_cause_that_is_out_of_service_calls_nobody() -> None:
    state, _ = after(escalating(), alarm("a", severity="critical"))
    cause = {"gateway": "a", "cause": "anomaly"}
    state, _ = act(state, "out-of-service", 1, **cause)
    assert state_of(state) == "out-of-service" and posted(after(state, Tick(), at_s=5_000)[1]) == []
    state, _ = after(state, Tick(), at_s=10)
    state, effects = after(state, alarm("a", onset_s=60), at_s=61)
    assert posted(effects) == [("cleared", False, None)]  # of the one before, of which somebody was told
    state, effects = act(state, "in-service", 70, **cause)
    assert "in-service" in answer(effects).text and posted(after(state, Tick(), at_s=80)[1]) == [
        ("raised", True, False)
    ]
    assert "is in-service already" in answer(act(state, "in-service", 90, **cause)[1]).text


def test_what_nobody_acknowledges_escalates_once_whatever_restarts_and_whatever_the_clock_is_set_to() -> None:
    state, _ = after(escalating(), alarm("a", severity="major"), Tick(), at_s=0)
    assert posted(after(state, Tick(), at_s=599)[1]) == []
    assert posted(after(state, alarm("a", "cleared"), Tick(), at_s=700)[1]) == [("cleared", False, None)]
    clock = replace(state, context=replace(state.context, anchor_ns=state.context.anchor_ns + 10**6 * NS))
    assert posted(after(clock, Tick(), at_s=599)[1]) == []  # set forward: the pause is by the uptime
    restarted = replace(state, alarms=replace(state.alarms, unacknowledged_ns={}, looked_ns=None))
    for one in (state, restarted):
        told, effects = after(one, Tick(), at_s=601)
        assert posted(effects) == [("raised", True, True)]
        assert [event.kind for event in effects if isinstance(event, AlarmEvent)] == ["escalate"]
        again = replace(told, alarms=replace(told.alarms, unacknowledged_ns={}, looked_ns=None))
        assert posted(after(again, Tick(), at_s=9_000)[1]) == []
    seen, _ = act(state, "acknowledge", 100, alarms=[name_of(0)])
    assert posted(after(seen, Tick(), at_s=5_000)[1]) == []
    mild, _ = after(escalating(), alarm("a", severity="warning"), Tick(), at_s=0)
    assert posted(after(mild, Tick(), at_s=5_000)[1]) == []


WRONG = [
    ({"action": "burn"}, "action 'burn' given; expected one of acknowledge"),
    ({"action": "acknowledge", "who": ""}, "who: expected 1 to 64 printable"),
    ({"action": "acknowledge", "who": "a\nb"}, "who: expected 1 to 64 printable"),
    ({"action": "acknowledge", "alarms": []}, "expected 1 to 100 names"),
    ({"action": "acknowledge", "alarms": ["a/b"] * 101}, "expected 1 to 100 names"),
    ({"action": "acknowledge", "alarms": [3]}, "expected 1 to 100 names"),
    ({"action": "acknowledge", "alarms": ["a/nothing"]}, "a/nothing: there is no such alarm"),
    ({"action": "note"}, "a note needs one"),
    ({"action": "note", "text": "x" * 1_001}, "text: expected at most 1000 printable characters"),
    ({"action": "note", "text": "\x1b[2J"}, "text: expected at most 1000 printable characters"),
    ({"action": "note", "text": "\udcff"}, "text: expected at most 1000 printable characters"),
    ({"action": "label", "label": "fine"}, "label: expected one of damage, work, sensor, weather, false"),
    ({"action": "assign", "to": 4}, "to: expected at most 64"),
    ({"action": "shelve", "for_s": 8 * 86_400}, "expected 1 minute to 7 days"),
    ({"action": "shelve", "for_s": "long"}, "for_s: expected a number"),
    ({"action": "shelve", "for_s": float("nan")}, "for_s: expected a number"),
    ({"action": "out-of-service", "gateway": "a"}, "cause: expected 1 to 64"),
    ({"action": "window", "gateway": "a", "from_s": 0, "to_s": 1, "text": "w"}, "to: expected a time to come"),
    ({"action": "window", "gateway": "a", "from_s": 0, "to_s": 9e9, "text": "w"}, "a window of at most 31 days"),
    (
        {"action": "window", "gateway": "a/b", "from_s": 0, "to_s": 9e9, "text": "w"},
        "gateway: 'a/b' given; expected one of this site (a)",
    ),
    ({"action": "window", "gateway": "a", "from_s": 0, "to_s": float("inf"), "text": "w"}, "to_s: expected a number"),
    ({"action": "window-end", "window": 7}, "there is no maintenance window 7"),
]


@pytest.mark.parametrize(("body", "words"), WRONG, ids=lambda one: str(one)[:60])
def test_an_action_that_cannot_be_is_refused_with_what_was_expected(body: dict[str, Any], words: str) -> None:
    state, _ = after(escalating(), alarm("a"))
    told = {"alarms": [name_of(0)], "who": "ann", "text": "", **body}
    after_it, effects = after(state, Ordered(1, "alarm", told))
    assert words in answer(effects).problem and after_it.alarms == state.alarms


def test_an_alarm_has_so_many_events_and_no_more() -> None:
    state, _ = after(escalating(), alarm("a"))
    for number in range(actions.EVENTS_MAX):
        state, effects = act(state, "note", 1, alarms=[name_of(0)], text=f"{number}")
        assert not answer(effects).problem
    assert "200 are the most" in answer(act(state, "note", 1, alarms=[name_of(0)], text="x")[1]).problem
    state, effects = act(state, "acknowledge", 2, alarms=[name_of(0)])
    assert answer(effects).problem == "" and state_of(state) == "acknowledged"


@dataclass
class Fact:
    """What an oracle knows of one alarm."""

    onset_s: float
    is_active: bool = True
    is_seen: bool = False
    shelved_until_s: float = 0.0
    is_owed: bool = False  # a call, since it was masked
    is_silent: bool = False  # nobody knows of it


class Site(RuleBasedStateMachine):
    """One gateway with one cause, another that has none, an operator, and power that goes."""

    def __init__(self) -> None:
        super().__init__()
        self.state, _ = after(escalating(), status("other"))
        self.events = list[AlarmEvent]()
        self.facts = list[Fact]()
        self.windows = list[list[float]]()
        self.now_s = 0.0
        self.is_out = False
        self.taken = list[tuple[str, bool, bool | None]]()

    def do(self, *events: Any) -> list[Effect]:
        self.state, effects = after(self.state, *events, at_s=self.now_s)
        self.events += [one for one in effects if isinstance(one, AlarmEvent)]
        sent = [one.post.id for one in effects if isinstance(one, Send)]
        while sent:  # the receiver takes all at once
            self.state, more = after(self.state, Posted(sent[0]), at_s=self.now_s)
            sent = [one.post.id for one in more if isinstance(one, Send)]
        self.taken = posted(effects)
        return effects

    def act(self, action: str, **body: Any) -> Answered:
        return answer(self.do(Ordered(1, "alarm", {"action": action, "who": "ann", **body})))

    def mask_of(self, fact: Fact) -> str:
        if self.is_out:
            return "out-of-service"
        moments = [fact.onset_s + second for second in range(math.floor(self.now_s - fact.onset_s) + 1)]
        if all(any(begin <= moment < end for begin, end in self.windows) for moment in moments):
            return "suppressed"  # at every second since it began somebody works there
        return "shelved" if self.now_s < fact.shelved_until_s else ""

    def expected(self, fact: Fact) -> str:
        if not fact.is_active:
            return "normal" if fact.is_seen or fact.is_owed else "returned-unacknowledged"
        return self.mask_of(fact) or ("acknowledged" if fact.is_seen else "unacknowledged")

    @property
    def last(self) -> Fact | None:
        return self.facts[-1] if self.facts else None

    @rule()
    def raise_one(self) -> None:
        if self.last is None or not self.last.is_active:
            self.now_s += 1
            self.facts.append(Fact(self.now_s))
            fact = self.facts[-1]
            self.do(alarm("a", onset_s=self.now_s))
            fact.is_owed = fact.is_silent = bool(self.mask_of(fact))
            assert self.taken == ([] if fact.is_silent else [("raised", True, None)])

    @rule()
    def clear_it(self) -> None:
        if self.last is not None and self.last.is_active:
            self.look()
            self.last.is_active = False
            self.do(alarm("a", "cleared", self.last.onset_s))
            assert self.taken == ([] if self.last.is_silent else [("cleared", False, None)])

    @rule(back=st.integers(1, 3))
    def say_it_again(self, back: int) -> None:
        for fact in self.facts[-back:]:
            self.do(alarm("a", "raised" if fact.is_active else "cleared", fact.onset_s))
            assert self.taken == []

    @rule(back=st.integers(1, 3))
    def acknowledge(self, back: int) -> None:
        for fact in self.facts[-back:]:
            assert not self.act("acknowledge", alarms=[name_of(fact.onset_s)]).problem
            fact.is_seen = True

    @rule(for_s=SECONDS)
    def shelve(self, for_s: int) -> None:
        if self.last is not None:
            done = self.act("shelve", alarms=[name_of(self.last.onset_s)], for_s=for_s)
            assert bool(done.problem) == (for_s < 60 or not self.last.is_active)
            if not done.problem:
                self.last.shelved_until_s, self.last.is_seen, self.last.is_owed = self.now_s + for_s, False, True

    @rule()
    def unshelve(self) -> None:
        if self.last is not None:
            self.act("unshelve", alarms=[name_of(self.last.onset_s)])
            self.last.shelved_until_s = 0.0

    @rule()
    def change_service(self) -> None:
        self.is_out = not self.is_out
        action = "out-of-service" if self.is_out else "in-service"
        assert not self.act(action, gateway="a", cause="anomaly").problem
        self.look()

    @rule(ahead_s=st.integers(0, 500), for_s=SECONDS, whose=st.sampled_from(["a", "all", "other"]))
    def maintain(self, ahead_s: int, for_s: int, whose: str) -> None:
        begin = self.now_s + ahead_s
        times = {"from_s": T0_NS // NS + begin, "to_s": T0_NS // NS + begin + for_s}
        assert not self.act("window", gateway=whose, text="why", **times).problem
        if whose != "other":
            self.windows.append([begin, begin + for_s])
        self.look()

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: int) -> None:
        self.now_s += seconds
        self.look()

    @rule()
    def cut_power(self) -> None:
        """What is known after it is what the store has: the events in their order."""
        kept = replace(self.state.alarms, workflow=fold(self.events), unacknowledged_ns={}, looked_ns=None)
        assert actions.forget_old(kept).workflow == actions.forget_old(self.state.alarms).workflow
        self.state = replace(self.state, alarms=kept)

    def look(self) -> None:
        """Let the service look, and see whom it calls."""
        self.state = replace(self.state, alarms=replace(self.state.alarms, looked_ns=None))
        self.do(Tick())
        fact, expected = self.last, list[tuple[str, bool, bool | None]]()
        if fact is not None and fact.is_active:
            if self.mask_of(fact):
                fact.is_owed = True
            elif fact.is_owed:
                fact.is_owed, fact.is_silent = False, fact.is_silent and fact.is_seen
                expected = [] if fact.is_seen else [("raised", True, False)]
        assert self.taken == expected

    @invariant()
    def states_are_those_of_the_oracle(self) -> None:
        for fact in self.facts[-4:]:
            assert state_of(self.state, fact.onset_s) == self.expected(fact)


@pytest.mark.soak
def test_states_and_calls_are_those_of_the_oracle() -> None:
    run_state_machine_as_test(Site, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


def test_every_state_has_a_name_and_none_hangs_on_anything_else() -> None:
    key, found = key_of(0), set[str]()
    out = AlarmEvent("a", "", "anomaly", 0, "ann", "out-of-service")
    window = AlarmEvent("a", "", "", 0, "ann", "window", {"window": 1, "from_ns": 0, "to_ns": 9, "text": ""})
    seen = AlarmEvent(*key, "", 0, "ann", "acknowledge")
    shelved = AlarmEvent(*key, "", 0, "ann", "shelve", {"until_ns": 9})
    for events in ([], [out], [window], [seen], [shelved]):
        for is_active in (True, False):
            found.add(find_state(fold(events), key, AlarmCondition("anomaly", 1, is_active), 5))
    assert found == set(STATES)
    assert find_state(Workflow(), key, AlarmCondition("anomaly", 1, True), 5) == "unacknowledged"
