"""Whether the service works, and which gateways were heard live: what `cloud-aggregator status` rests on.

A store knows nothing of the time in which nobody writes to it. So the service writes every `BEAT_S` that it still
works, from the loop that does the work, and at once when the broker's connection comes or goes: one small commit a
minute. Who reads it compares that with the clock, and looks whether the store is held by a process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import RecordService
from fedgate.config.protocol.messages import Status

NS = 1_000_000_000
BEAT_S = 60.0
QUEUED_S = 30.0  # after a connection began, in which what comes may have waited at the broker


@dataclass(frozen=True)
class Presence:
    """How the service stands with the broker and with its own sign of life."""

    connected_ns: int = 0  # since when it is connected, or is not
    heartbeat: RecordService | None = None  # as it was last stored; None: it is not to be


Result = tuple[Presence, list[RecordService]]


def start(before: RecordService | None, now_ns: int) -> Presence:
    """Return the presence of a service that begins, without a connection: since the last sign of the one before it,
    where that had one; `before` is what the store holds.
    """
    since_ns = now_ns
    if before is not None:
        since_ns = min(before.beat_ns if before.is_connected else before.link_ns, now_ns)
    return Presence(since_ns, RecordService(now_ns, 0, False, since_ns))


def connection_changed(presence: Presence, context: Context) -> Result:
    """Note that the broker's connection came or went."""
    return _write_heartbeat(replace(presence, connected_ns=context.now_ns), context)


def write_heartbeat_if_due(presence: Presence, context: Context) -> Result:
    """Write that the service works, where that was last written long enough ago."""
    last = presence.heartbeat
    if last is None or 0 <= context.now_ns - last.beat_ns < BEAT_S * NS:
        return presence, []
    return _write_heartbeat(presence, context)


def _write_heartbeat(presence: Presence, context: Context) -> Result:
    last = presence.heartbeat
    if last is None:
        return presence, []
    now = RecordService(last.began_ns, context.now_ns, context.is_connected, presence.connected_ns)
    return replace(presence, heartbeat=now), [now]


def seen_ns(presence: Presence, context: Context, status: Status, *, is_retained: bool) -> int | None:
    """Return when a gateway was there, as far as a status shows it; None where it does not.

    What the broker had kept does not, nor does an offline status: a last will is the broker's word, and comes late to
    who was away. What waited at the broker for us counts from when it was said, where the gateway's clock is right.
    """
    if is_retained or status.state == "offline":
        return None
    if status.clock == "synchronised" and status.t_ns is not None:
        return min(status.t_ns, context.now_ns)
    return None if context.now_ns - presence.connected_ns < QUEUED_S * NS else context.now_ns
