"""What the aggregator does about a gateway's name that is not what it seems: see `device_sessions` for how it is known.

An operator sees it where they see all else that is wrong, as an alarm of that gateway. It is in the registry, goes to
the webhook and the building, and clears by itself when there was no sign of it for a while.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from fedgate.cloud_aggregator.access import device_sessions
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.device_sessions import Conflict, DeviceSessions
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import ChangeAlarm, RaiseAlarm, RecordGateway, Severity, Wanted
from fedgate.config.protocol.messages import Status
from fedgate.models.time_units import NS

STANDS_S = 600.0  # after the last sign: ten statuses, as gateways are shipped
Result = tuple[Access, list[Wanted]]
Cause = Conflict | Literal["identity-refused"]


class Kind(NamedTuple):
    """What an alarm about a name says, and for how many seconds after the last sign."""

    severity: Severity
    text: str
    stands_s: float = STANDS_S


KINDS: dict[str, Kind] = {
    "identity-twin": Kind(
        "major",
        "two devices speak under this id by turns; its updates stay unanswered while they do. Give one of them another "
        "id, or take it off the network",
    ),
    "identity-restored": Kind(
        "major",
        "its store went back to an earlier state, such as an old SD card image; what it sent since is here and it does "
        "not know. Where the algorithm remembers gateways, begin a new training (docs/reference/aggregator.md, "
        "A round)",
    ),
    "identity-replaced": Kind(
        "major",
        "it speaks with another store: it lost the one before, or is another device under this id. Nothing to do if "
        "that was meant",
    ),
    "identity-refused": Kind(
        "warning",
        "another device came with a token for this id and was turned away. Where it is to take the place, make a token "
        "with --replace; where nobody meant it, revoke the gateway, which voids its tokens",
        stands_s=3_600.0,
    ),
}


def raise_alarm(gateway: str, cause: Cause) -> RaiseAlarm:
    """Raise an alarm about the name of a gateway."""
    return RaiseAlarm(gateway, cause, KINDS[cause].severity, KINDS[cause].text)


def note_status(access: Access, context: Context, gateway: str, status: Status) -> tuple[Access, list[Wanted], bool]:
    """Take in which session a status is of, and return whether it shows how the gateway is now: a late one does not."""
    before = access.sessions.get(gateway, DeviceSessions())
    after, is_news, conflict = device_sessions.note_status(before, status, context.now_ns)
    if after is before:
        return access, [], is_news
    access = replace(access, sessions={**access.sessions, gateway: after})
    effects: list[Wanted] = [] if conflict is None else [raise_alarm(gateway, conflict)]
    if status.challenge != after.challenge:  # once it has come there the next status names it
        effects.append(context.challenge(gateway, after.challenge))
    return access, effects, is_news


def record(access: Access, gateway: str) -> RecordGateway:
    """Return the effect that stores what is known of a gateway."""
    sessions = device_sessions.to_text(access.sessions[gateway]) if gateway in access.sessions else ""
    return RecordGateway(gateway, access.gateways[gateway], access.seen.get(gateway, 0), sessions)


def end_twins(access: Access, context: Context) -> Result:
    """Count the updates of a gateway again where there was no sign of a second device for long enough."""
    effects: list[Wanted] = []
    for gateway in sorted(access.twins):
        sessions = access.sessions[gateway]
        if _is_over(context, sessions.twin_ns, STANDS_S):
            access = replace(access, sessions={**access.sessions, gateway: replace(sessions, twin_ns=0)})
            effects.append(record(access, gateway))
    return access, effects


def end_alarms(access: Access, context: Context, alarms: Alarms) -> list[Wanted]:
    """End the alarms about names of which there was no further sign for long enough."""
    effects: list[Wanted] = []
    for gateway, book in alarms.book.items():
        for alarm in [one.alarm for one in book.values() if one.active and one.alarm.cause in KINDS]:
            stands_s = KINDS[alarm.cause].stands_s
            is_seen = alarm.cause == "identity-twin" and gateway in access.twins
            if not is_seen and _is_over(context, alarm.t_ns, stands_s):
                text = f"no further sign of it for {stands_s:g} s"
                effects.append(ChangeAlarm(gateway, alarm.clear(context.now_ns, text)))
    return effects


def _is_over(context: Context, seen_ns: int, stands_s: float) -> bool:
    """Tell whether a sign is too old; also where our clock went back since."""
    return not 0 <= context.now_ns - seen_ns < stands_s * NS
