"""What is known of a site at one moment, in plain values, of which its metrics are made. Times are ns of Unix time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedgate.cloud_aggregator.health import GatewayState
from fedgate.config.protocol.messages import Status

FLEET = "fleet"  # the kind of an alarm of the whole site


@dataclass(frozen=True)
class ServiceFacts:
    """How the aggregator is."""

    is_running: bool
    is_connected: bool  # to the broker, as far as its own last sign shows
    began_ns: int | None = None
    sign_ns: int | None = None  # its last sign of life


@dataclass(frozen=True)
class StoreFacts:
    """How the store is."""

    schema_version: int
    size_bytes: int
    free_bytes: int | None = None  # of its disk, where that is this machine's
    backup_ns: int | None = None  # when the last backup was made
    is_set_back: bool = False  # gateways have answered later rounds than it knows


@dataclass(frozen=True)
class GatewayFacts:
    """How a gateway is that belongs to the site."""

    name: str
    state: GatewayState
    status: Status | None = None  # the last; None: it has never spoken
    seen_ns: int | None = None  # when it was last received live
    alarms_active: Mapping[str, int] = field(default_factory=dict)  # by kind
    certificate_until_ns: int | None = None


@dataclass(frozen=True)
class AlarmFacts:
    """How the alarms of the whole site are."""

    active: Mapping[str, int]  # by kind
    states: Mapping[str, int]  # of those, by ISA-18.2
    last_10_minutes: Mapping[str, int]  # that were received within them, by kind
    last_day: Mapping[str, int]
    messages_refused: int = 0


@dataclass(frozen=True)
class TrainingFacts:
    """How the training and its models are; totals are of all rounds that the store has ever known."""

    totals: Mapping[str, int]  # as the store counts them
    model_version: int = 0  # that all gateways are to have; 0: none
    release_stage: str = "none"
    round_index: int | None = None  # of the open round; None: no training was begun
    answers: int = 0  # in it


class Waiting(NamedTuple):
    """What of the changes of alarms a receiver has not got."""

    channel: str
    waiting: int
    dropped: int
    refused: int


@dataclass(frozen=True)
class SiteFacts:
    """All that is known of a site."""

    site: str
    service: ServiceFacts
    store: StoreFacts
    gateways: tuple[GatewayFacts, ...]
    states: Mapping[GatewayState, int]  # of gateways, the revoked ones too
    alarms: AlarmFacts
    training: TrainingFacts
    notifications: tuple[Waiting, ...] = ()
    certificates_until_ns: Mapping[str, int] = field(default_factory=dict)  # of the site's own: whose, and until when
