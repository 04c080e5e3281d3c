"""What waits for a receiver of alarms, the webhook or a channel of `[[notify]]`: in order, stored before it is sent,
removed when it was taken. Each receiver has a queue of its own, so one that hangs holds up no other.

One change is under way at a time and the next is sent only after it. Each gateway has its turn, so the receiver gets
of the changes of one gateway in the order in which the aggregator stored them, each at least once: after a power cut
between taking and removing it gets one again, under the same id. Where more wait than the queue is deep, the oldest of
the gateway with the most bytes is given up, counted and logged: who floods crowds out itself. So is a change that the
receiver refuses for good, after a few tries: those behind it are not its fault. The
pauses go on growing until something is taken: a wrong address refuses every change, and must not empty the queue
before somebody has read the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fedgate.cloud_aggregator.events import Dequeue, Effect, Enqueue, Log, Post, Posted, RecordCount, Send
from fedgate.config.protocol.backoff import wait_ns
from fedgate.config.protocol.delivery_queue import DeliveryQueue
from fedgate.config.settings.notifications import WEBHOOK, Receiver
from fedgate.models.time_units import NS

COUNTED = "posts"  # the beginning of the names of what is counted
TRIES_MAX = 5  # of a change that is refused for good each time
HEADERS_BYTES = 256
WAITING_BYTES_MAX = 32 * 1024 * 1024  # of all changes that wait for the webhook; 10,000 of the usual ones have 12 MB
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


def name_count(channel: str, what: Literal["dropped", "refused"]) -> str:
    """Return the name under which the store counts what a receiver never got."""
    return f"{COUNTED}.{channel}.{what}"


def restore_queues(posts: Iterable[Post], counts: Mapping[str, int]) -> dict[str, Queue]:
    """Return the queue of each receiver for which something waits, or to which something was ever lost."""
    waiting: dict[str, list[Post]] = {}
    for post in posts:
        waiting.setdefault(post.channel, []).append(post)
    names = waiting.keys() | {
        name.split(".", 1)[1].rpartition(".")[0] for name in counts if name.startswith(f"{COUNTED}.")
    }
    return {
        name: Queue(
            sort_by_turns(waiting.get(name, ())),
            dropped=counts.get(name_count(name, "dropped"), 0),
            refused=counts.get(name_count(name, "refused"), 0),
        )
        for name in sorted(names)
    }


def label(channel: str) -> str:
    """Return what a receiver is called in the log and by commands."""
    return channel if channel == WEBHOOK else f"notify {channel}"


def sort_by_turns(posts: Iterable[Post]) -> dict[str, Post]:
    """Return changes by id with the first of each gateway before the second of any; the first of all stays first."""
    ranks, before = [], Counter[str]()
    for post in posts:
        ranks.append((before[post.gateway], post))
        before[post.gateway] += 1
    return {post.id: post for _, post in sorted(ranks, key=lambda one: one[0])}


def enqueue(queue: Queue, spec: Receiver, post: Post) -> tuple[Queue, list[Effect]]:
    """Put a change behind the others of its gateway; where too many wait, or too many bytes, those that have most make
    room.
    """
    effects: list[Effect] = [Enqueue(post.id, post)]
    queue = queue.having(post.id, post)
    while len(queue.items) > 1 + len(queue.sent_ns) and _is_overfull(queue, spec):
        lost = _find_heaviest(queue)
        queue = replace(queue.without([lost.id]), dropped=queue.dropped + 1)
        effects += [Dequeue(lost.id), RecordCount(name_count(post.channel, "dropped"), queue.dropped)]
        if queue.dropped.bit_count() == 1:  # logged at 1, 2, 4, 8, ...: a flood must not fill the log too
            text = f"{len(queue.items)} changes wait, {lost.id} of {lost.gateway or 'a gateway'} is given up"
            effects.append(Log("warning", f"{label(post.channel)}: {text}; {queue.dropped} were so far"))
    return replace(queue, items=sort_by_turns(queue.items.values())), effects


def _is_overfull(queue: Queue, spec: Receiver) -> bool:
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


def receive_result(queue: Queue, spec: Receiver, event: Posted, uptime_ns: int) -> tuple[Queue, list[Effect]]:
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
            RecordCount(name_count(event.channel, "refused"), refused),
            Log("warning", f"{label(event.channel)}: {what}: {shown}"),
        ]
        return replace(queue.without([event.id]), refused=refused), given_up
    pause_ns = wait_ns(spec.retry_s, queue.failures, event.id, longest_s=spec.retry_max_s)
    text = f"{event.problem} (attempt {queue.failures}, {len(queue.items)} wait); again in {pause_ns / NS:.0f} s"
    is_logged = queue.failures.bit_count() == 1  # at 1, 2, 4, 8, ...: an outage may last for weeks
    return replace(queue, retry_ns=uptime_ns + pause_ns), [
        Log("warning", f"{label(event.channel)}: {text}")
    ] if is_logged else []
