"""What happens to the aggregator, and what it wants done.

The shell makes the store effects of a step durable, in one transaction, before it publishes anything of that step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from config.messages import Alarm, FleetAlarm, Manifest, Status


@dataclass(frozen=True)
class Heard:
    """A message arrived."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Connection:
    """The link to the broker came up or went down."""

    up: bool


@dataclass(frozen=True)
class Tick:
    """Time passed; comes about once a second."""


@dataclass(frozen=True)
class Posted:
    """An attempt to post came to its end; `problem` is empty where the receiver took it."""

    id: str
    problem: str = ""
    is_refused: bool = False  # the receiver will not take this change, however often it is sent


@dataclass(frozen=True)
class Ordered:
    """The operator wants something done; see `orders`."""

    number: int
    kind: str
    body: dict[str, Any]


Event = Heard | Connection | Tick | Posted | Ordered


@dataclass(frozen=True)
class Post:
    """A change of an alarm on its way to the webhook; the id is the same however often it is sent."""

    id: str
    body: bytes


@dataclass(frozen=True)
class SaveTraining:
    """Store the state of the training: server, what the open round has counted, who was counted."""

    body: bytes


@dataclass(frozen=True)
class RecordRound:
    """Store that a round was closed."""

    run: str
    round_index: int
    algorithm: str
    gateways: tuple[str, ...]
    refused: int
    closed_ns: int
    bytes_received: int = 0  # in chunks of updates, those sent again and those refused among them
    empty: tuple[str, ...] = ()  # of the gateways, those that had nothing to send: of weight 0, or leaving
    phase: int = 0  # of the algorithm; a round of several is as many exchanges, each stored as one


@dataclass(frozen=True)
class RecordModel:
    """Store a released model."""

    manifest: Manifest
    body: bytes


@dataclass(frozen=True)
class RecordAlarm:
    """Store a change of an alarm."""

    gateway: str
    alarm: Alarm
    received_ns: int
    begun_ns: int | None = None  # its onset as far as it can be believed; None: not known
    ended: str = ""  # how, where its gateway did not tell the end; see `standing`


@dataclass(frozen=True)
class RecordGateway:
    """Store the last status of a gateway."""

    gateway: str
    status: Status
    seen_ns: int


@dataclass(frozen=True)
class RecordFleet:
    """Store what the fleet alarm says now."""

    alarm: FleetAlarm
    decided_ns: int


@dataclass(frozen=True)
class Enqueue:
    """Store a change for the webhook, behind all others."""

    post: Post


@dataclass(frozen=True)
class Dequeue:
    """Remove the first change of this id: it was taken, or is given up."""

    id: str


@dataclass(frozen=True)
class RecordDiscovery:
    """Store that Home Assistant is told something under a topic."""

    topic: str


@dataclass(frozen=True)
class RecordCount:
    """Store how often something has happened."""

    name: str
    value: int


@dataclass(frozen=True)
class Answered:
    """Store what became of an order; `problem` is empty where it was carried out."""

    number: int
    text: str
    problem: str = ""


@dataclass(frozen=True)
class Send:
    """Post a change to the webhook; `Posted` says how it went."""

    post: Post


@dataclass(frozen=True)
class Publish:
    """Send a message now or, where there is no connection, not at all."""

    topic: str
    payload: bytes
    retain: bool = False


@dataclass(frozen=True)
class Log:
    """Tell the operator."""

    level: Literal["info", "warning"]
    text: str


Durable = (
    SaveTraining
    | RecordRound
    | RecordModel
    | RecordAlarm
    | RecordGateway
    | RecordFleet
    | Enqueue
    | Dequeue
    | RecordDiscovery
    | RecordCount
    | Answered
)
Outward = Publish | Send | Log
Effect = Durable | Outward
