"""What operators do about alarms: each action is checked, becomes an event, and is stored with its answer.

An action that would change nothing, such as a second acknowledgement, is answered and leaves no event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedgate.cloud_aggregator.alarms import fleet
from fedgate.cloud_aggregator.alarms.records import Alarms, CauseKey, mark_unpublished
from fedgate.cloud_aggregator.alarms.workflow import (
    LABELS,
    SHELVED_MAX_NS,
    AlarmCondition,
    AlarmKey,
    Handled,
    find_state,
    fold,
)
from fedgate.cloud_aggregator.context import SET_NS, Context
from fedgate.cloud_aggregator.events import AlarmEvent, Ordered, OrderError
from fedgate.cloud_aggregator.names import list_first
from fedgate.config.protocol.messages import (
    ACTION_TEXT_MAX,
    ALARMS_AT_ONCE_MAX,
    MAINTENANCE_LONGEST_NS,
    MAINTENANCE_MAX,
    PERSON_MAX,
)
from fedgate.config.protocol.topics import ALL, ID
from fedgate.models.time_units import DAY_NS, DAY_S, HOUR_S, NS

SHELVED_S, SHELVED_MAX_S = 8 * HOUR_S, SHELVED_MAX_NS / NS  # for which an alarm is shelved: usually, and at most
AHEAD_MAX_S = 366 * DAY_S  # how far ahead a maintenance window may begin
WINDOWS_MAX = MAINTENANCE_MAX // 2  # maintenance windows that are to come or at hand
OUT_MAX = 1_000  # causes that are out of service
EVENTS_MAX = 200  # of one alarm, beyond which it can only be acknowledged and unshelved
ENDING = ("acknowledge", "unshelve")  # of which each leaves an event once, until it is shelved again
SECONDS_MAX = 9e9  # of Unix time, which as nanoseconds fit a column of the store
TEXT_MAX, WHO_MAX = ACTION_TEXT_MAX, PERSON_MAX  # characters
Result = tuple[Alarms, list[AlarmEvent], str]


def split_name(name: str) -> AlarmKey:
    """Return the gateway and the id of an alarm that is named gateway/id."""
    gateway, _, alarm = name.partition("/")
    return AlarmKey(gateway, alarm)


def find_alarm(alarms: Alarms, key: AlarmKey) -> AlarmCondition | None:
    """Return what the state of an alarm hangs on; None where it is not at hand, which is so of many that are over."""
    if key.gateway == ALL:
        one = alarms.fleet.alarm
        is_it = one is not None and one.id == key.alarm
        return AlarmCondition(fleet.CAUSE, one.onset_ns, one.state == "raised") if one is not None and is_it else None
    known = alarms.book.get(key.gateway, {}).get(key.alarm)
    return None if known is None else AlarmCondition(known.alarm.cause, known.onset_ns, known.active)


def carry_out(alarms: Alarms, context: Context, order: Ordered) -> Result:
    """Return the alarms after an action, its events and its answer; raises `OrderError` with what is wrong."""
    body = order.body
    action, who, text = (str(body.get(name, "")) for name in ("action", "who", "text"))
    if not 1 <= len(who) <= WHO_MAX or not who.isprintable():
        raise OrderError(f"who: expected 1 to {WHO_MAX} printable characters, got {who[: WHO_MAX + 1]!r}")
    if len(text) > TEXT_MAX or not text.isprintable():  # whoever reads it has a terminal, which obeys what is not
        raise OrderError(f"text: expected at most {TEXT_MAX} printable characters, got {text[:WHO_MAX]!r}")
    if action in OF_SITE:
        events, answer = OF_SITE[action](alarms, context, order, who, text)
    elif action in OF_ALARMS:
        events, answer = _act_on_alarms(alarms, context, order, who, text)
    else:
        raise OrderError(f"action {action!r} given; expected one of {', '.join((*OF_ALARMS, *OF_SITE))}")
    return note_events(alarms, events), events, answer


def note_events(alarms: Alarms, events: list[AlarmEvent]) -> Alarms:
    """Return the alarms with events that are to be stored."""
    if not events:
        return alarms
    keys = [CauseKey(event.gateway, _find_cause(alarms, event)) for event in events]
    alarms = mark_unpublished(alarms, *(key for key in keys if key.cause))
    return replace(alarms, workflow=fold(events, alarms.workflow))


def _find_cause(alarms: Alarms, event: AlarmEvent) -> str:
    """Return the cause that an event is about; empty where it is about none, or an alarm that the store alone has."""
    known = find_alarm(alarms, AlarmKey(event.gateway, event.alarm)) if event.alarm else None
    return event.cause if known is None else known.cause


def forget_old(alarms: Alarms) -> Alarms:
    """Return the alarms without what was done about those that are over and in the store alone."""
    handled = alarms.workflow.handled
    kept = {key: one for key, one in handled.items() if find_alarm(alarms, key) is not None}
    if len(kept) == len(handled):
        return alarms
    return replace(alarms, workflow=replace(alarms.workflow, handled=kept))


def _act_on_alarms(
    alarms: Alarms, context: Context, order: Ordered, who: str, text: str
) -> tuple[list[AlarmEvent], str]:
    names, action = order.body.get("alarms"), order.body["action"]
    if not (
        isinstance(names, list)
        and 1 <= len(names) <= ALARMS_AT_ONCE_MAX
        and all(isinstance(name, str) for name in names)
    ):
        raise OrderError(f"alarms: expected 1 to {ALARMS_AT_ONCE_MAX} names as gateway/id, got {str(names)[:100]}")
    events, answers = [], []
    for name in dict.fromkeys(names):
        key = split_name(name)
        alarm = find_alarm(alarms, key)
        if alarm is None and name not in order.stored:
            raise OrderError(f"{name}: {_describe_missing(order, name)}")
        known = alarms.workflow
        if alarm is None:  # of those that are over the older are in the store alone, with what was done about them
            alarm, known = AlarmCondition("", 0, False), fold(order.stored[name])
        handled = known.handled.get(key, Handled())
        if handled.events >= EVENTS_MAX and action not in ENDING:
            found = f"it has {handled.events} events, and {EVENTS_MAX} are the most of one alarm"
            raise OrderError(f"{name}: {found}; it can be acknowledged")
        state = find_state(known, key, alarm, context.now_ns)
        try:
            made, answer = OF_ALARMS[action](order.body, context, state, handled)
        except OrderError as error:
            raise OrderError(f"{name}: {error}") from None
        if made is not None:
            content = made | ({"text": text} if text else {})
            events.append(AlarmEvent(key.gateway, key.alarm, "", context.now_ns, who, action, content))
        answers.append(f"{name}: {answer}")
    return events, "\n".join(answers)


def _describe_missing(order: Ordered, name: str) -> str:
    if several := order.several.get(name):
        return f"it begins several alarms ({list_first(several)}); give more of it"
    return "there is no such alarm; 'cloud-aggregator alarms' lists those there are"


Made = tuple[dict[str, Any] | None, str]  # the body of an event, None where nothing changes, and the answer


def _acknowledge(_body: Mapping[str, Any], _context: Context, state: str, handled: Handled) -> Made:
    if handled.acknowledged_ns is not None:
        return None, f"was acknowledged by {handled.acknowledged_by} already"
    return {}, "acknowledged" + ("; it is over, and normal" if state in ("normal", "returned-unacknowledged") else "")


def _shelve(body: Mapping[str, Any], context: Context, state: str, _handled: Handled) -> Made:
    for_s = _number(body, "for_s", SHELVED_S)
    if not 60 <= for_s <= SHELVED_MAX_S:
        raise OrderError(f"for: expected 1 minute to {SHELVED_MAX_S / DAY_S:g} days, got {for_s:g} s")
    if state in ("normal", "returned-unacknowledged"):
        raise OrderError("it is over; only an alarm that stands can be shelved, 'alarms ack' closes one that is over")
    _check_clock(context)
    return {"until_ns": context.now_ns + int(for_s * NS)}, f"shelved for {for_s / HOUR_S:g} h"


def _unshelve(_body: Mapping[str, Any], context: Context, _state: str, handled: Handled) -> Made:
    if context.now_ns >= handled.shelved_until_ns:
        return None, "is not shelved"
    return {}, "no longer shelved"


def _note(body: Mapping[str, Any], _context: Context, _state: str, _handled: Handled) -> Made:
    if not body.get("text"):
        raise OrderError("text: a note needs one")
    return {}, "noted"


def _label(body: Mapping[str, Any], _context: Context, _state: str, handled: Handled) -> Made:
    label = body.get("label")
    if label not in LABELS:
        raise OrderError(f"label: expected one of {', '.join(LABELS)}, got {str(label)[:WHO_MAX]!r}")
    return (None, f"has the label {label} already") if label == handled.label else ({"label": label}, f"label {label}")


def _assign(body: Mapping[str, Any], _context: Context, _state: str, handled: Handled) -> Made:
    to = body.get("to")
    if not isinstance(to, str) or len(to) > WHO_MAX or not to.isprintable():
        raise OrderError(f"to: expected at most {WHO_MAX} printable characters, none for nobody, got {str(to)[:65]!r}")
    if to == handled.assignee:
        return None, f"is assigned to {to or 'nobody'} already"
    return {"to": to}, f"assigned to {to or 'nobody'}"


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= SECONDS_MAX:
        raise OrderError(f"{name}: expected a number of seconds, got {str(value)[:WHO_MAX]!r}")
    return float(value)


def _check_clock(context: Context) -> None:
    if context.now_ns < SET_NS:
        raise OrderError("the clock of the aggregator is not set, so nobody can say until when; set it")


def _service_out(alarms: Alarms, context: Context, order: Ordered, who: str, text: str) -> tuple[list[AlarmEvent], str]:
    action, (gateway, cause) = order.body["action"], _cause_of(order)
    out, is_out = alarms.workflow.out, action == "out-of-service"
    if ((gateway, cause) in out) == is_out:
        return [], f"{gateway}/{cause}: is {action} already"
    if is_out and len(out) >= OUT_MAX:
        raise OrderError(f"{len(out)} causes are out of service, and {OUT_MAX} are the most")
    content = {"text": text} if text else {}
    return [AlarmEvent(gateway, "", cause, context.now_ns, who, action, content)], f"{gateway}/{cause}: {action}"


def _cause_of(order: Ordered) -> tuple[str, str]:
    for name in ("gateway", "cause"):
        value = order.body.get(name)
        if not isinstance(value, str) or not ID.fullmatch(value):
            raise OrderError(f"{name}: expected 1 to 64 of A-Z a-z 0-9 _ . -, got {str(value)[:65]!r}")
    gateway, cause = order.body["gateway"], order.body["cause"]
    if gateway == ALL and cause != fleet.CAUSE:
        raise OrderError(f"cause: {cause!r} given; alarms of {ALL!r}, the whole site, have the cause {fleet.CAUSE!r}")
    return gateway, cause


def _add_window(alarms: Alarms, context: Context, order: Ordered, who: str, text: str) -> tuple[list[AlarmEvent], str]:
    _check_clock(context)
    body, now_ns = order.body, context.now_ns
    gateway = body.get("gateway")
    if not isinstance(gateway, str) or not ID.fullmatch(gateway):
        raise OrderError(f"gateway: expected an id, or {ALL!r}, got {str(gateway)[:65]!r}")
    from_ns, to_ns = (int(_number(body, name, 0) * NS) for name in ("from_s", "to_s"))
    if to_ns <= now_ns:
        raise OrderError("to: expected a time to come; a window that is over suppresses nothing")
    if not 0 < to_ns - from_ns <= MAINTENANCE_LONGEST_NS or from_ns > now_ns + AHEAD_MAX_S * NS:
        longest = f"{MAINTENANCE_LONGEST_NS / DAY_NS:g} days"
        raise OrderError(f"expected a window of at most {longest}, that begins within a year")
    if from_ns < now_ns - MAINTENANCE_LONGEST_NS:
        raise OrderError(f"from: expected not more than {MAINTENANCE_LONGEST_NS / DAY_NS:g} days ago")
    if not text:
        raise OrderError("why: expected a text; whoever finds no alarm will ask")
    if sum(window.to_ns > now_ns for window in alarms.workflow.windows) >= WINDOWS_MAX:
        raise OrderError(f"{WINDOWS_MAX} windows are to come or at hand, and that is the most; end some")
    number = 1 + max((window.number for window in alarms.workflow.windows), default=0)
    content = {"window": number, "from_ns": from_ns, "to_ns": to_ns, "text": text}
    event = AlarmEvent(gateway, "", "", max(now_ns, alarms.workflow.changed_ns + 1), who, "window", content)
    return [event], f"maintenance window {number} of {gateway if gateway != ALL else 'all gateways'}"


def _end_window(alarms: Alarms, context: Context, order: Ordered, who: str, _text: str) -> tuple[list[AlarmEvent], str]:
    number = order.body.get("window")
    known = next((window for window in alarms.workflow.windows if window.number == number), None)
    if known is None:
        raise OrderError(
            f"there is no maintenance window {str(number)[:20]}; 'cloud-aggregator maintenance list' has them"
        )
    if known.to_ns <= context.now_ns:
        return [], f"maintenance window {number} is over already"
    t_ns = max(context.now_ns, alarms.workflow.changed_ns + 1)  # gateways go by the one announced later
    event = AlarmEvent(known.gateway, "", "", t_ns, who, "window-end", {"window": number, "to_ns": context.now_ns})
    return [event], f"maintenance window {number} ended"


OF_ALARMS: dict[str, Callable[[Mapping[str, Any], Context, str, Handled], Made]] = {
    "acknowledge": _acknowledge,
    "shelve": _shelve,
    "unshelve": _unshelve,
    "note": _note,
    "label": _label,
    "assign": _assign,
}
OF_SITE: dict[str, Callable[[Alarms, Context, Ordered, str, str], tuple[list[AlarmEvent], str]]] = {
    "out-of-service": _service_out,
    "in-service": _service_out,
    "window": _add_window,
    "window-end": _end_window,
}
