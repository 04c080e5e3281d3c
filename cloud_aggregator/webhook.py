"""What waits for the webhook: in order, stored before it is sent, removed when it was taken.

One change is under way at a time and the next is sent only after it, so the receiver hears of changes in the order in
which the aggregator stored them, each at least once: after a power cut between taking and removing it hears one again,
under the same id. Where the receiver is away longer than the queue is deep, the oldest are given up, counted and
logged. So is a change that the receiver refuses for good, after a few tries: those behind it are not its fault. The
pauses go on growing until something is taken: a wrong address refuses every change, and must not empty the queue
before somebody has read the log.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from cloud_aggregator.events import Dequeue, Effect, Enqueue, Log, Post, Posted, RecordCount, Send
from config.messages import Alarm, Device
from config.outlets import Webhook
from models.records import replace

NS = 1_000_000_000
ID_LENGTH = 32
DROPPED = "webhook_dropped"
REFUSED = "webhook_refused"
TRIES_MAX = 5  # of a change that is refused for good each time
SHOWN_MAX = 300  # characters that the log shows of it


@dataclass(frozen=True)
class Queue:
    """The changes that wait, oldest first, and how the sending of the first of them goes."""

    waiting: tuple[Post, ...] = ()
    under_way: bool = False
    failures: int = 0  # in a row
    retry_ns: int = 0  # not before then again
    dropped: int = 0  # given up as too many waited, ever
    refusals: int = 0  # of the first change
    refused: int = 0  # given up as the receiver refused them, ever


def post_of(site: str, gateway: str, alarm: Alarm, device: Device | None, *, active: bool) -> Post:
    """Return the change as it is posted; its id is made of what it says, so one change has one id.

    `active` tells of the alarm, where the change may be told of late.
    """
    said = {
        "site": site,
        "gateway": gateway,
        "active": active,
        "device": None if device is None else device.model_dump(mode="json"),
        "alarm": alarm.model_dump(mode="json"),
    }
    text = json.dumps(said, separators=(",", ":"))
    change = hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
    return Post(change, json.dumps({"id": change, **said}, separators=(",", ":")).encode())


def enqueue(queue: Queue, spec: Webhook, post: Post) -> tuple[Queue, list[Effect]]:
    """Put a change behind the others; where too many wait, the oldest that is not under way is given up."""
    effects: list[Effect] = [Enqueue(post)]
    waiting = (*queue.waiting, post)
    if len(waiting) <= spec.queue:
        return replace(queue, waiting=waiting), effects
    place = int(queue.under_way)
    lost = waiting[place]
    dropped = queue.dropped + 1
    queue = replace(queue, waiting=waiting[:place] + waiting[place + 1 :], dropped=dropped)
    queue = queue if queue.under_way else replace(queue, refusals=0)
    text = f"webhook: {spec.queue} changes wait, the oldest ({lost.id}) is given up; {dropped} were so far"
    return queue, [*effects, Dequeue(lost.id), RecordCount(DROPPED, dropped), Log("warning", text)]


def due(queue: Queue, spec: Webhook, now_ns: int) -> tuple[Queue, list[Effect]]:
    """Send the first change where none is under way and no pause is on."""
    pause_ns = queue.retry_ns - now_ns
    # A pause longer than the longest was taken from a clock that has gone back since.
    if queue.under_way or not queue.waiting or 0 < pause_ns <= spec.retry_max_s * NS:
        return queue, []
    return replace(queue, under_way=True), [Send(queue.waiting[0])]


def posted(queue: Queue, spec: Webhook, event: Posted, now_ns: int) -> tuple[Queue, list[Effect]]:
    """Take in how the sending of the first change went."""
    if not queue.under_way or queue.waiting[0].id != event.id:
        return queue, []  # it was given up meanwhile
    if not event.problem:
        queue = replace(queue, waiting=queue.waiting[1:], under_way=False, failures=0, retry_ns=0, refusals=0)
        queue, effects = due(queue, spec, now_ns)
        return queue, [Dequeue(event.id), *effects]
    failures = queue.failures + 1
    if event.is_refused and queue.refusals + 1 >= TRIES_MAX:
        return _set_aside(replace(queue, failures=failures), spec, event, now_ns)
    queue = replace(queue, refusals=queue.refusals + event.is_refused)
    pause_s = _pause_s(spec, event.id, failures)
    queue = replace(queue, under_way=False, failures=failures, retry_ns=now_ns + round(pause_s * NS))
    if failures.bit_count() > 1:  # told at 1, 2, 4, 8, ...: an outage may last for weeks
        return queue, []
    text = f"webhook: {event.problem} (attempt {failures}, {len(queue.waiting)} wait); again in {pause_s:.0f} s"
    return queue, [Log("warning", text)]


def _set_aside(queue: Queue, spec: Webhook, event: Posted, now_ns: int) -> tuple[Queue, list[Effect]]:
    shown = queue.waiting[0].body[:SHOWN_MAX].decode(errors="replace")
    refused = queue.refused + 1
    queue = replace(queue, waiting=queue.waiting[1:], under_way=False, retry_ns=0, refusals=0, refused=refused)
    text = (
        f"webhook: {event.problem} to {event.id} {TRIES_MAX} times, so it is given up; {refused} were so far: {shown}"
    )
    queue, effects = due(queue, spec, now_ns)
    return queue, [Dequeue(event.id), RecordCount(REFUSED, refused), Log("warning", text), *effects]


def _pause_s(spec: Webhook, change: str, failures: int) -> float:
    """Return a pause that doubles, spread by half: many sites must not come back to one receiver all at once."""
    longest_s = min(spec.retry_s * 2.0 ** min(failures - 1, 60), spec.retry_max_s)
    draw = int(hashlib.sha256(f"{change}.{failures}".encode()).hexdigest()[:8], 16) / 16**8
    return longest_s * (0.5 + 0.5 * draw)
