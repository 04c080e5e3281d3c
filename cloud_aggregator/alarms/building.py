"""Alarms for a building automation system: which device, made by whom, what is wrong, since when."""

from __future__ import annotations

from datetime import UTC, datetime

from fedgate.cloud_aggregator.alarms.register import NS, AlarmRecord, current
from fedgate.cloud_aggregator.events import Effect, Publish
from fedgate.cloud_aggregator.state import State, topic
from fedgate.config.protocol.messages import Alarm, Device, FleetAlarm, Maintenance
from fedgate.config.protocol.topics import ALL

UNTOLD = Device()  # of a gateway that says nothing of it, and of a whole site


def device_of(state: State, gateway: str) -> Device | None:
    """Return what a gateway has told of what it watches."""
    status = state.gateways.get(gateway)
    return None if status is None else status.device


def of_change(state: State, gateway: str, known: AlarmRecord) -> list[Effect]:
    """Return the message of an alarm that has changed.

    It is retained where it says how its cause is now: the late end of an earlier alarm is told, but must not hide
    that another one stands.
    """
    is_current = current(state.outward.alarms, gateway).get(known.alarm.cause) == known
    return [_publish(state, gateway, known.alarm, retain=is_current)]


def of_fleet(state: State) -> list[Effect]:
    """Return the message of the latest fleet alarm, where there is one."""
    alarm = state.outward.fleet.alarm
    return [] if alarm is None else [_publish(state, ALL, alarm)]


def of_gateway(state: State, gateway: str) -> list[Effect]:
    """Return how each cause of a gateway is now, for a broker or a listener that may have missed it."""
    return [_publish(state, gateway, known.alarm) for known in current(state.outward.alarms, gateway).values()]


def _publish(state: State, gateway: str, alarm: Alarm, *, retain: bool = True) -> Publish:
    device = device_of(state, gateway) or UNTOLD
    message = Maintenance(
        **device.model_dump(),
        id=alarm.id,
        state=alarm.state,
        site=state.settings.aggregator.site,
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
    return Publish(topic(state, gateway, "maintenance", alarm.cause), message.to_bytes(), retain=retain)


def _iso(t_ns: int) -> str:
    return datetime.fromtimestamp(t_ns // NS, UTC).isoformat()
