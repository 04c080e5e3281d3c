"""What is known of every alarm of a simulated world: its state and what was done about it, by what was committed.

The rules are written down here once more, from ISA-18.2 and the docs and not from the aggregator's code, so that the
two can differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedgate.cloud_aggregator.events import AlarmEvent, RecordAlarm, RecordFleet
from fedgate.config.protocol.topics import ALL
from fedgate.models.time_units import DAY_NS

SHELVED_MAX_NS = 7 * DAY_NS
BY_SERVICE = ("suppress", "resume", "escalate")  # kinds of events that no person brings about


class Key(NamedTuple):
    """By which an alarm is known."""

    gateway: str
    alarm: str


@dataclass
class Known:
    """One alarm."""

    cause: str
    severity: str
    onset_ns: int
    states: set[str] = field(default_factory=set)  # of it that were stored: raised, cleared
    ended: str = ""  # how, where its gateway did not say so
    acknowledged_by: str | None = None
    shelved_until_ns: int = 0
    is_masked: bool = False  # it was masked, and nobody was called since
    was_called: bool = True  # somebody was called for it, or will be
    is_escalated: bool = False  # since somebody was called last
    called_s: float = 0.0  # when that was
    label: str = ""
    assignee: str = ""

    @property
    def is_active(self) -> bool:
        """True while it stands."""
        return self.states == {"raised"}


class Span(NamedTuple):
    """A time of maintenance."""

    gateway: str
    from_ns: int
    to_ns: int


class States:
    """All alarms of a world."""

    def __init__(self) -> None:
        self.alarms: dict[Key, Known] = {}
        self.out: set[tuple[str, str]] = set()  # gateway and cause
        self.spans: dict[int, Span] = {}
        self.changed_ns = 0  # when one of these was announced or ended last

    def mask(self, key: Key, now_ns: int) -> str:
        """Return why nobody is called for an alarm that stands; empty where nothing stands against it."""
        one = self.alarms[key]
        if (key.gateway, one.cause) in self.out:
            return "out-of-service"
        of_it = [span for span in self.spans.values() if span.gateway in (ALL, key.gateway)]
        until_ns = min(one.onset_ns, now_ns)
        while prolonged := [span.to_ns for span in of_it if span.from_ns <= until_ns < span.to_ns]:
            until_ns = max(prolonged)
        if max(one.onset_ns, now_ns) < until_ns:
            return "suppressed"
        return "shelved" if 0 < one.shelved_until_ns - now_ns <= SHELVED_MAX_NS else ""

    def state(self, key: Key, now_ns: int) -> str:
        """Return the state of an alarm at a time of day."""
        one = self.alarms[key]
        if one.is_active:
            seen = "unacknowledged" if one.acknowledged_by is None else "acknowledged"
            return self.mask(key, now_ns) or seen
        return "returned-unacknowledged" if one.acknowledged_by is None and not one.is_masked else "normal"

    def note_alarm(self, effect: RecordAlarm | RecordFleet, elapsed_s: float) -> bool:
        """Take note of a change of an alarm that was stored; tell whether it says anything new."""
        alarm = effect.alarm
        key = Key(effect.gateway if isinstance(effect, RecordAlarm) else ALL, alarm.id)
        ended = effect.ended if isinstance(effect, RecordAlarm) else ""
        one = self.alarms.get(key)
        if one is None:
            onset_ns = effect.begun_ns if isinstance(effect, RecordAlarm) else alarm.onset_ns
            one = self.alarms[key] = Known(alarm.cause, alarm.severity, onset_ns, called_s=elapsed_s)
        elif isinstance(effect, RecordFleet):
            one.onset_ns, one.severity = alarm.onset_ns, alarm.severity
        is_new = alarm.state not in one.states or (alarm.state == "cleared" and one.ended != "" and not ended)
        if is_new:
            one.states.add(alarm.state)
            one.ended = ended
        return is_new

    def note_event(self, event: AlarmEvent, elapsed_s: float) -> None:
        """Take note of what was done about alarms."""
        match event.kind:
            case "window" | "window-end":
                self._note_maintenance(event)
            case "out-of-service":
                self.out.add((event.gateway, event.cause))
            case "in-service":
                self.out.discard((event.gateway, event.cause))
            case _:
                self._note_action(self.alarms[Key(event.gateway, event.alarm)], event, elapsed_s)

    def _note_maintenance(self, event: AlarmEvent) -> None:
        number = event.body["window"]
        self.changed_ns = max(self.changed_ns, event.t_ns)
        if event.kind == "window":
            self.spans[number] = Span(event.gateway, event.body["from_ns"], event.body["to_ns"])
        else:
            known = self.spans[number]
            self.spans[number] = known._replace(to_ns=min(known.to_ns, event.body["to_ns"]))

    def _note_action(self, one: Known, event: AlarmEvent, elapsed_s: float) -> None:
        match event.kind:
            case "acknowledge":
                one.acknowledged_by = event.who
            case "shelve":  # whoever shelves wants to be asked again
                one.shelved_until_ns, one.is_masked, one.acknowledged_by = event.body["until_ns"], True, None
            case "unshelve":
                one.shelved_until_ns = 0
            case "label":
                one.label = event.body["label"]
            case "assign":
                one.assignee = event.body["to"]
            case "suppress":
                one.is_masked, one.was_called = True, event.body["is_notified"]
            case "resume":
                one.is_masked, one.is_escalated, one.called_s = False, False, elapsed_s
                one.was_called = one.was_called or one.acknowledged_by is None
            case "escalate":
                one.is_escalated = True

    def would_change(self, key: Key, body: Mapping[str, Any], now_ns: int) -> bool:
        """Tell whether an action changes anything about an alarm: what does not leaves no event."""
        one = self.alarms[key]
        match body["action"]:
            case "acknowledge":
                return one.acknowledged_by is None
            case "unshelve":
                return now_ns < one.shelved_until_ns
            case "label":
                return bool(one.label != body["label"])
            case "assign":
                return bool(one.assignee != body["to"])
        return True
