"""Notifies Home Assistant, by MQTT discovery, which alarms there are: one binary sensor for each.

The format is the one that Home Assistant documents for its MQTT integration: a retained JSON document under
`<prefix>/binary_sensor/<node>/<object>/config`, taken back by an empty one. The states stay where they are, in our own
retained topics; templates read them there.

What was ever published is stored before it is sent. So what is published no more, since the settings have changed, is
taken back at every connect: an empty message may be lost as any other.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fedgate.cloud_aggregator.alarms.fleet import CAUSE
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.context import Context, Statuses, find_device
from fedgate.cloud_aggregator.events import Effect, Publish, RecordDiscovery
from fedgate.config.protocol.topics import ALL, CLOUD
from fedgate.config.runtime.version import VERSION

ANOMALY = "anomaly"
STATE = "{{ 'ON' if value_json.state == 'raised' else 'OFF' }}"
AVAILABLE = "{{ value_json.state }}"  # `online` and `offline`, which are what Home Assistant expects
NAMES = {ANOMALY: "Anomaly", CAUSE: "Fleet alarm"}


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
        causes = [CAUSE] if context.settings.fleet.enabled else []
    else:
        seen = {known.alarm.cause for known in alarms.book.get(gateway, {}).values()}
        causes = sorted({ANOMALY} | seen)
    return {_make_topic(context, gateway, cause): _document(context, statuses, gateway, cause) for cause in causes}


def _make_topic(context: Context, gateway: str, cause: str) -> str:
    prefix = context.settings.home_assistant.prefix
    return f"{prefix}/binary_sensor/{_name_node(context, gateway)}/{_escape(cause)}/config"


def _name_node(context: Context, gateway: str) -> str:
    return f"fedgate_s{_escape(context.settings.aggregator.site)}_s{_escape(gateway)}"


def _escape(name: str) -> str:
    """Return a name in the letters that discovery allows, which lack the dot; other names stay other names.

    An underscore is followed by what it stands for, so that `_s` is free to part names.
    """
    return name.replace("_", "__").replace(".", "_d")


def _document(context: Context, statuses: Statuses, gateway: str, cause: str) -> bytes:
    status_item = CLOUD if gateway == ALL else "agent"
    state_topic = context.topic(gateway, "alarm", cause)
    document = {
        "name": NAMES.get(cause, cause),
        "unique_id": f"{_name_node(context, gateway)}_s{_escape(cause)}",
        "state_topic": state_topic,
        "value_template": STATE,
        "payload_on": "ON",
        "payload_off": "OFF",
        "json_attributes_topic": state_topic,
        "device_class": "problem",
        "availability": [
            {
                "topic": context.topic(gateway, "status", status_item),
                "value_template": AVAILABLE,
                "payload_available": "online",
                "payload_not_available": "offline",
            }
        ],
        "qos": 1,
        "device": _describe_device(context, statuses, gateway),
        "origin": {"name": "fedgate", "sw_version": VERSION},
    }
    return json.dumps(document, separators=(",", ":")).encode()


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
