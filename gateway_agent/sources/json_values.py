"""Sensors that publish JSON on a topic of their own: Zigbee2MQTT, Tasmota, ESPHome and the like work as they are."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedgate.config.protocol.frames import TIME_NS_MAX
from fedgate.config.protocol.messages import MessageError
from fedgate.config.settings.settings import Source
from fedgate.models.windows.grid import Block

WHOLE_PAYLOAD = "."  # the path of a sensor that publishes a bare number


def read(source: Source, payload: bytes, now_ns: int) -> Block:
    """Return one reading of a JSON source as a block of one sample, as it came; raises `MessageError`.

    Its time is the message's own where `time_path` is set, else the time of arrival `now_ns`.
    """
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"source {source.name}: payload is not JSON ({error})") from None
    values = [_number(source, channel.path, _find_value(source, document, channel.path)) for channel in source.channels]
    t_ns = now_ns if not source.time_path else _time_ns(source, _find_value(source, document, source.time_path))
    return Block(stream=source.name, t_ns=t_ns, rate_hz=0.0, values=np.array([values]))


def _find_value(source: Source, document: Any, path: str) -> Any:
    found = document
    for part in () if path == WHOLE_PAYLOAD else path.split("."):
        if not isinstance(found, dict) or part not in found:
            raise MessageError(f"source {source.name}: no value at {path!r}; check the path in the settings")
        found = found[part]
    return found


def _number(source: Source, path: str, value: Any) -> float:
    if isinstance(value, bool | int | float):
        with suppress(OverflowError):  # an integer of hundreds of digits
            return float(value)
    raise MessageError(f"source {source.name}: expected a number at {path!r}, got {str(value)[:40]!r}")


def _time_ns(source: Source, value: Any) -> int:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            value = zoned.timestamp()
        t_ns = int(value * 1e9) if isinstance(value, int | float) else None
    except (ValueError, OverflowError):
        t_ns = None
    if t_ns is not None and abs(t_ns) <= TIME_NS_MAX:
        return t_ns
    raise MessageError(
        f"source {source.name}: expected ISO 8601 or Unix seconds at {source.time_path!r}, got {str(value)[:40]!r}"
    )
