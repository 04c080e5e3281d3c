"""What happens to the aggregator, and what it wants done.

The shell makes the store effects of a step durable, in one transaction, before it publishes anything of that step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from config.messages import Alarm, Manifest, Status


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


Event = Heard | Connection | Tick


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


@dataclass(frozen=True)
class RecordGateway:
    """Store the last status of a gateway."""

    gateway: str
    status: Status
    seen_ns: int


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


Durable = SaveTraining | RecordRound | RecordModel | RecordAlarm | RecordGateway
Effect = Durable | Publish | Log
