"""How alarms are handled, published for other systems: one retained message of each cause of a gateway and of the site,
on change alone, and taken back when there is nothing to handle any more.

Whatever may change the state of an alarm marks its cause (`records.mark_unpublished`); the time is one of these, by the
look for masks that end. A mark stays until its message went out, which a tick does for some, so a change without a
connection is told after it, and one that changed nothing is no message. After each connection all are published once,
for what the broker has retained may be of before.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.alarms import register
from fedgate.cloud_aggregator.alarms.fleet import CAUSE
from fedgate.cloud_aggregator.alarms.records import Alarms, CauseKey, Published
from fedgate.cloud_aggregator.alarms.workflow import AlarmCondition, AlarmKey, Handled, find_state
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Effect, Publish
from fedgate.config.protocol.messages import Alarm, AlarmState, format_iso
from fedgate.config.protocol.topics import ALL

AT_ONCE_MAX = 500  # messages of one tick: 200 kB


def mark_all(alarms: Alarms) -> Alarms:
    """Return the alarms, of which others are to be told everything anew."""
    causes = {
        CauseKey(name, one.alarm.cause) for name, of_gateway in alarms.book.items() for one in of_gateway.values()
    }
    fleet = {CauseKey(ALL, CAUSE)} if alarms.fleet.alarm is not None else set[CauseKey]()
    return replace(alarms, published={}, unpublished=frozenset(causes | fleet))


def publish_changed(alarms: Alarms, context: Context) -> tuple[Alarms, list[Effect]]:
    """Publish some of what others have not been told."""
    if not context.is_connected or not alarms.unpublished:
        return alarms, []
    due, published, effects = sorted(alarms.unpublished)[:AT_ONCE_MAX], dict(alarms.published), list[Effect]()
    for key in due:
        state = describe_state(alarms, key, context.now_ns)
        content = b"" if state is None else state.to_bytes()
        if key in published and published[key].content == content:
            continue
        published[key] = Published("", "", b"") if state is None else Published(state.id, state.state, content)
        timed = None if state is None else state.model_copy(update={"time": format_iso(context.now_ns)})
        payload = b"" if timed is None else timed.to_bytes()
        effects.append(Publish(context.topic(key.gateway, "alarm-state", key.cause), payload, retain=True))
    return replace(alarms, published=published, unpublished=alarms.unpublished - frozenset(due)), effects


def has_changed(alarms: Alarms, key: CauseKey, alarm: str, state: str) -> bool:
    """Tell whether others were told something else of an alarm that stands."""
    known = alarms.published.get(key)
    return known is not None and (known.alarm, known.state) != (alarm, state)


def describe_state(alarms: Alarms, key: CauseKey, now_ns: int) -> AlarmState | None:
    """Return what others are told of a cause, but for the time; None where there is nothing to handle."""
    for alarm, onset_ns, is_active in _list_latest(alarms, key):
        name = AlarmKey(key.gateway, alarm.id)
        state = find_state(alarms.workflow, name, AlarmCondition(key.cause, onset_ns, is_active), now_ns)
        if state == "normal":
            continue
        handled = alarms.workflow.handled.get(name, Handled())
        seen_ns = handled.acknowledged_ns
        return AlarmState(
            id=alarm.id,
            gateway=key.gateway,
            cause=key.cause,
            kind=alarm.kind,
            severity=alarm.severity,
            state=state,
            since=format_iso(onset_ns),
            acknowledged_by=handled.acknowledged_by,
            acknowledged_at="" if seen_ns is None else format_iso(seen_ns),
            shelved_until=format_iso(handled.shelved_until_ns) if state == "shelved" else "",
            label=handled.label,
            assignee=handled.assignee,
        )
    return None


def _list_latest(alarms: Alarms, key: CauseKey) -> list[tuple[Alarm, int, bool]]:
    """Return the alarms of a cause, one that stands first, then the last that began."""
    if key.gateway == ALL:
        one = alarms.fleet.alarm
        return [] if one is None else [(one, one.onset_ns, one.state == "raised")]
    known = register.list_of_cause(alarms.book, *key)
    return [(one.alarm, one.onset_ns, one.active) for one in reversed(known)]
