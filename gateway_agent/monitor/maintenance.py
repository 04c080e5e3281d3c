"""Maintenance windows that the site has announced: what is measured in them is judged, and never learned as normal."""

from __future__ import annotations

from dataclasses import replace

from fedgate.config.protocol.messages import MAINTENANCE_LONGEST_NS, MaintenanceWindows, MessageError
from fedgate.config.protocol.topics import ALL
from fedgate.gateway_agent.context import Context, check_signed
from fedgate.gateway_agent.events import Effect, Log, Save
from fedgate.gateway_agent.monitor.monitor import Monitor

MAINTENANCE = "maintenance-windows"  # key of a stored blob


def receive_maintenance(monitor: Monitor, context: Context, payload: bytes) -> tuple[Monitor, list[Effect]]:
    """Take in what was announced, where it is newer than what is known; raises `MessageError`."""
    message, known = MaintenanceWindows.from_bytes(payload), monitor.maintenance
    if known is not None and (message.changed_ns, message.expires_ns) <= (known.changed_ns, known.expires_ns):
        return monitor, []
    if reason := check_signed(context, message, ALL):
        raise MessageError(f"maintenance windows: {reason}")
    stored = Save(MAINTENANCE, message.received_bytes())
    of_ours = select_maintenance(message, context.settings.gateway.id)
    if of_ours == monitor.pipeline.maintenance:
        return replace(monitor, maintenance=message), [stored]
    monitor = set_maintenance(monitor, message, context.settings.gateway.id)
    text = f"{len(of_ours)} maintenance windows are announced, in which nothing is learned"
    return monitor, [stored, Log("info", text)]


def set_maintenance(monitor: Monitor, message: MaintenanceWindows | None, gateway: str) -> Monitor:
    """Return the monitor that goes by what was announced."""
    times = () if message is None else select_maintenance(message, gateway)
    return replace(monitor, maintenance=message, pipeline=replace(monitor.pipeline, maintenance=times))


def select_maintenance(message: MaintenanceWindows, gateway: str) -> tuple[tuple[int, int], ...]:
    """Return begin and end of those times that are a gateway's and are not too long, in ns of Unix time."""
    times = [(one.from_ns, one.to_ns) for one in message.windows if one.gateway in (ALL, gateway)]
    return tuple((from_ns, to_ns) for from_ns, to_ns in times if 0 < to_ns - from_ns <= MAINTENANCE_LONGEST_NS)


def forget_maintenance(monitor: Monitor) -> tuple[Monitor, list[Effect]]:
    """Forget what another release key has signed; the aggregator announces what holds anew."""
    if monitor.maintenance is None:
        return monitor, []
    return set_maintenance(monitor, None, ""), [Save(MAINTENANCE, b"")]
