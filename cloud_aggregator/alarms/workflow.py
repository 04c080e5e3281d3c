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
WINDOWS_SHOWN_NS = 31 * DAY_NS  # for which a time of maintenance that is over is remembered
LABELS = ("damage", "work", "sensor", "false")


class AlarmKey(NamedTuple):
    """By which an alarm is known in the whole site."""

    gateway: str
    alarm: str


class Standing(NamedTuple):
    """Of an alarm what its state hangs on."""

    cause: str
    onset_ns: int  # as far as it can be believed
    is_active: bool


@dataclass(frozen=True)
class Handled:
    """What was done about one alarm."""

    acknowledged_ns: int | None = None
    acknowledged_by: str = ""
    shelved_until_ns: int = 0
    is_quiet: bool = False  # nobody was called since it was masked
    is_notified: bool = True  # somebody was called when it was raised
    asked_ns: int = 0  # when it was told of again, after a mask
    escalated_ns: int = 0  # since it was told of last
    label: str = ""
    assignee: str = ""
    events: int = 0


@dataclass(frozen=True)
class Window:
    """A time of maintenance of a gateway, or of all."""

    number: int
    gateway: str
    from_ns: int
    to_ns: int
    why: str
    who: str

    def holds(self, gateway: str, onset_ns: int, now_ns: int) -> bool:
        """Tell whether it suppresses now an alarm that began then."""
        is_of_it = self.gateway in (ALL, gateway)
        return is_of_it and self.from_ns <= min(onset_ns, now_ns) and max(onset_ns, now_ns) < self.to_ns


@dataclass(frozen=True)
class Workflow:
    """What is known of all that was done."""

    handled: Mapping[AlarmKey, Handled] = field(default_factory=dict)
    out: Mapping[tuple[str, str], AlarmEvent] = field(default_factory=dict)  # gateway and cause -> what took it out
    windows: tuple[Window, ...] = ()
    changed_ns: int = 0  # when one of these was announced or ended last


def find_state(workflow: Workflow, key: AlarmKey, alarm: Standing, now_ns: int) -> State:
    """Return the state of an alarm at a time of day."""
    handled = workflow.handled.get(key, Handled())
    if not alarm.is_active:
        is_closed = handled.acknowledged_ns is not None or handled.is_quiet
        return "normal" if is_closed else "returned-unacknowledged"
    if (key.gateway, alarm.cause) in workflow.out:
        return "out-of-service"
    if any(window.holds(key.gateway, alarm.onset_ns, now_ns) for window in workflow.windows):
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
                windows = {one: held for one, held in windows.items() if held.to_ns > event.t_ns - WINDOWS_SHOWN_NS}
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
    return Workflow(handled, out, tuple(windows.values()), changed_ns)


def apply_event(handled: Handled, event: AlarmEvent) -> Handled:
    """Return what is known of an alarm after one more event of it."""
    handled = replace(handled, events=handled.events + 1)
    match event.kind:
        case "acknowledge":
            return replace(handled, acknowledged_ns=event.t_ns, acknowledged_by=event.who)
        case "shelve":  # for a time: after it the alarm asks anew, also whom had acknowledged it
            until_ns = event.body["until_ns"]
            return replace(handled, shelved_until_ns=until_ns, is_quiet=True, acknowledged_ns=None, acknowledged_by="")
        case "unshelve":
            return replace(handled, shelved_until_ns=0)
        case "suppress":  # of the service: the mask of a window or of a cause was found on it
            return replace(handled, is_quiet=True, is_notified=handled.is_notified and event.body["is_notified"])
        case "resume":  # of the service: no mask is left, and it stands
            is_notified = handled.is_notified or event.body["is_notified"]
            return replace(handled, is_quiet=False, is_notified=is_notified, asked_ns=event.t_ns, escalated_ns=0)
        case "escalate":
            return replace(handled, escalated_ns=event.t_ns)
        case "label":
            return replace(handled, label=event.body["label"])
        case "assign":
            return replace(handled, assignee=event.body["to"])
    return handled  # a note
