"""What the aggregator does about a gateway's name that is not what it seems: see `device_sessions` for how it is known.

An operator sees it where they see all else that is wrong, as an alarm of that gateway. It stands in the registry, goes
to the webhook and the building, and clears by itself when there was no sign of it for a while.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.access import device_sessions
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.device_sessions import DeviceSessions
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import ChangeAlarm, RaiseAlarm, RecordGateway, Wanted
from fedgate.config.protocol.messages import Status

REFUSED = "identity-refused"
REFUSED_STANDS_S = 3_600.0
Result = tuple[Access, list[Wanted]]


def note_status(access: Access, context: Context, gateway: str, status: Status) -> tuple[Access, list[Wanted], bool]:
    """Take in who says a status, and whether it tells how the gateway is now: a late one does not."""
    before = access.sessions.get(gateway, DeviceSessions())
    after, is_news = device_sessions.note_status(before, status, context.now_ns)
    if after is before:
        return access, [], is_news
    access = replace(access, sessions={**access.sessions, gateway: after})
    if after.trouble is None:
        return access, [], is_news
    effects = _changes(gateway, before, after, context.now_ns)
    if effects and not is_news:  # else it is stored with its status
        effects.append(record(access, gateway))
    return access, effects, is_news


def turned_away(gateway: str) -> RaiseAlarm:
    """Raise an alarm where another device came for the name of a gateway, and got no certificate."""
    text = (
        "another device came with a token for this id and was turned away. Where it is to take the place, make a token "
        "with --replace; where nobody meant it, revoke the gateway, which voids its tokens"
    )
    return RaiseAlarm(gateway, REFUSED, "warning", text)


def end_refusals(alarms: Alarms, context: Context) -> list[Wanted]:
    """End the alarms about devices that were turned away, an hour after."""
    text, now_ns = f"it was turned away {REFUSED_STANDS_S:g} s ago", context.now_ns
    over = [
        (gateway, alarm)
        for gateway in alarms.book
        for alarm in alarms.active_of(gateway, REFUSED)
        if not 0 <= now_ns - alarm.t_ns < REFUSED_STANDS_S * device_sessions.NS
    ]
    return [ChangeAlarm(gateway, alarm.clear(now_ns, text)) for gateway, alarm in over]


def end_conflicts(access: Access, context: Context) -> Result:
    """End the conflicts that have given no sign for long enough."""
    effects: list[Wanted] = []
    for gateway, one in access.sessions.items():
        if device_sessions.over(one, context.now_ns) and gateway in access.gateways:
            effects += _of_conflict(gateway, one, context.now_ns)
            quiet = replace(one, trouble=None, since_ns=0, until_ns=0)
            access = replace(access, sessions={**access.sessions, gateway: quiet})
            effects.append(record(access, gateway))
    return access, effects


def record(access: Access, gateway: str) -> RecordGateway:
    """Return the effect that stores what is known of a gateway."""
    speaks = device_sessions.to_text(access.sessions[gateway]) if gateway in access.sessions else ""
    return RecordGateway(gateway, access.gateways[gateway], access.seen.get(gateway, 0), speaks)


def _changes(gateway: str, before: DeviceSessions, after: DeviceSessions, now_ns: int) -> list[Wanted]:
    """Return how the alarms of a gateway change where its conflict is another than before."""
    if (before.trouble, before.since_ns) == (after.trouble, after.since_ns):
        return []
    return [*_of_conflict(gateway, replace(before, until_ns=now_ns), now_ns), *_of_conflict(gateway, after, now_ns)]


def _of_conflict(gateway: str, known: DeviceSessions, now_ns: int) -> list[Wanted]:
    alarm = device_sessions.alarm_of(gateway, known, now_ns)
    return [] if alarm is None else [ChangeAlarm(gateway, alarm)]
