"""What the aggregator does about a gateway's name that is not what it seems: see `device_sessions` for how it is known.

An operator sees it where they see all else that is wrong, as an alarm of that gateway. It is in the registry, goes to
the webhook and the building, and clears by itself when there was no sign of it for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from fedgate.cloud_aggregator.access import device_sessions
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.device_sessions import Conflict, DeviceSessions
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import ClearAlarm, RaiseAlarm, RecordGateway, Severity, Wanted
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


def raise_alarm(access: Access, context: Context, gateway: str, cause: Cause) -> Result:
    """Raise an alarm about the name of a gateway, or note one more sign of it."""
    signs = {**access.signs, (gateway, cause): context.uptime_ns}
    return replace(access, signs=signs), [RaiseAlarm(gateway, cause, KINDS[cause].severity, KINDS[cause].text)]


def note_status(access: Access, context: Context, gateway: str, status: Status) -> tuple[Access, list[Wanted], bool]:
    """Take in which session a status is of, and return whether it shows how the gateway is now: a late one does not."""
    before = access.sessions.get(gateway, DeviceSessions())
    after, is_news, conflict = device_sessions.note_status(before, status, context.now_ns)
    if after is before:
        return access, [], is_news
    access, effects = replace(access, sessions={**access.sessions, gateway: after}), list[Wanted]()
    if conflict is not None:
        access, effects = raise_alarm(access, context, gateway, conflict)
    if status.challenge != after.challenge:  # once it has come there the next status names it
        effects = [*effects, context.challenge(gateway, after.challenge)]
    return access, effects, is_news


def record(access: Access, gateway: str) -> RecordGateway:
    """Return the effect that stores what is known of a gateway."""
    sessions = device_sessions.to_text(access.sessions[gateway]) if gateway in access.sessions else ""
    return RecordGateway(gateway, access.gateways[gateway], access.seen.get(gateway, 0), sessions)


def restore_signs(
    uptime_ns: int, active: Iterable[tuple[str, str]], sessions: Mapping[str, DeviceSessions]
) -> dict[tuple[str, str], int]:
    """Return the signs of the stored conflicts, as if the last of each came now: when it did is not stored. Of the
    active alarms, gateway and cause are given.
    """
    alarmed = {(gateway, cause) for gateway, cause in active if cause in KINDS}
    twins = {(gateway, "identity-twin") for gateway, one in sessions.items() if one.is_twin}
    return dict.fromkeys(sorted(alarmed | twins), uptime_ns)  # in an order, or no run could be repeated


def end_conflicts(access: Access, context: Context) -> Result:
    """End the conflicts that have given no sign for long enough, and their alarms; also of a gateway that was revoked
    since, of which nothing else is known.
    """
    effects: list[Wanted] = []
    for (gateway, cause), uptime_ns in access.signs.items():
        stands_s = KINDS[cause].stands_s
        if context.uptime_ns - uptime_ns < stands_s * NS:
            continue
        access = replace(access, signs={key: one for key, one in access.signs.items() if key != (gateway, cause)})
        if cause == "identity-twin" and gateway in access.twins:  # its updates count again
            sessions = replace(access.sessions[gateway], is_twin=False)
            access = replace(access, sessions={**access.sessions, gateway: sessions})
            effects.append(record(access, gateway))
        effects.append(ClearAlarm(gateway, cause, f"no further sign of it for {stands_s:g} s"))
    return access, effects
