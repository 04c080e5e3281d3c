"""What happens to either service, and what either wants done outside: the events and effects that both share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Received:
    """A message arrived."""

    topic: str
    payload: bytes
    is_retained: bool = False  # the broker had kept it: it says how things were, and not when


@dataclass(frozen=True)
class Connection:
    """The link to the broker (of the aggregator, where an agent has two) came up or went down."""

    up: bool


@dataclass(frozen=True)
class ClockSet:
    """The wall clock was set, and can be believed."""

    anchor_ns: int  # the time of the boot by it


@dataclass(frozen=True)
class Publish:
    """Send a message now or, where there is no connection, not at all."""

    topic: str
    payload: bytes
    retain: bool = False
    qos: int = 1


@dataclass(frozen=True)
class Log:
    """Tell the operator."""

    level: Literal["info", "warning"]
    text: str
    about: Mapping[str, object] = field(default_factory=dict)  # ids, for who searches: round, model, digest, gateway
