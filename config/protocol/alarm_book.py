"""Alarms of one gateway that are active: of each cause at most one, raised once and cleared once, both under its id.

Both ends raise them, a gateway of what it watches and the aggregator of the gateway itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgate.config.protocol.messages import Alarm


@dataclass(frozen=True)
class AlarmBook:
    """The active alarms by cause, each as it was raised, and the number of the latest that was ever raised."""

    active: Mapping[str, Alarm] = field(default_factory=dict)
    raised: int = 0

    def raise_once(self, alarm: Alarm) -> tuple[AlarmBook, Alarm | None]:
        """Return the book with an alarm, and the alarm; None where one of its cause is active."""
        if alarm.cause in self.active:
            return self, None
        return AlarmBook({**self.active, alarm.cause: alarm}, max(self.raised, alarm.sequence)), alarm

    def clear_once(self, cause: str, text: str, **changes: Any) -> tuple[AlarmBook, Alarm | None]:
        """Return the book without the alarm of a cause, and its end with these changes, its time among them;
        None where it is not active.
        """
        if cause not in self.active:
            return self, None
        others = {other: alarm for other, alarm in self.active.items() if other != cause}
        end = self.active[cause].model_copy(update={"state": "cleared", "text": text, **changes})
        return AlarmBook(others, self.raised), end

    def dump(self) -> dict[str, Any]:
        """Return what `restore` takes, as JSON-able values."""
        active = [alarm.model_dump(mode="json", exclude_defaults=True) for alarm in self.active.values()]
        return {"active": active, "raised": self.raised}


def restore(held: Mapping[str, Any]) -> AlarmBook:
    """Return the book that `dump` gave."""
    alarms = [Alarm.model_validate(one) for one in held["active"]]
    return AlarmBook({alarm.cause: alarm for alarm in alarms}, held["raised"])
