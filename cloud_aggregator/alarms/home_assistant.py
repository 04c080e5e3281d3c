"""Tells Home Assistant, by MQTT discovery, which alarms there are: one binary sensor for each.

The format is the one that Home Assistant documents for its MQTT integration: a retained JSON document under
`<prefix>/binary_sensor/<node>/<object>/config`, taken back by an empty one. The states stay where they are, in our own
retained topics; templates read them there.

What was ever told is stored before it is sent. So what is told no more, since the settings have changed, is taken back
at every connect: an empty message may be lost as any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedgate.cloud_aggregator.alarms.building import device_of
from fedgate.cloud_aggregator.alarms.fleet import CAUSE
from fedgate.cloud_aggregator.events import Effect, Publish, RecordDiscovery
from fedgate.cloud_aggregator.state import State, topic
from fedgate.config.protocol.topics import ALL, CLOUD
from fedgate.config.runtime.version import VERSION
from fedgate.models.records import replace

ANOMALY = "anomaly"
STATE = "{{ 'ON' if value_json.state == 'raised' else 'OFF' }}"
AVAILABLE = "{{ value_json.state }}"  # `online` and `offline`, which are what Home Assistant expects
NAMES = {ANOMALY: "Anomaly", CAUSE: "Fleet alarm"}


def sync(state: State) -> tuple[State, list[Effect]]:
    """Return everything there is to tell after a connect, and what is to be taken back."""
    wanted: dict[str, bytes] = {}
    for gateway in (ALL, *state.gateways):
        wanted |= _documents_of(state, gateway)
    stale = sorted(state.outward.discovered - wanted.keys())
    state, effects = _publish_new(state, wanted)
    return state, [*effects, *(Publish(where, b"", retain=True) for where in stale)]


def gateway_changed(state: State, gateway: str) -> tuple[State, list[Effect]]:
    """Tell of a gateway that has appeared, or of what it has changed in what it says of itself."""
    return _publish_new(state, _documents_of(state, gateway))


def cause_seen(state: State, gateway: str) -> tuple[State, list[Effect]]:
    """Tell of the alarms of a gateway that have not been told of."""
    wanted = _documents_of(state, gateway)
    return _publish_new(state, {where: body for where, body in wanted.items() if where not in state.outward.discovered})


def _publish_new(state: State, wanted: Mapping[str, bytes]) -> tuple[State, list[Effect]]:
    new = wanted.keys() - state.outward.discovered
    state = replace(state, outward=replace(state.outward, discovered=state.outward.discovered | new))
    effects: list[Effect] = [RecordDiscovery(where) for where in sorted(new)]
    return state, [*effects, *(Publish(where, body, retain=True) for where, body in wanted.items())]


def _documents_of(state: State, gateway: str) -> dict[str, bytes]:
    """Return the documents of one gateway, or of the site itself, by topic."""
    if not state.settings.home_assistant.enabled:
        return {}
    if gateway == ALL:
        causes = [CAUSE] if state.settings.fleet.enabled else []
    else:
        seen = {known.alarm.cause for known in state.outward.alarms.get(gateway, {}).values()}
        causes = sorted({ANOMALY} | seen)
    return {_topic(state, gateway, cause): _document(state, gateway, cause) for cause in causes}


def _topic(state: State, gateway: str, cause: str) -> str:
    prefix = state.settings.home_assistant.prefix
    return f"{prefix}/binary_sensor/{_node(state, gateway)}/{_plain(cause)}/config"


def _node(state: State, gateway: str) -> str:
    return f"fedgate_s{_plain(state.settings.aggregator.site)}_s{_plain(gateway)}"


def _plain(name: str) -> str:
    """Return a name in the letters that discovery allows, which lack the dot; other names stay other names.

    An underscore is followed by what it stands for, so that `_s` is free to part names.
    """
    return name.replace("_", "__").replace(".", "_d")


def _document(state: State, gateway: str, cause: str) -> bytes:
    status_item = CLOUD if gateway == ALL else "agent"
    state_topic = topic(state, gateway, "alarm", cause)
    document = {
        "name": NAMES.get(cause, cause),
        "unique_id": f"{_node(state, gateway)}_s{_plain(cause)}",
        "state_topic": state_topic,
        "value_template": STATE,
        "payload_on": "ON",
        "payload_off": "OFF",
        "json_attributes_topic": state_topic,
        "device_class": "problem",
        "availability": [
            {
                "topic": topic(state, gateway, "status", status_item),
                "value_template": AVAILABLE,
                "payload_available": "online",
                "payload_not_available": "offline",
            }
        ],
        "qos": 1,
        "device": _device(state, gateway),
        "origin": {"name": "fedgate", "sw_version": VERSION},
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _device(state: State, gateway: str) -> dict[str, Any]:
    site = state.settings.aggregator.site
    if gateway == ALL:
        return {"identifiers": [_node(state, ALL)], "name": f"fedgate site {site}", "sw_version": VERSION}
    device, status = device_of(state, gateway), state.gateways.get(gateway)
    fields = {
        "manufacturer": device.manufacturer if device else "",
        "model": device.model if device else "",
        "serial_number": device.serial if device else "",
        "suggested_area": device.location if device else "",
        "sw_version": status.version if status else "",
    }
    known = {key: value for key, value in fields.items() if value}
    return {
        "identifiers": [_node(state, gateway)],
        "name": f"{site} {gateway}",
        **known,
        "via_device": _node(state, ALL),
    }
