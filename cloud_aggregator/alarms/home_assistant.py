"""Notifies Home Assistant, by MQTT discovery, of alarms and gateways.

Each alarm is a binary sensor; three sensors of each gateway are how near its score is to its level, when it was last
seen, and its version.

The format is the one that Home Assistant documents for its MQTT integration: a retained JSON document under
`<prefix>/<binary_sensor or sensor>/<node>/<object>/config`, taken back by an empty one. The states stay where they are,
in our own retained topics; templates read them there. So the sensors are as new as the last status of a gateway: one a
minute as gateways are shipped, where scores are published for each window.

What was ever published is stored before it is sent. So what is published no more, since the settings have changed, is
taken back at every connect: an empty message may be lost as any other.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

from fedgate.cloud_aggregator.alarms.fleet import CAUSE
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.context import Context, Statuses, find_device
from fedgate.cloud_aggregator.events import Effect, Publish, RecordDiscovery
from fedgate.config.protocol.messages import STATUS
from fedgate.config.protocol.topics import ALL, CLOUD
from fedgate.config.runtime.version import VERSION

ANOMALY = "anomaly"
STATE = "{{ 'ON' if value_json.state == 'raised' else 'OFF' }}"
AVAILABLE = "{{ value_json.state }}"  # `online` and `offline`, which are what Home Assistant expects
NAMES = {ANOMALY: "Anomaly", CAUSE: "Fleet alarm"}
# A last will has no time, nor a gateway whose clock is not set: then it stays what it was.
SEEN = (
    "{% if value_json.state == 'online' and value_json.clock == 'synchronised' and value_json.t_ns %}"
    "{{ (value_json.t_ns / 1000000000) | as_datetime }}"
    "{% elif this.state not in ['unknown', 'unavailable'] %}{{ this.state }}{% else %}{{ none }}{% endif %}"
)
# What Home Assistant shows of a status, by object; only when it was last seen is shown of a gateway that is away.
SENSORS: dict[str, dict[str, Any]] = {
    "score-over-level": {
        "name": "Score over level",
        "value_template": "{{ value_json.score_over_level }}",
        "state_class": "measurement",
        "suggested_display_precision": 2,
    },
    "last-seen": {
        "name": "Last seen",
        "value_template": SEEN,
        "device_class": "timestamp",
        "entity_category": "diagnostic",
    },
    "version": {
        "name": "Version",
        "value_template": "{{ value_json.version }}",
        "entity_category": "diagnostic",
    },
}
SHOWN_OF_WHO_IS_AWAY = "last-seen"


def publish_all(alarms: Alarms, context: Context, statuses: Statuses) -> tuple[Alarms, list[Effect]]:
    """Return everything there is to tell after a connect, and what is to be taken back."""
    before = alarms.discovered
    alarms, effects = publish(alarms, context, statuses, ALL, *statuses)
    stale = sorted(before - {effect.topic for effect in effects if isinstance(effect, Publish)})
    return alarms, [*effects, *(Publish(where, b"", retain=True) for where in stale)]


def publish(
    alarms: Alarms, context: Context, statuses: Statuses, *gateways: str, only_new: bool = False
) -> tuple[Alarms, list[Effect]]:
    """Publish gateways and their alarms; with `only_new` those that were not published."""
    wanted: dict[str, bytes] = {}
    for gateway in gateways:
        wanted |= _make_documents(alarms, context, statuses, gateway)
    new = wanted.keys() - alarms.discovered
    shown = [Publish(where, body, retain=True) for where, body in wanted.items() if where in new or not only_new]
    stored = [RecordDiscovery(where) for where in sorted(new)]
    return replace(alarms, discovered=alarms.discovered | new), [*stored, *shown]


def _make_documents(alarms: Alarms, context: Context, statuses: Statuses, gateway: str) -> dict[str, bytes]:
    """Return the documents of one gateway, or of the site itself, by topic."""
    if not context.settings.home_assistant.enabled:
        return {}
    if gateway == ALL:
        causes, sensors = [CAUSE] if context.settings.fleet.enabled else [], list[str]()
    else:
        seen = {known.alarm.cause for known in alarms.book.get(gateway, {}).values()}
        causes, sensors = sorted({ANOMALY} | seen), list(SENSORS)
    return {
        **{
            _make_topic(context, "binary_sensor", gateway, cause): _describe_alarm(context, statuses, gateway, cause)
            for cause in causes
        },
        **{
            _make_topic(context, "sensor", gateway, name): _describe_sensor(context, statuses, gateway, name)
            for name in sensors
        },
    }


def _make_topic(context: Context, component: Literal["binary_sensor", "sensor"], gateway: str, name: str) -> str:
    prefix = context.settings.home_assistant.prefix
    return f"{prefix}/{component}/{_name_node(context, gateway)}/{_escape(name)}/config"


def _name_node(context: Context, gateway: str) -> str:
    return f"fedgate_s{_escape(context.settings.aggregator.site)}_s{_escape(gateway)}"


def _escape(name: str) -> str:
    """Return a name in the letters that discovery allows, which lack the dot; other names stay other names.

    An underscore is followed by what it stands for, so that `_s` is free to part names, and `_m` to part what is
    measured.
    """
    return name.replace("_", "__").replace(".", "_d")


def _describe_alarm(context: Context, statuses: Statuses, gateway: str, cause: str) -> bytes:
    state_topic = context.topic(gateway, "alarm", cause)
    return _write(
        {
            "name": NAMES.get(cause, cause),
            "unique_id": f"{_name_node(context, gateway)}_s{_escape(cause)}",
            "state_topic": state_topic,
            "value_template": STATE,
            "payload_on": "ON",
            "payload_off": "OFF",
            "json_attributes_topic": state_topic,
            "device_class": "problem",
            "availability": _describe_availability(context, gateway),
            **_describe_origin(context, statuses, gateway),
        }
    )


def _describe_sensor(context: Context, statuses: Statuses, gateway: str, name: str) -> bytes:
    is_always_there = name == SHOWN_OF_WHO_IS_AWAY
    return _write(
        {
            **SENSORS[name],
            "unique_id": f"{_name_node(context, gateway)}_m{_escape(name)}",
            "state_topic": context.topic(gateway, "status", STATUS),
            **({} if is_always_there else {"availability": _describe_availability(context, gateway)}),
            **_describe_origin(context, statuses, gateway),
        }
    )


def _write(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _describe_availability(context: Context, gateway: str) -> list[dict[str, str]]:
    return [
        {
            "topic": context.topic(gateway, "status", CLOUD if gateway == ALL else STATUS),
            "value_template": AVAILABLE,
            "payload_available": "online",
            "payload_not_available": "offline",
        }
    ]


def _describe_origin(context: Context, statuses: Statuses, gateway: str) -> dict[str, Any]:
    """Return what every document has: of which device it is, and who says so."""
    return {
        "qos": 1,
        "device": _describe_device(context, statuses, gateway),
        "origin": {"name": "fedgate", "sw_version": VERSION},
    }


def _describe_device(context: Context, statuses: Statuses, gateway: str) -> dict[str, Any]:
    site = context.settings.aggregator.site
    if gateway == ALL:
        return {"identifiers": [_name_node(context, ALL)], "name": f"fedgate site {site}", "sw_version": VERSION}
    device, status = find_device(statuses, gateway), statuses.get(gateway)
    fields = {
        "manufacturer": device.manufacturer if device else "",
        "model": device.model if device else "",
        "serial_number": device.serial if device else "",
        "suggested_area": device.location if device else "",
        "sw_version": status.version if status else "",
    }
    known = {key: value for key, value in fields.items() if value}
    return {
        "identifiers": [_name_node(context, gateway)],
        "name": f"{site} {gateway}",
        **known,
        "via_device": _name_node(context, ALL),
    }
