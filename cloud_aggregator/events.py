"""What happens to the aggregator, and what it wants done.

The shell makes the store effects of a step durable, in one transaction, before it publishes anything of that step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedgate.cloud_aggregator.enrolment import (
    CertificateRequested,
    Denied,
    EnrolmentEffect,
    Listed,
    NotStated,
    Recorded,
    Revoked,
    Stated,
)
from fedgate.config.protocol.delivery_queue import Dequeue as Dequeue
from fedgate.config.protocol.delivery_queue import Enqueue as Enqueue
from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.feature_summary import FeatureSummary
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Alarm, FleetAlarm, Manifest, Status
from fedgate.config.protocol.scores import Scores
from fedgate.config.runtime.events import ClockSet as ClockSet
from fedgate.config.runtime.events import Connection as Connection
from fedgate.config.runtime.events import Log as Log
from fedgate.config.runtime.events import Publish as Publish
from fedgate.config.runtime.events import Received as Received
from fedgate.config.settings.notifications import WEBHOOK
from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.algorithm import Algorithm, Server

Severity = Literal["warning", "major", "critical"]


@dataclass(frozen=True)
class Tick:
    """Time passed; comes about once a second."""


@dataclass(frozen=True)
class Posted:
    """An attempt to post came to its end; `problem` is empty where the receiver took it."""

    id: str
    problem: str = ""
    is_refused: bool = False  # the receiver will not take this change, however often it is sent
    channel: str = WEBHOOK  # whose receiver it was


@dataclass(frozen=True)
class Ordered:
    """The operator wants something done; see `orders`."""

    number: int
    kind: str
    body: dict[str, Any]
    model: tuple[Manifest, bytes] | None = None  # the stored one that the order names by its version
    # Of the alarms that it names, as gateway/id, those that the store has, and what was done about each; and of names
    # that may be one of several, which these are.
    stored: Mapping[str, tuple[AlarmEvent, ...]] = field(default_factory=dict)
    several: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


ACTION = "action:"  # begins the kind of an order that came over MQTT; behind it is the user


class OrderError(ValueError):
    """An order that cannot be carried out; the message says why and what to do."""


Event = (
    Received
    | Connection
    | Tick
    | ClockSet
    | Posted
    | Ordered
    | CertificateRequested
    | Revoked
    | Denied
    | Listed
    | Stated
    | NotStated
)


@dataclass(frozen=True)
class Post:
    """A change of an alarm on its way to a receiver; the id is the same however often it is sent."""

    id: str
    body: bytes
    gateway: str = ""  # whose alarm it is
    channel: str = WEBHOOK  # to whom it goes: the webhook, or a channel of `[[notify]]` by its name


@dataclass(frozen=True, eq=False)
class SaveTraining:
    """Store the state of the training: server, what the open round has counted, who was counted.

    Of several that are committed together only the last is written.
    """

    arrays: Arrays
    meta: dict[str, Any] = field(default_factory=dict)  # as JSON has it


@dataclass(frozen=True)
class HoldUpdate:
    """Store an update until the round that counts it is closed, or another of this gateway is stored: what it adds to
    the sum of its round (see `store_counted`), or, where it came later (see `late_updates`), its body.
    """

    gateway: str
    run: str
    round_index: int
    digest: str
    body: bytes


@dataclass(frozen=True)
class DropHeld:
    """Remove all updates that were held: the round that counts them is closed. Those of one round, where it is named:
    their sum is stored.
    """

    round_index: int | None = None


# What the store counts of all rounds that it ever stored, by name.
ROUNDS_CLOSED, ROUNDS_GIVEN_UP, ROUNDS_OPEN_MS = "rounds.closed", "rounds.given-up", "rounds.open-ms"
UPDATES_ADMITTED, UPDATES_REFUSED, UPDATES_BYTES = "updates.admitted", "updates.refused", "updates.bytes"


CHANGE = "change"  # of the figures of a round: see `rounds.figures.measure_change`


@dataclass(frozen=True)
class RecordRound:
    """Store that a round was closed."""

    run: str
    round_index: int
    algorithm: str
    gateways: tuple[str, ...]  # in the order in which their updates were merged
    refused: int
    closed_ns: int
    bytes_received: int = 0  # in chunks of updates, those sent again and those refused among them
    empty: tuple[str, ...] = ()  # of the gateways, those that had nothing to send: of weight 0, or leaving
    phase: int = 0  # of the algorithm; a round of several is as many exchanges, each stored as one
    late: tuple[tuple[str, int], ...] = ()  # counted too, after all others: gateway and the round that it answered
    update_bytes: int | None = None  # what the numbers of one update take as they travel; None: of any length
    uncompressed_bytes: int | None = None  # ... and what they would take uncompressed
    refusals: tuple[tuple[str, str], ...] = ()  # gateway and why, of the first updates that were refused
    figures: Mapping[str, float] = field(default_factory=dict)  # see `rounds.figures`
    open_ms: int = 0  # since its invitation, or since the service began where that was later


@dataclass(frozen=True)
class RecordModel:
    """Store a released model."""

    manifest: Manifest
    body: bytes


@dataclass(frozen=True)
class SaveRollout:
    """Store how the release at hand stands, and with the models that it is about since when."""

    body: bytes
    now_ns: int


@dataclass(frozen=True)
class RecordAlarm:
    """Store a change of an alarm."""

    gateway: str
    alarm: Alarm
    received_ns: int
    begun_ns: int  # its onset as far as it can be believed
    ended: str = ""  # how, where its gateway did not tell the end; see `alarms.register`


@dataclass(frozen=True)
class AlarmEvent:
    """Store what was done about an alarm, a cause of a gateway, or a whole gateway; see `alarms.workflow`."""

    gateway: str
    alarm: str  # its id; empty where it is about a cause or a maintenance window
    cause: str  # of a gateway, where it is about one
    t_ns: int
    who: str  # empty: the service itself
    kind: str
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordGateway:
    """Store the last status of a gateway."""

    gateway: str
    status: Status
    seen_ns: int
    sessions: str = ""  # what is known of who speaks under its name; see `access.device_sessions`


@dataclass(frozen=True)
class RecordService:
    """Store that the service works, and how it stands with the broker; see `presence`."""

    began_ns: int
    beat_ns: int
    is_connected: bool
    link_ns: int  # since when that is so


PresenceState = Literal["watching", "online", "offline", "gone", "connected", "disconnected"]


@dataclass(frozen=True)
class RecordPresence:
    """Store a change of a gateway, or, under an empty name, of the service; see `availability`. Of several changes in
    one row, which takes the place of the last row of that name, the times are those between `t_ns` and `until_ns`.
    """

    gateway: str
    state: PresenceState  # from `until_ns` on
    t_ns: int
    until_ns: int
    changes: int = 1
    online_ns: int = 0
    watched_ns: int = 0  # of the time online
    longest_ns: int = 0  # of the times offline


@dataclass(frozen=True)
class RecordDenied:
    """Store whom the broker denies until it is restarted, of those whose names are good."""

    gateways: frozenset[str]


@dataclass(frozen=True)
class RecordLoss:
    """Store what a gateway had to give up."""

    gateway: str
    tombstone: Tombstone
    received_ns: int


@dataclass(frozen=True)
class RecordScores:
    """Store a batch of scores under the name of its message."""

    gateway: str
    item: str
    scores: Scores
    received_ns: int


@dataclass(frozen=True)
class RecordSummary:
    """Store what chosen features of a gateway were within an hour, under the name of its message."""

    gateway: str
    item: str
    summary: FeatureSummary
    received_ns: int


@dataclass(frozen=True)
class RecordEvidence:
    """Store what an alarm of a gateway rests on, unless that is here."""

    gateway: str
    evidence: AlarmEvidence
    received_ns: int


@dataclass(frozen=True)
class RecordFetch:
    """Store that the samples around an alarm of a gateway are asked for."""

    gateway: str
    alarm: str
    number: int  # of the request: when it was made


@dataclass(frozen=True)
class RecordFetched:
    """Store what came of that: a clip, or the reason why there is none; the bounds are of one gateway and of all."""

    gateway: str
    alarm: str
    received_ns: int
    body: bytes | None = None
    problem: str = ""
    bounds: tuple[int, int] = (0, 0)  # bytes


@dataclass(frozen=True)
class RecordFleet:
    """Store what the fleet alarm says now."""

    alarm: FleetAlarm
    decided_ns: int


@dataclass(frozen=True)
class RecordDiscovery:
    """Store that something is published to Home Assistant under a topic."""

    topic: str


@dataclass(frozen=True)
class RecordCount:
    """Store how often something has happened."""

    name: str
    value: int


@dataclass(frozen=True)
class RecordAction:
    """Store an action of another system as an order, which the service carries out as one of an operator."""

    user: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """Store what became of an order; `problem` is empty where it was carried out."""

    number: int
    text: str
    problem: str = ""


@dataclass(frozen=True)
class Send:
    """Post a change to its receiver; `Posted` says how it went."""

    post: Post


@dataclass(frozen=True)
class BuildModel:
    """Request of the rounds: make a model of what the server of a run learned of so many gateways; release it."""

    algorithm: Algorithm
    server: Server
    run: str
    gateways: int


@dataclass(frozen=True)
class RaiseAlarm:
    """Request: raise an alarm of our own of a gateway, unless one of this cause is active."""

    gateway: str
    cause: str
    severity: Severity
    text: str


@dataclass(frozen=True)
class ClearAlarm:
    """Request: clear our own alarm of a gateway that has this cause, where it is active."""

    gateway: str
    cause: str
    text: str


@dataclass(frozen=True)
class StatusChanged:
    """Request: a gateway has reported how it is; `before` is what it said before."""

    gateway: str
    before: Status | None


@dataclass(frozen=True)
class NoteDropped:
    """Request: log something that cannot be taken from a sender (gateway, channel), though not each time."""

    sender: tuple[str, str]
    text: str


@dataclass(frozen=True)
class ForgetDevice:
    """Request: a device is gone; end its alarms, and drop what it has on its way."""

    gateway: str
    how: Literal["removed", "replaced"]


@dataclass(frozen=True)
class DropUploads:
    """Request: drop what a gateway has on its way."""

    gateway: str


Durable = (
    SaveTraining
    | HoldUpdate
    | DropHeld
    | RecordRound
    | RecordModel
    | SaveRollout
    | RecordAlarm
    | AlarmEvent
    | RecordGateway
    | RecordService
    | RecordPresence
    | RecordDenied
    | RecordLoss
    | RecordScores
    | RecordSummary
    | RecordEvidence
    | RecordFetch
    | RecordFetched
    | RecordFleet
    | Enqueue
    | Dequeue
    | RecordDiscovery
    | RecordCount
    | RecordAction
    | Answered
    | Recorded
)
Outward = Publish | Send | Log | EnrolmentEffect
Effect = Durable | Outward
Request = BuildModel | RaiseAlarm | ClearAlarm | StatusChanged | NoteDropped | ForgetDevice | DropUploads
Wanted = Effect | Request  # what a component returns
