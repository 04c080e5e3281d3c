"""Everything the agent knows, as one value: a record for each component. `start` makes it from what was stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.deployment.deployment import Deployment
from fedgate.gateway_agent.downloads import Downloads
from fedgate.gateway_agent.events import Item
from fedgate.gateway_agent.monitor.monitor import Monitor
from fedgate.gateway_agent.monitor.recurrence import Seen
from fedgate.gateway_agent.outbox.outbox import Outbox
from fedgate.gateway_agent.training.training import Training
from fedgate.gateway_agent.trust.trust import Trust

FEATURES, SECRET, FLASH, RESCUED = "features", "secret", "flash", "rescued"  # keys of stored blobs


class BaselineError(ValueError):
    """A stored baseline that cannot go on under the present settings; the message says what to do."""


@dataclass(frozen=True)
class Stored:
    """What the store held when the agent started."""

    baseline: tuple[Seen, ...] = ()
    blobs: dict[str, bytes] = field(default_factory=dict)
    outbox: dict[str, Item] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The agent between two events."""

    context: Context
    monitor: Monitor
    trust: Trust
    outbox: Outbox = field(default_factory=Outbox)
    downloads: Downloads = field(default_factory=Downloads)
    training: Training = field(default_factory=Training)
    deployment: Deployment = field(default_factory=Deployment)
    messages_dropped: int = 0  # that made no sense
    status_ns: int = 0  # when the status was published last, since the boot
