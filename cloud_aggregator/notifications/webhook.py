"""A change of an alarm as the webhook gets it: JSON with all that is known of it."""

from __future__ import annotations

import hashlib
import json

from fedgate.cloud_aggregator.events import AlarmEvent, Post
from fedgate.config.protocol.messages import Alarm, Device

ID_LENGTH = 32


def post_of(
    site: str, gateway: str, alarm: Alarm, device: Device | None, *, active: bool, again: AlarmEvent | None = None
) -> Post:
    """Return the change as it is posted; its id is made of what it says, so one change has one id.

    `active` tells of the alarm, where the change may be told of late. `again` is why one is told of once more.
    """
    fields = {
        "site": site,
        "gateway": gateway,
        "active": active,
        "device": None if device is None else device.model_dump(mode="json"),
        "alarm": alarm.model_dump(mode="json"),
    }
    if again is not None:
        fields |= {"escalated": again.kind == "escalate", "again_ns": again.t_ns}
    text = json.dumps(fields, separators=(",", ":"))
    change = hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
    return Post(change, json.dumps({"id": change, **fields}, separators=(",", ":")).encode(), gateway)
