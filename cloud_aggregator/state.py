"""Everything the aggregator knows between two events: one record a component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator.access import access, duplicates
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.device_sessions import DeviceSessions
from fedgate.cloud_aggregator.alarms import register
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import HoldUpdate, SaveTraining
from fedgate.cloud_aggregator.limits import HourlyCount
from fedgate.cloud_aggregator.presence import Presence
from fedgate.cloud_aggregator.releases import releases
from fedgate.cloud_aggregator.releases.releases import Releases
from fedgate.cloud_aggregator.rounds import rounds
from fedgate.cloud_aggregator.rounds.rounds import Rounds
from fedgate.cloud_aggregator.samples import fetches
from fedgate.cloud_aggregator.samples.fetches import Fetches
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.federated.protocol.algorithm import Algorithm


@dataclass(frozen=True)
class State:
    """The aggregator between two events."""

    context: Context
    rounds: Rounds
    access: Access = field(default_factory=Access)
    releases: Releases = field(default_factory=Releases)
    alarms: Alarms = field(default_factory=Alarms)
    fetches: Fetches = field(default_factory=Fetches)
    presence: Presence = field(default_factory=Presence)
    failures: dict[str, HourlyCount] = field(default_factory=dict)  # by gateway: messages whose handling failed
    dropped: dict[tuple[str, str], HourlyCount] = field(default_factory=dict)  # of no sense, by gateway and channel
    logged: dict[str, HourlyCount] = field(default_factory=dict)  # by gateway: lines of the log that are about it


@dataclass(frozen=True)
class Stored:
    """What the store held when the aggregator started."""

    training: SaveTraining | None = None
    releases: Releases = field(default_factory=Releases)
    gateways: dict[str, Status] = field(default_factory=dict)
    alarms: Alarms = field(default_factory=Alarms)
    held: Mapping[str, HoldUpdate] = field(default_factory=dict)
    sessions: dict[str, DeviceSessions] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    fetches: Fetches = field(default_factory=Fetches)


def restore(
    settings: AggregatorSettings,
    key: Ed25519PrivateKey,
    algorithm: Algorithm,
    stored: Stored,
    uptime_ns: int,
    beginning: str = "first",
    anchor_ns: int = 0,
) -> State:
    """Return the state of an aggregator that starts with what its store held."""
    context = Context(settings, key, uptime_ns, anchor_ns)
    signs = duplicates.restore_signs(uptime_ns, register.list_active(stored.alarms.book), stored.sessions)
    return State(
        context,
        rounds.restore(context, algorithm, beginning, stored.training, stored.held),
        access.restore(stored.gateways, stored.sessions, stored.seen, signs),
        releases.resume(context, stored.releases),
        stored.alarms,
        fetches.resume(stored.fetches, context),
    )
