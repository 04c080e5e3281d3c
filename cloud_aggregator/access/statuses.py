"""A status of a gateway: what is taken from it, and what it must not take back."""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.access import attendance, duplicates
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Log, NoteDropped, StatusChanged, Wanted
from fedgate.config.protocol.messages import Status

Result = tuple[Access, list[Wanted]]


def receive_status(access: Access, context: Context, gateway: str, status: Status, seen_ns: int | None) -> Result:
    """Take in a status; `find_seen_ns` is when the gateway was there, as far as the status shows it."""
    if seen_ns is not None:
        seen_ns = max(seen_ns, min(access.seen.get(gateway, 0), context.now_ns))
        access = replace(access, seen={**access.seen, gateway: seen_ns})
    held, before = access, access.gateways.get(gateway)
    if status.state == "offline" and before is not None:  # a last will knows nothing but that; the rest is still true
        status = before.model_copy(update={"state": "offline"})
    access, status, noticed = _keep_most_spent(access, gateway, status)
    if status.state == "online":
        access, found, is_news = duplicates.note_status(access, context, gateway, status)
    else:
        found, is_news = [], True
    if not is_news:
        access = _keep_spent(access, gateway)
        is_changed = access.gateways is not held.gateways or access.sessions is not held.sessions
        stored = [duplicates.record(access, gateway)] if is_changed else []
        return access, [
            *stored,
            *found,
            Log("info", f"status of {gateway}: {_explain_old(access, gateway, status)}"),
        ]
    access = replace(access, gateways={**access.gateways, gateway: status})
    access, changed = attendance.note_status(access, context, gateway, before, status)
    return access, [duplicates.record(access, gateway), *changed, *noticed, *found, StatusChanged(gateway, before)]


def _explain_old(access: Access, gateway: str, status: Status) -> str:
    """Say why a status does not show how a gateway is now, as far as one status can tell."""
    present = access.sessions[gateway].known[0]
    if status.store_id != present.store_id:
        return "it is of another store than the one before: it came late, or a new device begins, as its next one shows"
    if status.boot_id != present.boot_id:
        return "it is of another boot: it came late, or its store was set back, as its next one shows"
    return "it was sent before one that is here already"


def _keep_most_spent(access: Access, gateway: str, status: Status) -> tuple[Access, Status, list[Wanted]]:
    """Return a status with the most that this gateway has ever said of what it spent of its privacy, and notice one
    that says less: its account was begun anew, or is an older one.
    """
    most, stated = access.spent.get(gateway), status.privacy_epsilon
    if stated is not None and (most is None or stated >= most):
        return replace(access, spent={**access.spent, gateway: stated}), status, []
    if most is None:
        return access, status, []
    text = f"{gateway} says that it has spent epsilon {stated or 0.0:.4g} of its privacy, and said {most:.4g} before"
    noticed = NoteDropped((gateway, "privacy"), f"{text}: its store is new, or an older one")
    return access, status.model_copy(update={"privacy_epsilon": most}), [noticed]


def _keep_spent(access: Access, gateway: str) -> Access:
    """Return the record with what a late status reported of a gateway's privacy; the rest of that status is over."""
    known, most = access.gateways.get(gateway), access.spent.get(gateway)
    if known is None or known.privacy_epsilon == most:
        return access
    known = known.model_copy(update={"privacy_epsilon": most})
    return replace(access, gateways={**access.gateways, gateway: known})
