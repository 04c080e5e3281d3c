"""What waits for the webhook: in order, stored before it is sent, removed when it was taken.

One change is under way at a time and the next is sent only after it. Each gateway has its turn, so the receiver gets
of the changes of one gateway in the order in which the aggregator stored them, each at least once: after a power cut
between taking and removing it gets one again, under the same id. Where more wait than the queue is deep, the oldest of
the gateway with the most bytes is given up, counted and logged: who floods crowds out itself. So is a change that the
receiver refuses for good, after a few tries: those behind it are not its fault. The
pauses go on growing until something is taken: a wrong address refuses every change, and must not empty the queue
before somebody has read the log.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedgate.cloud_aggregator.events import Dequeue, Effect, Enqueue, Log, Post, Posted, RecordCount, Send
from fedgate.config.protocol.backoff import wait_ns
from fedgate.config.protocol.messages import Alarm, Device
from fedgate.config.settings.notifications import Webhook
from fedgate.models.time_units import NS

ID_LENGTH = 32
DROPPED = "webhook_dropped"
REFUSED = "webhook_refused"
TRIES_MAX = 5  # of a change that is refused for good each time
HEADERS_BYTES = 256
WAITING_BYTES_MAX = 32 * 1024 * 1024  # of all changes that wait; 10,000 of the usual ones have 12 MB
SHOWN_MAX = 300  # characters that the log shows of it


@dataclass(frozen=True)
class Queue:
    """The changes that wait, in the order of their turns, and how the sending of the first of them goes."""

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
    fields = {
        "site": site,
        "gateway": gateway,
        "active": active,
        "device": None if device is None else device.model_dump(mode="json"),
        "alarm": alarm.model_dump(mode="json"),
    }
    text = json.dumps(fields, separators=(",", ":"))
    change = hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
    return Post(change, json.dumps({"id": change, **fields}, separators=(",", ":")).encode(), gateway)


def in_turns(posts: Iterable[Post]) -> tuple[Post, ...]:
    """Return changes with the first of each gateway before the second of any; the first of all stays where it is."""
    ranks, before = [], Counter[str]()
    for post in posts:
        ranks.append((before[post.gateway], post))
        before[post.gateway] += 1
    return tuple(post for _, post in sorted(ranks, key=lambda one: one[0]))


def enqueue(queue: Queue, spec: Webhook, post: Post) -> tuple[Queue, list[Effect]]:
    """Put a change behind the others of its gateway; where too many wait, or too many bytes, those that have most make
    room.
    """
    effects: list[Effect] = [Enqueue(post)]
    queue = replace(queue, waiting=in_turns((*queue.waiting, post)))
    while len(queue.waiting) > 1 + queue.under_way and _is_overfull(queue, spec):
        lost = _heaviest(queue)
        # The refusals are of the first change; what is under way is that, and stays.
        refusals = queue.refusals if lost is not queue.waiting[0] else 0
        waiting = in_turns(one for one in queue.waiting if one is not lost)
        queue = replace(queue, waiting=waiting, dropped=queue.dropped + 1, refusals=refusals)
        effects += [Dequeue(lost.id), RecordCount(DROPPED, queue.dropped)]
        if queue.dropped.bit_count() == 1:  # logged at 1, 2, 4, 8, ...: a flood must not fill the log too
            text = f"{len(queue.waiting)} changes wait, {lost.id} of {lost.gateway or 'a gateway'} is given up"
            effects.append(Log("warning", f"webhook: {text}; {queue.dropped} were so far"))
    return queue, effects


def _is_overfull(queue: Queue, spec: Webhook) -> bool:
    return len(queue.waiting) > spec.queue or sum(len(one.body) for one in queue.waiting) > WAITING_BYTES_MAX


def _heaviest(queue: Queue) -> Post:
    """Return the oldest change of the gateway with the most bytes, but for what is under way.

    A change counts for as many bytes as the headers that go with it, at least.
    """
    may_go, held = queue.waiting[int(queue.under_way) :], Counter[str]()
    for post in may_go:
        held[post.gateway] += len(post.body) + HEADERS_BYTES
    heaviest = max(held, key=held.__getitem__)
    return next(post for post in may_go if post.gateway == heaviest)


def due(queue: Queue, uptime_ns: int) -> tuple[Queue, list[Effect]]:
    """Send the first change where none is under way and no pause is on."""
    if queue.under_way or not queue.waiting or uptime_ns < queue.retry_ns:
        return queue, []
    return replace(queue, under_way=True), [Send(queue.waiting[0])]


def receive_result(queue: Queue, spec: Webhook, event: Posted, uptime_ns: int) -> tuple[Queue, list[Effect]]:
    """Take in how the sending of the first change went."""
    if not queue.under_way or queue.waiting[0].id != event.id:
        return queue, []  # it was given up meanwhile
    first, others = queue.waiting[0], queue.waiting[1:]
    queue = replace(queue, under_way=False, retry_ns=0)
    if not event.problem:
        return replace(queue, waiting=others, failures=0, refusals=0), [Dequeue(event.id)]
    queue = replace(queue, failures=queue.failures + 1, refusals=queue.refusals + event.is_refused)
    if event.is_refused and queue.refusals >= TRIES_MAX:
        queue = replace(queue, waiting=others, refusals=0, refused=queue.refused + 1)
        what = f"{event.problem} to {event.id} {TRIES_MAX} times, so it is given up; {queue.refused} were so far"
        text = f"webhook: {what}: {first.body[:SHOWN_MAX].decode(errors='replace')}"
        return queue, [Dequeue(event.id), RecordCount(REFUSED, queue.refused), Log("warning", text)]
    pause_ns = wait_ns(spec.retry_s, queue.failures, event.id, longest_s=spec.retry_max_s)
    text = f"{event.problem} (attempt {queue.failures}, {len(queue.waiting)} wait); again in {pause_ns / NS:.0f} s"
    is_logged = queue.failures.bit_count() == 1  # at 1, 2, 4, 8, ...: an outage may last for weeks
    return replace(queue, retry_ns=uptime_ns + pause_ns), [Log("warning", f"webhook: {text}")] if is_logged else []
