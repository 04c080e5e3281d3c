"""What must reach the aggregator: queued durably, sent while there is a link, settled by a receipt alone.

An outage may last for months and a store is bounded. So the classes, alarms, sensor alarms, evidence, updates and
telemetry, give way to those before them and, oldest first, to their own; where that is not enough, what came last is
what is lost. A tombstone says what went. It is an item like an alarm and leaves only on its receipt; there is at most
one a class, for which space is kept. Raw samples, and the refusal of them, are of no class and in memory alone: the
clip is on the disk already, and who asked for it asks again until the answer is there.

Alarms go first, a few items at a time, again with growing pauses, until the aggregator's receipt. The word of a broker
counts for nothing: it may drop what it has acknowledged. So no more is under way than the aggregator is likely to take
soon, and each receipt lets the next follow. A body that was sent before is not sent whole again: its last chunk makes
the aggregator say whether it has the rest, or ask for what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedgate.config.protocol import topics
from fedgate.config.protocol.backoff import draw_jitter, wait_ns
from fedgate.config.protocol.delivery_queue import DeliveryQueue
from fedgate.config.protocol.feature_summary import Gathered
from fedgate.config.protocol.losses import Reason, Tombstone
from fedgate.config.protocol.messages import Alarm, Receipt, Score
from fedgate.config.protocol.samples import is_clip
from fedgate.config.protocol.transfer import list_requested
from fedgate.gateway_agent.context import Context, why_no_telemetry
from fedgate.gateway_agent.events import (
    ALARM_PRIORITY,
    CLASSES,
    EVIDENCE_PRIORITY,
    SAMPLES_PRIORITY,
    TELEMETRY_PRIORITY,
    UPDATE_PRIORITY,
    Dequeue,
    Effect,
    Enqueue,
    Item,
    Log,
    Publish,
    Save,
)
from fedgate.models.time_units import NS

ITEM_BYTES = 256  # what a database adds to an item, and to each payload of it: rows, indices, a part of a page
TOMBSTONE_BYTES = 1_280  # no tombstone is larger, with what a database adds
TOMBSTONES_BYTES = TOMBSTONE_BYTES * len(CLASSES)
TOMBSTONE = "tombstone"
SEQUENCE = "sequence"  # key of a stored blob
URGENT_SHARE = 0.2  # of the spread after an outage: within so much of it the alarms go
ITEMS_MAX = 32  # under way at once; brokers keep 1,000 messages for a client that is slow, and some far fewer
BYTES_MAX = 256 * 1024  # under way at once, of what is no alarm; one item always is
SAMPLES_MAX = 32  # answers to requests for samples that wait
Active = Mapping[str, Alarm]  # the alarms that are active, by cause


@dataclass(frozen=True)
class Outbox(DeliveryQueue[Item]):
    """What waits for a receipt, and what is known of the way to the aggregator. What was sent was sent over this
    connection; each sending is a try, over all connections.
    """

    sequence: int = 0  # items that this store has ever queued
    scores: tuple[Score, ...] = ()  # that were published to nobody, or perhaps not; see `scores`
    gathered: Gathered | None = None  # of chosen features, for the summary of this hour; see `summaries`
    dropped: dict[str, int] = field(default_factory=dict)  # class -> how many items were given up
    connections: int = 0  # so far
    urgent_ns: int = 0  # alarms wait until then, ...
    bulk_ns: int = 0  # ... and everything else until then
    received_ns: int = 0  # when the aggregator last said anything, since the boot
    bytes_waiting: int = 0  # that the broker has not acknowledged
    conflict: str = ""  # what keeps ending the connection

    @property
    def is_update_waiting(self) -> bool:
        """Whether an update waits for its receipt."""
        return any(item.priority == UPDATE_PRIORITY for item in self.items.values())


def enqueue(outbox: Outbox, context: Context, name: str, item: Item) -> tuple[Outbox, list[Effect]]:
    """Queue an item, and say what is lost for it; where it may not have the space of others that is the item itself."""
    if not is_stored(item):
        return outbox.having(name, item), []
    item = replace(item, t_ns=item.t_ns or context.now_ns)
    victims, why = _choose_victims(outbox, context, name, item)
    outbox, effects = give_up(outbox, context, victims, why)
    if name in victims:
        return outbox, effects
    outbox = replace(outbox.having(name, item), sequence=outbox.sequence + 1)
    return outbox, [*effects, Enqueue(name, item), Save(SEQUENCE, str(outbox.sequence).encode())]


def is_stored(item: Item) -> bool:
    """Tell whether an item is in the store while it waits: all but what is asked for again after a restart."""
    return item.priority in CLASSES


def has_space_for_samples(outbox: Outbox) -> bool:
    """Tell whether one more answer to a request for samples may wait: one clip at a time, and few refusals."""
    waiting = [name for name, item in outbox.items.items() if not is_stored(item)]
    return len(waiting) < SAMPLES_MAX and not any(map(is_clip, waiting))


def _choose_victims(outbox: Outbox, context: Context, name: str, item: Item) -> tuple[dict[str, Item], Reason]:
    """Return what gives way to an item, or the item itself, and why."""
    if item.priority == TELEMETRY_PRIORITY and (why := why_no_telemetry(context)):
        return {name: item}, why
    replaced = outbox.items.get(name)
    before = 0 if replaced is None else count_stored_bytes(name, replaced)
    excess = count_held_bytes(outbox.items) - before + count_stored_bytes(name, item) - context.settings.store.max_bytes
    victims: dict[str, Item] = {}
    for other in _rank_least_important_first(outbox, name, item.priority) if excess > 0 else ():
        victims[other] = outbox.items[other]
        excess -= count_stored_bytes(other, victims[other])
        if excess <= 0:
            break
    # Where all that may be given up for it is not enough, nothing is.
    return victims if excess <= 0 else {name: item}, "outbox-full"


def _rank_least_important_first(outbox: Outbox, name: str, priority: int) -> list[str]:
    names = [
        other
        for other, item in outbox.items.items()
        if item.priority >= priority and other != name and not is_tombstone(other) and is_stored(item)
    ]
    return sorted(names, key=lambda other: -outbox.items[other].priority)  # stable: the oldest of a class first


def give_up_telemetry(outbox: Outbox, context: Context) -> tuple[Outbox, list[Effect]]:
    """Give up all telemetry: the disk is full, and what is said of the structure needs the space."""
    held = {name: item for name, item in outbox.items.items() if item.priority == TELEMETRY_PRIORITY}
    return give_up(outbox, context, held, "disk-full")


def give_up(outbox: Outbox, context: Context, items: Mapping[str, Item], why: Reason) -> tuple[Outbox, list[Effect]]:
    """Give up items, stored or not, and say so in the tombstones of their classes."""
    if not items:
        return outbox, []
    effects: list[Effect] = [Dequeue(name) for name in items if name in outbox.items]
    outbox = outbox.without(items)
    for priority, kind in CLASSES.items():
        lost = {name: item for name, item in items.items() if item.priority == priority and not is_tombstone(name)}
        if not lost:
            continue
        before = outbox.dropped.get(kind, 0)
        total = before + len(lost)
        if before.bit_length() != total.bit_length():
            effects.append(Log("warning", f"{kind} given up ({total} so far): {why}"))
        outbox = replace(outbox, dropped={**outbox.dropped, kind: total})
        outbox, recorded = _record_loss(outbox, context, _make_tombstone(context, priority, lost, why))
        effects += recorded
    return outbox, effects


def _make_tombstone(context: Context, priority: int, lost: Mapping[str, Item], why: Reason) -> Tombstone:
    """Return what says that these items, all of one class, are lost."""
    times = [item.t_ns for item in lost.values()]
    return Tombstone(
        id=next(iter(lost)),
        kind=CLASSES[priority],
        items=len(lost),
        size_bytes=sum(len(payload) for item in lost.values() for payload in item.payloads),
        first_ns=min(times),
        last_ns=max(times),
        why=(why,),
        boot_id=context.boot_id,
    )


def _record_loss(outbox: Outbox, context: Context, stone: Tombstone) -> tuple[Outbox, list[Effect]]:
    """Return the outbox with a tombstone, in which the one of its class that still waits is contained."""
    where, effects = context.topic(TOMBSTONE, stone.kind), list[Effect]()
    before = next((name for name, item in outbox.items.items() if item.topic == where), None)
    sent_ns = outbox.sent_ns
    if before is not None:
        stone = Tombstone.from_bytes(outbox.items[before].payloads[0]).merge(stone)
        outbox = outbox.without([before])
        effects.append(Dequeue(before))
    item = Item(where, (stone.to_bytes(),), retain=False, priority=ALARM_PRIORITY, t_ns=context.now_ns)
    outbox = outbox.having(stone.item, item)
    if before in sent_ns:  # one that grows by the second is not to be sent by the second
        outbox = outbox.mark_sent(stone.item, sent_ns[before])
    return outbox, [*effects, Enqueue(stone.item, item)]


def is_tombstone(name: str) -> bool:
    """Tell whether an item, by its name, says what was lost."""
    return name.endswith(f".{TOMBSTONE}")


def count_stored_bytes(name: str, item: Item) -> int:
    """Return how many bytes of the store an item takes, rather too many than too few."""
    return len(name) + len(item.topic) + ITEM_BYTES + sum(len(payload) + ITEM_BYTES for payload in item.payloads)


def count_held_bytes(items: Mapping[str, Item]) -> int:
    """Return how many bytes of the store items take, or may take: the space of tombstones is never given away."""
    return TOMBSTONES_BYTES + sum(
        count_stored_bytes(name, item) for name, item in items.items() if is_stored(item) and not is_tombstone(name)
    )


def count_by_class(items: Mapping[str, Item]) -> dict[str, tuple[int, int]]:
    """Return how many items of each class wait, and how many bytes they take; tombstones as a class of their own."""
    held: dict[str, tuple[int, int]] = dict.fromkeys((*CLASSES.values(), TOMBSTONE), (0, 0))
    for name, item in items.items():
        kind = TOMBSTONE if is_tombstone(name) else CLASSES[item.priority]
        count, size_bytes = held[kind]
        held[kind] = (count + 1, size_bytes + count_stored_bytes(name, item))
    return held


def begin_connection(outbox: Outbox, context: Context) -> Outbox:
    """Return the outbox with a new connection: nothing is under way, and what has gathered waits for its turn.

    The turn of each gateway is another, within `exchange.spread_s`: after an outage all of a fleet come back. One whose
    turn is still to come keeps it, or a line that breaks every few seconds would carry nothing.
    """
    spread_ns, uptime_ns = context.settings.exchange.spread_s * NS, context.uptime_ns
    outbox = replace(outbox, sent_ns={}, connections=outbox.connections + 1, bytes_waiting=0)
    if 0 < outbox.bulk_ns - uptime_ns <= spread_ns:
        return outbox
    turn_ns = spread_ns * draw_jitter(context.settings.gateway.id, outbox.connections) if outbox.items else 0.0
    return replace(outbox, urgent_ns=uptime_ns + round(turn_ns * URGENT_SHARE), bulk_ns=uptime_ns + round(turn_ns))


def note_answer(outbox: Outbox, context: Context) -> Outbox:
    """Return the outbox after a message of the aggregator, whatever it says."""
    return replace(outbox, received_ns=context.uptime_ns)


def may_be_due(before: Outbox, after: Outbox) -> bool:
    """Tell whether an event may have made something due: an item was queued, or there is space for several under way;
    to look through a full outbox for every receipt would take too long.
    """
    has_space = after.items is not before.items and len(after.sent_ns) <= ITEMS_MAX // 2
    return after.sequence != before.sequence or has_space


def send_due(outbox: Outbox, context: Context, active: Active) -> tuple[Outbox, list[Effect]]:
    """Send what is due, the most important and oldest first, as far as there is space under way."""
    if not context.is_connected or not outbox.items:
        return outbox, []
    under_way = [outbox.items[name] for name in outbox.sent_ns if _is_under_way(outbox, context, name)]
    effects, count, bulk_bytes = list[Effect](), 0, 0
    for priority, names in _list_due(outbox, context).items():  # what is less important stops nothing
        count += sum(item.priority == priority for item in under_way)
        bulk_bytes += sum(_bulk_bytes(item) for item in under_way if item.priority == priority)
        for name in names:
            size_bytes = _bulk_bytes(outbox.items[name])
            if count >= ITEMS_MAX or (bulk_bytes > 0 and bulk_bytes + size_bytes > BYTES_MAX):
                return outbox, effects
            count, bulk_bytes = count + 1, bulk_bytes + size_bytes
            outbox, sends = _send(outbox, context, active, name, outbox.items[name])
            effects += sends
    return outbox, effects


def _list_due(outbox: Outbox, context: Context) -> dict[int, list[str]]:
    """Return what is due of each class whose turn it is: what was not sent yet over this connection, no more of it than
    may be under way, and behind it what nobody answers.
    """
    priorities = (*CLASSES, SAMPLES_PRIORITY)
    turns_ns = {kind: outbox.urgent_ns if kind < EVIDENCE_PRIORITY else outbox.bulk_ns for kind in priorities}
    due: dict[int, list[str]] = {kind: [] for kind, turn_ns in turns_ns.items() if context.uptime_ns >= turn_ns}
    for name, item in outbox.items.items():  # after a long outage this is what takes the time
        names = due.get(item.priority)
        if names is not None and len(names) < ITEMS_MAX and name not in outbox.sent_ns:
            names.append(name)
    for name in sorted(outbox.sent_ns, key=outbox.sent_ns.__getitem__):
        if (priority := outbox.items[name].priority) in due and not _is_under_way(outbox, context, name):
            due[priority].append(name)
    return due


def _bulk_bytes(item: Item) -> int:
    return sum(map(len, item.payloads)) if item.priority >= EVIDENCE_PRIORITY else 0


def _is_under_way(outbox: Outbox, context: Context, name: str) -> bool:
    """Tell whether the receipt of an item that was sent is not overdue. No receipt is for a body that is still leaving.

    Where the aggregator has answered since, one message was lost, and patience is no help.
    """
    sent_ns, settings = outbox.sent_ns[name], context.settings
    if outbox.items[name].priority >= EVIDENCE_PRIORITY and outbox.bytes_waiting > 0:
        return True
    tries = 1 if outbox.received_ns > sent_ns else outbox.tries.get(name, 1)
    return context.uptime_ns - sent_ns < wait_ns(settings.exchange.resend_s, tries, settings.gateway.id, name)


def _send(outbox: Outbox, context: Context, active: Active, name: str, item: Item) -> tuple[Outbox, list[Effect]]:
    retain = item.retain and _is_present(active, name, topics.parse(item.topic).item)
    payloads = item.payloads[-1:] if name in outbox.tries else item.payloads
    sends: list[Effect] = [Publish(item.topic, payload, retain) for payload in payloads]
    tries = {**outbox.tries, name: outbox.tries.get(name, 0) + 1}
    return replace(outbox.mark_sent(name, context.uptime_ns), tries=tries), sends


def _is_present(active: Active, name: str, cause: str) -> bool:
    """Tell whether a change of an alarm is how things are now: an older one that is sent once more must not be what
    late listeners see.
    """
    return name == active[cause].item if cause in active else name.endswith(".cleared")


def settle(outbox: Outbox, name: str, receipt: Receipt) -> tuple[Outbox, list[Effect]]:
    """Take in a receipt: the item is the aggregator's now, or was refused for good."""
    if name not in outbox.items:
        return outbox, []
    refused = [] if receipt.accepted else [Log("warning", f"aggregator refused {name[:16]}: {receipt.reason}")]
    return outbox.without([name]), [Dequeue(name), *refused]


def resend(outbox: Outbox, context: Context, name: str, missing: tuple[int, ...]) -> tuple[Outbox, list[Effect]]:
    """Send again the chunks of an update that the aggregator lacks."""
    if name not in outbox.items:
        return outbox, []
    item = outbox.items[name]
    wanted = list_requested(missing, len(item.payloads))
    sends: list[Effect] = [Publish(item.topic, item.payloads[index]) for index in wanted]
    return outbox.mark_sent(name, context.uptime_ns), sends
