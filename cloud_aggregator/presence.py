"""Whether the service works, and which gateways were received live: what `cloud-aggregator status` rests on.

A store knows nothing of the time in which nobody writes to it. So the service writes every `BEAT_S` that it still
works, from the loop that does the work, and at once when the broker's connection comes or goes: one small commit a
minute. Who reads it compares that with the clock, and looks whether the store is held by a process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgate.cloud_aggregator.availability import Changes, note_change
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import PresenceState, RecordPresence, RecordService
from fedgate.cloud_aggregator.health import HANGS_S
from fedgate.config.protocol.messages import Status
from fedgate.models.time_units import NS

BEAT_S = 60.0
QUEUED_S = 30.0  # after a connection began, in which what comes may have waited at the broker


@dataclass(frozen=True)
class Presence:
    """How the service stands with the broker and with its own sign of life; all since the boot."""

    connected_ns: int = 0  # since when it is connected, or is not
    began_ns: int = 0
    beat_ns: int | None = None  # when its sign of life was stored last; None: it is not to be
    lost_ns: int | None = None  # Unix time of the last sign of a service that ended without another, until it is stored
    changes: Changes | None = None  # of the connection, that were stored last


Result = tuple[Presence, list[RecordService | RecordPresence]]


def start(before: RecordService | None, context: Context) -> Presence:
    """Return the presence of a service that begins, without a connection: since the last sign of the one before it,
    where that had one; `before` is what the store holds.
    """
    since_ns = now_ns = context.uptime_ns
    lost_ns = None
    if before is not None:
        lost_ns = before.beat_ns if before.is_connected else None
        last_ns = before.beat_ns if before.is_connected else before.link_ns
        since_ns = min(last_ns - context.anchor_ns, now_ns)
    return Presence(since_ns, now_ns, now_ns - round(BEAT_S * NS), lost_ns)


def note_connection(presence: Presence, context: Context) -> Result:
    """Note that the broker's connection came or went."""
    presence, beat = write_heartbeat(replace(presence, connected_ns=context.uptime_ns), context)
    if not beat:
        return presence, []
    return _add_change(presence, context, "connected" if context.is_connected else "disconnected", beat)


def _add_change(
    presence: Presence,
    context: Context,
    state: PresenceState,
    before: list[RecordService | RecordPresence],
    t_ns: int | None = None,
) -> Result:
    changes = note_change(presence.changes, context, "", state, t_ns)
    return replace(presence, changes=changes), [*before, changes.row]


def write_heartbeat_if_due(presence: Presence, context: Context) -> Result:
    """Write that the service works, where that was last written long enough ago."""
    if presence.beat_ns is None or context.uptime_ns - presence.beat_ns < BEAT_S * NS:
        return presence, []
    silent_ns = context.uptime_ns - presence.beat_ns
    presence, beat = write_heartbeat(presence, context)
    if not context.is_connected or silent_ns <= HANGS_S * NS:
        return presence, beat
    # It did nothing in that time, so nobody watched what came.
    presence, beat = _add_change(presence, context, "disconnected", beat, context.now_ns - silent_ns)
    return _add_change(presence, context, "connected", beat)


def follow_clock(presence: Presence, by_ns: int, context: Context) -> Result:
    """Write that the service works after its clock was set: nobody knows of the time that was left out."""
    presence, beat = write_heartbeat(presence, context)
    if not beat or not context.is_connected:
        return presence, beat
    if by_ns > 0:
        presence, beat = _add_change(presence, context, "disconnected", beat, context.now_ns - by_ns)
    return _add_change(presence, context, "connected", beat)


def write_heartbeat(presence: Presence, context: Context) -> Result:
    """Write that the service works: who reads it compares that with the wall clock."""
    if presence.beat_ns is None:
        return presence, []
    began_ns, link_ns = (since_ns + context.anchor_ns for since_ns in (presence.began_ns, presence.connected_ns))
    beat = RecordService(began_ns, context.now_ns, context.is_connected, link_ns)
    lost_ns, presence = presence.lost_ns, replace(presence, beat_ns=context.uptime_ns, lost_ns=None)
    return (presence, [beat]) if lost_ns is None else _add_change(presence, context, "disconnected", [beat], lost_ns)


def find_seen_ns(presence: Presence, context: Context, status: Status, *, is_retained: bool) -> int | None:
    """Return when a gateway was there, as far as a status shows it; None where it does not.

    What the broker had kept does not, nor does an offline status: a last will is the broker's word, and comes late to
    who was away. What waited at the broker for us counts from when it was said, where the gateway's clock is right.
    """
    if is_retained or status.state == "offline":
        return None
    if status.clock == "synchronised" and status.t_ns is not None:
        return min(status.t_ns, context.now_ns)
    return None if context.uptime_ns - presence.connected_ns < QUEUED_S * NS else context.now_ns
