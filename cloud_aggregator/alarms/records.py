"""What the aggregator holds of alarms and of those it notifies of them, between two events and across a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fedgate.cloud_aggregator.alarms.fleet import Fleet, restore_fleet
from fedgate.cloud_aggregator.alarms.register import Quiet, Register, restore_alarms
from fedgate.cloud_aggregator.alarms.workflow import AlarmKey, Workflow, fold
from fedgate.cloud_aggregator.events import AlarmEvent, Post
from fedgate.cloud_aggregator.limits import Allowance
from fedgate.cloud_aggregator.notifications.post_queue import Queue, restore_queues
from fedgate.config.protocol.messages import ActionAnswer
from fedgate.config.protocol.topics import ALL

ALARMS_REFUSED = "alarms_refused"
REQUESTS_KEPT = 1_000  # of a user, that are known when they come again
Requests = dict[str, ActionAnswer | None]  # by request, the oldest first; None: it waits


class CauseKey(NamedTuple):
    """Of which alarms others are told one state; the gateway may be `ALL`."""

    gateway: str
    cause: str


class Published(NamedTuple):
    """What others were told last of a cause; empty where there was nothing to tell."""

    alarm: str
    state: str
    content: bytes


@dataclass(frozen=True)
class Alarms:
    """The alarms of all gateways and of the fleet, and of what others were notified."""

    book: Register = field(default_factory=dict)
    refused: int = 0  # messages of alarms of one cause too many, ever
    quiet: dict[str, Quiet] = field(default_factory=dict)  # gateway -> since when it says that it has no alarm
    fleet: Fleet = field(default_factory=Fleet)
    queues: dict[str, Queue] = field(default_factory=dict)  # by receiver, as `Post.channel` names it
    discovered: frozenset[str] = frozenset()  # topics under which Home Assistant was ever told something
    changed: dict[str, Allowance] = field(default_factory=dict)  # by gateway: changes, see `handling.receive_alarm`
    evidence: dict[str, Allowance] = field(default_factory=dict)  # by gateway, see `evidence.receive_evidence`
    described_ns: dict[str, int] = field(default_factory=dict)  # by gateway: when its device was last described
    undescribed: frozenset[str] = frozenset()  # gateways whose device is to be described anew
    workflow: Workflow = field(default_factory=Workflow)  # what was done about them
    announced_ns: int | None = None  # when maintenance windows were last announced without a change, by the uptime
    unacknowledged_ns: dict[AlarmKey, int] = field(default_factory=dict)  # since when, by the uptime
    looked_ns: int | None = None  # when masks that ended were looked for, by the uptime
    published: dict[CauseKey, Published] = field(default_factory=dict)  # see `alarm_states`, and ...
    unpublished: frozenset[CauseKey] = frozenset()  # ... of what others have not been told since it changed
    requests: dict[str, Requests] = field(default_factory=dict)  # of other systems by user, see `remote_actions`
    acted: dict[str, Allowance] = field(default_factory=dict)  # by user: actions


def restore_alarms_record(
    alarms: Iterable[Mapping[str, Any]],
    posts: Iterable[Post],
    discovered: Iterable[str],
    counts: Mapping[str, int],
    events: Iterable[AlarmEvent] = (),
    actions: Iterable[tuple[str, str, ActionAnswer | None]] = (),
) -> Alarms:
    """Return what a store holds of it; `alarms` in the order they were received."""
    rows = [dict(row) for row in alarms]
    requests = dict[str, Requests]()
    for user, request, answer in actions:
        requests[user] = keep_request(requests.get(user, {}), request, answer)
    return Alarms(
        book=restore_alarms(row for row in rows if row["gateway"] != ALL),
        fleet=restore_fleet(row for row in rows if row["gateway"] == ALL),
        refused=counts.get(ALARMS_REFUSED, 0),
        queues=restore_queues(posts, counts),
        discovered=frozenset(discovered),
        workflow=fold(events),
        requests=requests,
    )


def mark_unpublished(alarms: Alarms, *keys: CauseKey) -> Alarms:
    """Return the alarms, of which others are still to be told how these causes are now."""
    new = frozenset(keys) - alarms.unpublished
    return replace(alarms, unpublished=alarms.unpublished | new) if new else alarms


def keep_request(known: Requests, request: str, answer: ActionAnswer | None) -> Requests:
    """Return the requests of a user with one more, or with its answer, without the oldest beyond `REQUESTS_KEPT`."""
    kept = {**known, request: answer}
    while len(kept) > REQUESTS_KEPT:
        del kept[next(iter(kept))]
    return kept
