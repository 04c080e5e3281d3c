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

from fedgate.cloud_aggregator.events import AlarmEvent, Dequeue, Effect, Enqueue, Log, Post, Posted, RecordCount, Send
from fedgate.config.protocol.backoff import wait_ns
from fedgate.config.protocol.delivery_queue import DeliveryQueue
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
class Queue(DeliveryQueue[Post]):
    """The changes that wait, by id in the order of their turns, and how the sending of the first of them goes; of its
    tries those count that the receiver refused for good.
    """

    failures: int = 0  # in a row
    retry_ns: int = 0  # not before then again
    dropped: int = 0  # given up as too many waited, ever
    refused: int = 0  # given up as the receiver refused them, ever


def post_of(
    site: str, gateway: str, alarm: Alarm, device: Device | None, *, active: bool, again: AlarmEvent | None = None
) -> Post:
    """Return the change as it is posted; its id is made of what it says, so one change has one id.

    `active` tells of the alarm, where the change may be told of late. `again` is why one is told of once more.
    """
    fields = {
        "site": site,
        "gateway": gateway,
        "active": active,
        "device": None if device is None else device.model_dump(mode="json"),
        "alarm": alarm.model_dump(mode="json"),
    }
    if again is not None:
        fields |= {"escalated": again.kind == "escalate", "again_ns": again.t_ns}
    text = json.dumps(fields, separators=(",", ":"))
    change = hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
    return Post(change, json.dumps({"id": change, **fields}, separators=(",", ":")).encode(), gateway)


def sort_by_turns(posts: Iterable[Post]) -> dict[str, Post]:
    """Return changes by id with the first of each gateway before the second of any; the first of all stays first."""
    ranks, before = [], Counter[str]()
    for post in posts:
        ranks.append((before[post.gateway], post))
        before[post.gateway] += 1
    return {post.id: post for _, post in sorted(ranks, key=lambda one: one[0])}


def enqueue(queue: Queue, spec: Webhook, post: Post) -> tuple[Queue, list[Effect]]:
    """Put a change behind the others of its gateway; where too many wait, or too many bytes, those that have most make
    room.
    """
    effects: list[Effect] = [Enqueue(post.id, post)]
    queue = queue.having(post.id, post)
    while len(queue.items) > 1 + len(queue.sent_ns) and _is_overfull(queue, spec):
        lost = _find_heaviest(queue)
        queue = replace(queue.without([lost.id]), dropped=queue.dropped + 1)
        effects += [Dequeue(lost.id), RecordCount(DROPPED, queue.dropped)]
        if queue.dropped.bit_count() == 1:  # logged at 1, 2, 4, 8, ...: a flood must not fill the log too
            text = f"{len(queue.items)} changes wait, {lost.id} of {lost.gateway or 'a gateway'} is given up"
            effects.append(Log("warning", f"webhook: {text}; {queue.dropped} were so far"))
    return replace(queue, items=sort_by_turns(queue.items.values())), effects


def _is_overfull(queue: Queue, spec: Webhook) -> bool:
    posts = queue.items.values()
    return len(posts) > spec.queue or sum(len(one.body) for one in posts) > WAITING_BYTES_MAX


def _find_heaviest(queue: Queue) -> Post:
    """Return the oldest change of the gateway with the most bytes, but for what is under way.

    A change counts for as many bytes as the headers that go with it, at least.
    """
    may_go, held = [post for name, post in queue.items.items() if name not in queue.sent_ns], Counter[str]()
    for post in may_go:
        held[post.gateway] += len(post.body) + HEADERS_BYTES
    heaviest = max(held, key=held.__getitem__)
    return next(post for post in may_go if post.gateway == heaviest)


def send_due(queue: Queue, uptime_ns: int) -> tuple[Queue, list[Effect]]:
    """Send the first change where none is under way and no pause is on."""
    if queue.sent_ns or not queue.items or uptime_ns < queue.retry_ns:
        return queue, []
    first = next(iter(queue.items.values()))
    return queue.mark_sent(first.id, uptime_ns), [Send(first)]


def receive_result(queue: Queue, spec: Webhook, event: Posted, uptime_ns: int) -> tuple[Queue, list[Effect]]:
    """Take in how the sending of the first change went."""
    if event.id not in queue.sent_ns:
        return queue, []  # it is of a change that this process never sent
    if not event.problem:
        return replace(queue.without([event.id]), failures=0), [Dequeue(event.id)]
    tries = {event.id: queue.tries.get(event.id, 0) + event.is_refused}
    queue = replace(queue, sent_ns={}, tries=tries, failures=queue.failures + 1)
    if tries[event.id] >= TRIES_MAX:
        refused, shown = queue.refused + 1, queue.items[event.id].body[:SHOWN_MAX].decode(errors="replace")
        what = f"{event.problem} to {event.id} {TRIES_MAX} times, so it is given up; {refused} were so far"
        given_up: list[Effect] = [
            Dequeue(event.id),
            RecordCount(REFUSED, refused),
            Log("warning", f"webhook: {what}: {shown}"),
        ]
        return replace(queue.without([event.id]), refused=refused), given_up
    pause_ns = wait_ns(spec.retry_s, queue.failures, event.id, longest_s=spec.retry_max_s)
    text = f"{event.problem} (attempt {queue.failures}, {len(queue.items)} wait); again in {pause_ns / NS:.0f} s"
    is_logged = queue.failures.bit_count() == 1  # at 1, 2, 4, 8, ...: an outage may last for weeks
    return replace(queue, retry_ns=uptime_ns + pause_ns), [Log("warning", f"webhook: {text}")] if is_logged else []
