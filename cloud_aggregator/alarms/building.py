"""Alarms for a building automation system: which device, made by whom, what is wrong, since when."""

from __future__ import annotations

from datetime import UTC, datetime

from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.alarms.register import AlarmRecord, current
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Effect, Publish
from fedgate.config.protocol.messages import Alarm, Device, FleetAlarm, Maintenance
from fedgate.config.protocol.topics import ALL
from fedgate.models.time_units import NS

UNTOLD = Device()  # of a gateway that says nothing of it, and of a whole site


def device_of(access: Access, gateway: str) -> Device | None:
    """Return what a gateway has told of what it watches."""
    status = access.gateways.get(gateway)
    return None if status is None else status.device


def of_change(alarms: Alarms, context: Context, access: Access, gateway: str, known: AlarmRecord) -> list[Effect]:
    """Return the message of an alarm that has changed.

    It is retained where it says how its cause is now: the late end of an earlier alarm is told, but must not hide
    that another one stands.
    """
    is_current = current(alarms.book, gateway).get(known.alarm.cause) == known
    return [_publish(context, access, gateway, known.alarm, retain=is_current)]


def of_fleet(alarms: Alarms, context: Context, access: Access) -> list[Effect]:
    """Return the message of the latest fleet alarm, where there is one."""
    alarm = alarms.fleet.alarm
    return [] if alarm is None else [_publish(context, access, ALL, alarm)]


def of_gateway(alarms: Alarms, context: Context, access: Access, gateway: str) -> list[Effect]:
    """Return how each cause of a gateway is now, for a broker or a listener that may have missed it."""
    return [_publish(context, access, gateway, known.alarm) for known in current(alarms.book, gateway).values()]


def _publish(context: Context, access: Access, gateway: str, alarm: Alarm, *, retain: bool = True) -> Publish:
    device = device_of(access, gateway) or UNTOLD
    message = Maintenance(
        **device.model_dump(),
        id=alarm.id,
        state=alarm.state,
        site=context.settings.aggregator.site,
        device=gateway,
        what=alarm.cause,
        rule=alarm.rule,
        feature=alarm.feature,
        common=alarm.common if isinstance(alarm, FleetAlarm) else "",
        gateways=alarm.gateways if isinstance(alarm, FleetAlarm) else (),
        kind=alarm.kind,
        severity=alarm.severity,
        text=alarm.text,
        since=_iso(alarm.onset_ns),
        until=_iso(alarm.t_ns) if alarm.state == "cleared" else "",
        clock=alarm.clock,
    )
    return Publish(context.topic(gateway, "maintenance", alarm.cause), message.to_bytes(), retain=retain)


def _iso(t_ns: int) -> str:
    return datetime.fromtimestamp(t_ns // NS, UTC).isoformat()
