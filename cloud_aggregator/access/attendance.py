"""How gateways come and go, into the record of who was there when (`availability`)."""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.availability import find_state, note_change, repeat_misdated
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import PresenceState, RecordPresence
from fedgate.config.protocol.messages import Status

Result = tuple[Access, list[RecordPresence]]


def note_status(access: Access, context: Context, gateway: str, before: Status | None, status: Status) -> Result:
    """Record how a gateway is by its status, where that is another state than `before`."""
    state = find_state(status)
    if before is not None and find_state(before) == state:
        return access, []
    return _note(access, context, gateway, state)


def note_end(access: Access, context: Context, gateway: str) -> Result:
    """Record that a gateway belongs to the site no more, where anything is known of it."""
    return _note(access, context, gateway, "gone") if gateway in access.gateways else (access, [])


def _note(access: Access, context: Context, gateway: str, state: PresenceState) -> Result:
    changes = note_change(access.changes.get(gateway), context, gateway, state)
    return replace(access, changes={**access.changes, gateway: changes}), [changes.row]


def follow_clock(access: Access, context: Context) -> Result:
    """Record again, after the clock was set, what was dated by a clock that was wrong."""
    found = {name: repeat_misdated(one, context) for name, one in access.changes.items()}
    repeated = {name: one for name, one in found.items() if one is not None}
    if not repeated:
        return access, []
    return replace(access, changes={**access.changes, **repeated}), [one.row for one in repeated.values()]
