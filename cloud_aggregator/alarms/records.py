"""What the aggregator holds of alarms and of those it tells of them, between two events and across a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgate.cloud_aggregator.alarms.fleet import Fleet, restore_fleet
from fedgate.cloud_aggregator.alarms.register import Alarms, Quiet, restore_alarms
from fedgate.cloud_aggregator.alarms.webhook import DROPPED, REFUSED, Queue, in_turns
from fedgate.cloud_aggregator.events import Post
from fedgate.config.protocol.topics import ALL

ALARMS_REFUSED = "alarms_refused"


@dataclass(frozen=True)
class Outward:
    """All of it; a part of the aggregator's state."""

    alarms: Alarms = field(default_factory=dict)
    alarms_refused: int = 0  # messages of alarms of one cause too many, ever
    quiet: dict[str, Quiet] = field(default_factory=dict)  # gateway -> since when it says that it has no alarm
    fleet: Fleet = field(default_factory=Fleet)
    queue: Queue = field(default_factory=Queue)
    discovered: frozenset[str] = frozenset()  # topics under which Home Assistant was ever told something


def outward(
    alarms: Iterable[Mapping[str, Any]],
    posts: Iterable[Post],
    discovered: Iterable[str],
    counts: Mapping[str, int],
) -> Outward:
    """Return what a store holds of it; `alarms` in the order they were received."""
    rows = [dict(row) for row in alarms]
    return Outward(
        alarms=restore_alarms(row for row in rows if row["gateway"] != ALL),
        fleet=restore_fleet(row for row in rows if row["gateway"] == ALL),
        alarms_refused=counts.get(ALARMS_REFUSED, 0),
        queue=Queue(in_turns(posts), dropped=counts.get(DROPPED, 0), refused=counts.get(REFUSED, 0)),
        discovered=frozenset(discovered),
    )
