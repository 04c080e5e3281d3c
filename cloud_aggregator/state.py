"""Everything the aggregator knows between two events: one record a component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator.access import access, duplicates
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.device_sessions import DeviceSessions
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import HoldUpdate, SaveTraining
from fedgate.cloud_aggregator.limits import HourlyCount
from fedgate.cloud_aggregator.presence import Presence
from fedgate.cloud_aggregator.releases import releases
from fedgate.cloud_aggregator.releases.releases import Releases
from fedgate.cloud_aggregator.rounds import rounds
from fedgate.cloud_aggregator.rounds.rounds import Rounds
from fedgate.cloud_aggregator.runtime import defence
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.settings import AggregatorSettings


@dataclass(frozen=True)
class State:
    """The aggregator between two events."""

    context: Context
    rounds: Rounds
    access: Access = field(default_factory=Access)
    releases: Releases = field(default_factory=Releases)
    alarms: Alarms = field(default_factory=Alarms)
    presence: Presence = field(default_factory=Presence)
    failures: dict[str, HourlyCount] = field(default_factory=dict)  # by gateway: messages whose handling failed
    dropped: dict[tuple[str, str], HourlyCount] = field(default_factory=dict)  # of no sense, by gateway and channel
    logged: dict[str, HourlyCount] = field(default_factory=dict)  # by gateway: lines of the log that are about it


def restore(
    settings: AggregatorSettings,
    key: Ed25519PrivateKey,
    training: SaveTraining | None,
    released: Releases | None,
    gateways: dict[str, Status],
    uptime_ns: int,
    beginning: str = "first",
    material: defence.Material = defence.NOTHING,
    alarms: Alarms | None = None,
    held: Mapping[str, HoldUpdate] | None = None,
    sessions: Mapping[str, DeviceSessions] | None = None,
    seen: Mapping[str, int] | None = None,
    anchor_ns: int = 0,
) -> State:
    """Return the state of an aggregator that starts with what its store held."""
    context = Context(settings, key, uptime_ns, anchor_ns)
    alarms = alarms or Alarms()
    algorithm = defence.algorithm_of(settings, material)
    return State(
        context,
        rounds.restore(context, algorithm, beginning, training, held or {}),
        access.restore(
            gateways,
            dict(sessions or {}),
            dict(seen or {}),
            duplicates.restore_signs(context, alarms, sessions or {}),
        ),
        releases.resume(context, released or Releases()),
        alarms,
    )
