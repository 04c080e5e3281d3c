"""The way of an alarm from its raising to its close, as ISA-18.2 has it: a pure function of the alarm, of what was done
about it, and of the time.

What is done is an event, and events are only ever added. `apply_event` folds them, in the order of their numbers, into
what is known; `find_state` says from that how an alarm is now. Beneath are four states, from whether it stands and
whether it was acknowledged; over these lie three that say nobody is to be called while they last. The masks lie on
standing alarms alone: one that is over while masked is normal, for it asks nothing of anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

from fedgate.cloud_aggregator.events import AlarmEvent
from fedgate.config.protocol.topics import ALL
from fedgate.models.time_units import DAY_NS

State = Literal[
    "normal",
    "unacknowledged",
    "acknowledged",
    "returned-unacknowledged",
    "shelved",
    "suppressed",
    "out-of-service",
]
STATES: tuple[State, ...] = get_args(State)
MASKS = frozenset({"shelved", "suppressed", "out-of-service"})
SHELVED_MAX_NS = 7 * DAY_NS  # for which an alarm may be shelved
WINDOWS_KEPT = 400  # maintenance windows that are remembered, those that end last: what is over goes first
LABELS = ("damage", "work", "sensor", "weather", "false")


class AlarmKey(NamedTuple):
    """By which an alarm is known in the whole site."""

    gateway: str
    alarm: str


class AlarmCondition(NamedTuple):
    """Of an alarm what its state hangs on."""

    cause: str
    onset_ns: int  # as far as it can be believed
    is_active: bool


@dataclass(frozen=True, slots=True)
class Handled:
    """What was done about one alarm."""

    acknowledged_ns: int | None = None
    acknowledged_by: str = ""
    shelved_until_ns: int = 0
    is_masked: bool = False  # nobody was called since it was masked
    is_notified: bool = True  # somebody was called when it was raised
    renotified_ns: int = 0  # when it was told of again, after a mask
    escalated_ns: int = 0  # since it was told of last
    label: str = ""
    assignee: str = ""
    events: int = 0  # of operators


UNTOUCHED = Handled()


@dataclass(frozen=True)
class Window:
    """A maintenance window of a gateway, or of all."""

    number: int
    gateway: str
    from_ns: int
    to_ns: int
    why: str
    who: str


Spans = tuple[tuple[int, int], ...]  # begin and end of times, in ns of Unix time


@dataclass(frozen=True)
class Workflow:
    """What is known of all that was done."""

    handled: Mapping[AlarmKey, Handled] = field(default_factory=dict)
    out: Mapping[tuple[str, str], AlarmEvent] = field(default_factory=dict)  # gateway and cause -> what took it out
    windows: tuple[Window, ...] = ()
    spans: Mapping[str, Spans] = field(default_factory=dict)  # gateway -> its windows, joined where they meet
    changed_ns: int = 0  # when one of these was announced or ended last

    def is_maintained(self, gateway: str, onset_ns: int, now_ns: int) -> bool:
        """Tell whether maintenance suppresses now an alarm that began then: within a window, which others that overlap
        or adjoin it have prolonged until now.
        """
        first, last = min(onset_ns, now_ns), max(onset_ns, now_ns)
        spans = self.spans.get(gateway, self.spans.get(ALL, ()))
        return any(from_ns <= first and last < to_ns for from_ns, to_ns in spans)

    def list_windows(self, gateway: str, onset_ns: int) -> list[Window]:
        """Return the windows within which an alarm that began then lies, and those that prolong them."""
        spans = self.spans.get(gateway, self.spans.get(ALL, ()))
        around = [(from_ns, to_ns) for from_ns, to_ns in spans if from_ns <= onset_ns < to_ns]
        return [
            one
            for one in self.windows
            if one.gateway in (ALL, gateway)
            and any(from_ns <= one.from_ns < one.to_ns <= to_ns for from_ns, to_ns in around)
        ]


def find_state(workflow: Workflow, key: AlarmKey, alarm: AlarmCondition, now_ns: int) -> State:
    """Return the state of an alarm at a time of day."""
    handled = workflow.handled.get(key, UNTOUCHED)
    if not alarm.is_active:
        is_closed = handled.acknowledged_ns is not None or handled.is_masked
        return "normal" if is_closed else "returned-unacknowledged"
    if (key.gateway, alarm.cause) in workflow.out:
        return "out-of-service"
    if workflow.is_maintained(key.gateway, alarm.onset_ns, now_ns):
        return "suppressed"
    if now_ns < handled.shelved_until_ns <= now_ns + SHELVED_MAX_NS:  # a clock that went back shelves for no longer
        return "shelved"
    return "unacknowledged" if handled.acknowledged_ns is None else "acknowledged"


def fold(events: Iterable[AlarmEvent], workflow: Workflow | None = None) -> Workflow:
    """Return what is known after these events, in the order of their numbers."""
    workflow = workflow or Workflow()
    handled, out = dict(workflow.handled), dict(workflow.out)
    windows, changed_ns = {window.number: window for window in workflow.windows}, workflow.changed_ns
    for event in events:
        changed_ns = max(changed_ns, event.t_ns) if event.kind in ("window", "window-end") else changed_ns
        match event.kind:
            case "window":
                body = event.body
                window = Window(body["window"], event.gateway, body["from_ns"], body["to_ns"], body["text"], event.who)
                windows = {one.number: one for one in _keep_last(windows.values())}
                windows.setdefault(window.number, window)
            case "window-end" if event.body["window"] in windows:
                ended = windows[event.body["window"]]
                windows[ended.number] = replace(ended, to_ns=min(ended.to_ns, event.body["to_ns"]))
            case "out-of-service":
                out[event.gateway, event.cause] = event
            case "in-service":
                out.pop((event.gateway, event.cause), None)
            case _ if event.alarm:
                key = AlarmKey(event.gateway, event.alarm)
                handled[key] = apply_event(handled.get(key, Handled()), event)
    known = tuple(windows.values())
    spans = workflow.spans if known == workflow.windows else join_windows(known)
    return Workflow(handled, out, known, spans, changed_ns)


def _keep_last(windows: Iterable[Window]) -> list[Window]:
    """Return the windows without those that ended first, beyond so many. No clock has a say: one that was far ahead
    when a window was announced must not forget another that is at hand.
    """
    ordered = sorted(windows, key=lambda one: (one.to_ns, one.number))
    return sorted(ordered[1 - WINDOWS_KEPT :], key=lambda one: one.number)


def join_windows(windows: Iterable[Window]) -> dict[str, Spans]:
    """Return by gateway, and for `topics.ALL`, the times that its windows and those of all cover."""
    given = [one for one in windows if one.from_ns < one.to_ns]  # one that was taken back covers none
    whose = {ALL, *(one.gateway for one in given)}
    return {name: _join([one for one in given if one.gateway in (ALL, name)]) for name in whose}


def _join(windows: Iterable[Window]) -> Spans:
    joined = list[tuple[int, int]]()
    for one in sorted(windows, key=lambda one: one.from_ns):
        from_ns, to_ns = joined.pop() if joined and one.from_ns <= joined[-1][1] else (one.from_ns, one.to_ns)
        joined.append((from_ns, max(to_ns, one.to_ns)))
    return tuple(joined)


def apply_event(handled: Handled, event: AlarmEvent) -> Handled:
    """Return what is known of an alarm after one more event of it."""
    handled = replace(handled, events=handled.events + bool(event.who))
    match event.kind:
        case "acknowledge":
            return replace(handled, acknowledged_ns=event.t_ns, acknowledged_by=event.who)
        case "shelve":  # for a time: after it the alarm asks anew, also whom had acknowledged it
            until_ns = event.body["until_ns"]
            return replace(handled, shelved_until_ns=until_ns, is_masked=True, acknowledged_ns=None, acknowledged_by="")
        case "unshelve":
            return replace(handled, shelved_until_ns=0)
        case "suppress":  # of the service: the mask of a window or of a cause was found on it
            return replace(handled, is_masked=True, is_notified=event.body["is_notified"])
        case "resume":  # of the service: no mask is left, and it stands
            is_notified = event.body["is_notified"]
            return replace(handled, is_masked=False, is_notified=is_notified, renotified_ns=event.t_ns, escalated_ns=0)
        case "escalate":
            return replace(handled, escalated_ns=event.t_ns)
        case "label":
            return replace(handled, label=event.body["label"])
        case "assign":
            return replace(handled, assignee=event.body["to"])
    return handled  # a note
