"""What a simulated world promises of what is done about alarms: it is done once, stays done, and nobody else does it.

Each order that was answered as done left the events that it asked for, in the commit of its answer; each that was
refused left none. The log of events only grows, whatever happens to the power. What the aggregator says of an alarm
follows from that log and from the alarms alone: no gateway says anything about another's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedgate.cloud_aggregator import events
from fedgate.cloud_aggregator.alarms.actions import find_alarm
from fedgate.cloud_aggregator.alarms.workflow import AlarmKey, Handled, find_state
from fedgate.cloud_aggregator.commands.alarms.alarms import read_rows
from fedgate.cloud_aggregator.state import State
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.firmware_sim.world.promises.alarms.notices import Notices
from fedgate.firmware_sim.world.promises.alarms.states import BY_SERVICE, Key, States
from fedgate.models.time_units import NS

Wanted = Literal["done", "refused", "either"]
SITE_WIDE = ("out-of-service", "in-service", "window", "window-end")  # actions that are about no alarm
SET_NS = 1_577_836_800 * NS  # a clock that says less was never set, and nobody can say until when
ROW_BYTES = 256  # that a database adds to a row


@dataclass
class Order:
    """What an operator asked for, and what is to become of it."""

    body: Mapping[str, Any]
    wanted: Wanted


class AlarmLog:
    """The orders about alarms of a world, the events that they left, and those who were told."""

    def __init__(self, violate: Callable[[str], None], elapsed_s: Callable[[], float]) -> None:
        self._violate, self._elapsed_s = violate, elapsed_s
        self.states = States()
        self.notices = Notices(violate, elapsed_s, self.states)
        self._orders: dict[int, Order] = {}
        self._answers: dict[int, tuple[str, str]] = {}
        self._rows: list[tuple[Any, ...]] = []  # of the log, as they are to be in the store
        self._started_s = 0.0  # when the aggregator was started last
        self.counts = {"actions": 0, "refused": 0, "event_bytes": 0}

    def ordered(self, number: int, body: Mapping[str, Any], wanted: Wanted) -> None:
        """Take note of an order that lies in the aggregator's store."""
        self._orders[number] = Order(body, wanted)

    def answer_read(self, number: int, answer: tuple[str, str] | None) -> None:
        """See that whoever asks for an answer gets what was committed; None where there is none yet."""
        if answer != self._answers.get(number):
            self._violate(f"order {number} is answered with {answer}, committed was {self._answers.get(number)}")

    def committed(self, effects: Sequence[Any], now_ns: int) -> None:
        """Take note of what the aggregator's store holds from now on; `now_ns` is the time of day of the step."""
        asked: list[tuple[Any, ...]] = []  # by orders of this commit, and not yet seen
        self.notices.begin()
        for effect in effects:
            match effect:
                case events.RecordAlarm() | events.RecordFleet():
                    if self.states.note_alarm(effect, self._elapsed_s()):
                        self.notices.note_change(effect, [one for one in effects if one is not effect], now_ns)
                case events.Answered(number=number) if number in self._orders:
                    asked += self._answered(effect, now_ns)
                case events.AlarmEvent():
                    self._event(effect, asked, now_ns)
        for one in asked:
            self._violate(f"{one[4]} of {one[0]}/{one[1]} was answered as done, and left no event")
        self.notices.end(effects)

    def _event(self, event: events.AlarmEvent, asked: list[tuple[Any, ...]], now_ns: int) -> None:
        self._rows.append((event.gateway, event.alarm, event.cause, event.t_ns, event.who, event.kind, event.body))
        self.counts["event_bytes"] += ROW_BYTES + len(json.dumps(event.body))
        if event.who == "" and event.kind in BY_SERVICE:
            self.notices.note_event(event, now_ns)
        elif (found := _of_event(event)) in asked:
            asked.remove(found)
        else:
            self._violate(f"{event.kind} of {event.gateway}/{event.alarm} by {event.who!r}, which nobody ordered")
        self.states.note_event(event, self._elapsed_s())

    def _answered(self, answer: events.Answered, now_ns: int) -> list[tuple[Any, ...]]:
        """Return the events that an order is to leave with its answer."""
        order, is_refused = self._orders[answer.number], answer.text == "refused"
        self._answers[answer.number] = (answer.text, answer.problem)
        wanted = self._find_wanted(order, now_ns)
        if wanted != "either" and is_refused != (wanted == "refused"):
            self._violate(f"order {answer.number} was to be {wanted}: {order.body}: {answer.text} {answer.problem}")
        self.counts["refused" if is_refused else "actions"] += 1
        return [] if is_refused else self._expect(order.body, now_ns)

    def _find_wanted(self, order: Order, now_ns: int) -> Wanted:
        if order.wanted == "refused" or order.body["action"] not in ("shelve", "window"):
            return order.wanted
        if now_ns < SET_NS:
            return "refused"
        if order.body["action"] == "window":
            return "either"  # by a clock that may have been set meanwhile
        return "done" if all(self.states.alarms[key].is_active for key in _keys(order.body)) else "refused"

    def _expect(self, body: Mapping[str, Any], now_ns: int) -> list[tuple[Any, ...]]:
        """Return the events of an order that is done, as `_of_event` does."""
        action, who, text = body["action"], body["who"], body.get("text", "")
        match action:
            case "out-of-service" | "in-service":
                is_so = ((body["gateway"], body["cause"]) in self.states.out) == (action == "out-of-service")
                return [] if is_so else [(body["gateway"], "", body["cause"], who, action, text, None)]
            case "window":
                times = (round(body["from_s"]), round(body["to_s"]))
                return [(body["gateway"], "", "", who, action, text, times)]
            case "window-end":
                known = self.states.spans[body["window"]]
                is_over = known.to_ns <= now_ns
                return [] if is_over else [(known.gateway, "", "", who, action, "", body["window"])]
        detail = body.get({"label": "label", "assign": "to"}.get(action, ""))
        changed = [key for key in _keys(body) if self.states.would_change(key, body, now_ns)]
        return [(*key, "", who, action, text, detail) for key in changed]

    def ticked(self, state: State, now_ns: int) -> None:
        """Compare, after the service has done what time brings, what it says of alarms with what is so."""
        self._compare(state, now_ns)
        self.notices.ticked(now_ns, self._started_s)

    def _compare(self, state: State, now_ns: int) -> None:
        for key in self.states.alarms:
            standing = find_alarm(state.alarms, AlarmKey(*key))
            if standing is None or key.gateway == self.notices.hostile:
                continue
            handled = state.alarms.workflow.handled.get(AlarmKey(*key), Handled())
            state_found = find_state(state.alarms.workflow, AlarmKey(*key), standing, now_ns)
            self._see(
                key, "is said to be", (state_found, handled.label, handled.assignee, handled.acknowledged_by), now_ns
            )

    def _see(self, key: Key, how: str, found: tuple[str, str, str, str], now_ns: int) -> None:
        """See that state, label, assignee and who acknowledged an alarm are what they are."""
        one = self.states.alarms[key]
        expected = (self.states.state(key, now_ns), one.label, one.assignee, one.acknowledged_by or "")
        if found != expected:
            self._violate(f"{key.gateway}/{key.alarm} {how} {found}, and is {expected}")

    def opened(self, store: Store) -> None:
        """See that a restart finds the log as it was written, and all that waits to be told."""
        self._started_s = self._elapsed_s()
        self._compare_rows(store)
        self.notices.opened(store.read_rows("posts", "id"))

    def _compare_rows(self, store: Store) -> None:
        rows = store.read_rows("alarm_events")
        found = [tuple(json.loads(row["body"]) if name == "body" else row[name] for name in COLUMNS) for row in rows]
        if found != self._rows:
            self._violate(
                f"the log of what was done about alarms has {len(found)} rows, not the {len(self._rows)} told"
            )
        numbers = [row["number"] for row in rows]
        if numbers != sorted(set(numbers)):
            self._violate("the events of alarms are not numbered in their order")

    def audit(self, store: Store, now_ns: int) -> dict[str, int]:
        """See in the end that the operator's command says of every alarm what is so; return what there was."""
        self._compare_rows(store)
        for row in read_rows(store, now_ns):
            key = Key(row["gateway"], row["id"])
            listed = (row["state"], row["label"], row["assignee"], row["acknowledged_by"])
            self._see(key, "is listed as", listed, now_ns)
        of_service = Counter(row[0] for row in self._rows if row[4] == "")
        changes = Counter(key.gateway for key in self.states.alarms)
        masks = 2 + 2 * sum(kind in (*SITE_WIDE, "shelve", "unshelve") for *_, kind, _ in self._rows)
        for gateway, count in of_service.items():
            if count > masks * (changes[gateway] + 1):
                self._violate(f"{count} events are of the alarms of {gateway}, of which there are {changes[gateway]}")
        return self.counts | self.notices.counts


COLUMNS = ("gateway", "alarm", "cause", "t_ns", "who", "kind", "body")


def _keys(body: Mapping[str, Any]) -> list[Key]:
    """Return the alarms that an order is about, each once."""
    parted = [name.partition("/") for name in dict.fromkeys(body["alarms"])]
    return [Key(gateway, alarm) for gateway, _, alarm in parted]


def _of_event(event: events.AlarmEvent) -> tuple[Any, ...]:
    """Return what an event says, but for the times that are the aggregator's to choose."""
    body, detail = event.body, None
    match event.kind:
        case "label":
            detail = body["label"]
        case "assign":
            detail = body["to"]
        case "window":
            detail = (round(body["from_ns"] / NS), round(body["to_ns"] / NS))
        case "window-end":
            detail = body["window"]
    return (event.gateway, event.alarm, event.cause, event.who, event.kind, body.get("text", ""), detail)
