"""Who was revoked and is not known to be: by the list that the broker has, where this store is older than that.

A store that was put back from a backup would let everybody in again who was shut out since. The list is a file of its
own; what it names stays revoked, whatever the store says.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.registry import NAMELESS, Registry
from fedgate.cloud_aggregator.enrolment import Certificate, Listed, RecordRegistry
from fedgate.cloud_aggregator.events import Effect, Log
from fedgate.cloud_aggregator.names import list_first


class CopiedWithoutLogError(ValueError):
    """The store is a file that was copied without its log; the message says what to do."""


def check(store: str, registry: Registry, event: Listed) -> None:
    """Raise `CopiedWithoutLogError` where a store that was there knows nobody, and the list names revoked ones.

    What SQLite has committed stands in the log beside the file for a long time, so a copy of the file alone may hold
    nothing. It would begin as a new site, to which all gateways are strangers.
    """
    if registry.certificates or not event.ended:
        return
    raise CopiedWithoutLogError(
        f"{store}: it knows no gateway, and revoked.crl names {len(event.ended)} certificates: the file seems to be a "
        f"copy without its log, {store}-wal, in which all else stood. Stop whatever uses the original, put both "
        "files here, or a backup ('cloud-aggregator restore'). Where all is lost, remove the file: the site begins "
        "anew, and who is on the list stays revoked"
    )


def take_list(access: Access, event: Listed) -> tuple[Access, list[Effect]]:
    """Take in what the list names at the start. Of a certificate that was made after the backup nobody knows whose."""
    if access.registry is None:
        return access, []
    registry = access.registry
    over = tuple(_end(registry, serial, t_ns) for serial, t_ns in event.ended if not registry.is_over(serial))
    if not over:
        return access, []
    who = sorted({f"serial {one.serial}" if one.gateway == NAMELESS else one.gateway for one in over})
    words = list_first(who)
    text = (
        f"this store is older than revoked.crl, which names {len(over)} certificates more: {words}. They stay revoked; "
        "what else came since the store was saved is not known here, see docs/reference/operations.md, How to restore"
    )
    access = replace(access, registry=registry.with_certificates(*over))
    return access, [RecordRegistry(over), Log("warning", text)]


def _end(registry: Registry, serial: str, t_ns: int) -> Certificate:
    made = registry.certificates.get(serial) or Certificate(serial, NAMELESS, "", t_ns, t_ns)
    return replace(made, reason="revoked", ended_ns=t_ns)
