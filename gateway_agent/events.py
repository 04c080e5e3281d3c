"""Events, effects and requests: what happens to the agent, and what a component wants done.

The service makes the store effects of a step durable, in one transaction, before it carries out any other effect of
that step. A request is what one component wants of another; `machine` turns it into effects within the same step, so
that no component calls another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedgate.config.protocol.delivery_queue import Dequeue as Dequeue
from fedgate.config.protocol.delivery_queue import Enqueue as Enqueue
from fedgate.config.protocol.losses import LossClass
from fedgate.config.protocol.messages import ClockQuality, Transfer
from fedgate.config.protocol.transfer import PAYLOAD_BYTES_START
from fedgate.config.runtime.events import ClockSet as ClockSet
from fedgate.config.runtime.events import Connection as Connection
from fedgate.config.runtime.events import Log as Log
from fedgate.config.runtime.events import Publish as Publish
from fedgate.config.runtime.events import Received as Received
from fedgate.gateway_agent.feature_row import FeatureRow


@dataclass(frozen=True)
class Tick:
    """Time passed; comes about once a second."""

    clock: ClockQuality
    bytes_sent: int
    bytes_received: int
    bytes_waiting: int = 0  # on their way to the aggregator's broker, or waiting for the line
    conflict: str = ""  # what keeps ending the connection to it
    payload_bytes: int = PAYLOAD_BYTES_START  # of one message that the line carries in a moment


@dataclass(frozen=True)
class Trained:
    """The training child ended, with an answer or with a reason why not."""

    answer: bytes | None
    reason: str = ""


@dataclass(frozen=True)
class StoreState:
    """The store cannot keep what it should, or can again; the service says so, which alone can know."""

    problem: Literal["", "disk-full", "store-damaged"]
    text: str = ""


@dataclass(frozen=True)
class Reload:
    """What the store holds, for a machine that has asked for a stored model (`State.reload_due`)."""

    blobs: Mapping[str, bytes]


@dataclass(frozen=True)
class ClipRead:
    """The file of clips was read for a request: the clip of an alarm, or why there is none."""

    alarm: str
    number: int  # of the request
    body: bytes | None
    problem: str = ""


Event = Received | Connection | Tick | ClockSet | Trained | StoreState | Reload | ClipRead


@dataclass(frozen=True)
class Item:
    """A message that stays in the store until the aggregator's receipt for it arrives."""

    topic: str
    payloads: tuple[bytes, ...]
    retain: bool
    priority: int  # 0 before 1
    t_ns: int = 0  # when it was queued


@dataclass(frozen=True)
class Keep:
    """Store one window of the baseline."""

    seen: FeatureRow


@dataclass(frozen=True)
class Save:
    """Store a named blob, replacing the one before."""

    key: str
    body: bytes


@dataclass(frozen=True)
class Train:
    """Start the training child on a job."""

    job: bytes


@dataclass(frozen=True)
class KeepClip:
    """Keep the raw samples around an alarm, in the file of clips."""

    alarm: str
    body: bytes


@dataclass(frozen=True)
class ReadClip:
    """Read the clip of an alarm for a request; `ClipRead` brings it."""

    alarm: str
    number: int


@dataclass(frozen=True)
class RecordSamples:
    """Request of the samples: an anomaly is raised now, keep what was and will be measured around it."""

    alarm: str  # its id
    cause: str
    onset_ns: int
    t_ns: int


@dataclass(frozen=True)
class Deliver:
    """Request of the outbox: deliver an item to the aggregator."""

    name: str
    item: Item


@dataclass(frozen=True)
class Fetch:
    """Request of the downloads: fetch a body, unless it is here or on its way."""

    transfer: Transfer


OF_ROUND = "round "  # begins what is refused of a round; a model that comes into force does not take that back


@dataclass(frozen=True)
class SetRefusal:
    """Request: let the status give this reason why something was not done; an empty one takes it away."""

    reason: str


@dataclass(frozen=True)
class PublishStatus:
    """Request: publish the status now, as it is after this step so far."""


@dataclass(frozen=True)
class KeysChanged:
    """Request: the site has other keys, so what was refused may be taken now; with another release key the numbers
    that the one before signed count no more.
    """

    is_other_release_key: bool


Durable = Keep | Save | Enqueue | Dequeue
Outward = Publish | Train | Log | KeepClip | ReadClip
Effect = Durable | Outward
Request = Deliver | Fetch | RecordSamples | SetRefusal | PublishStatus | KeysChanged
Wanted = Effect | Request  # what a component returns
ALARM_PRIORITY = 0
SENSOR_PRIORITY = 1  # a sensor that comes and goes must not push out what is said of the structure
EVIDENCE_PRIORITY = 2
UPDATE_PRIORITY = 3
TELEMETRY_PRIORITY = 4
SAMPLES_PRIORITY = 5  # of no class, for nothing of it is stored or lost: the site asks until it has an answer
CLASSES: dict[int, LossClass] = {
    ALARM_PRIORITY: "alarm",
    SENSOR_PRIORITY: "sensor-alarm",
    EVIDENCE_PRIORITY: "evidence",
    UPDATE_PRIORITY: "update",
    TELEMETRY_PRIORITY: "telemetry",
}


def refuse(reason: str) -> list[Wanted]:
    """Return what says, in the log and in the status, why something was not done."""
    return [Log("warning", reason), SetRefusal(reason), PublishStatus()]
