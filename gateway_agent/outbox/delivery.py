"""The outbox on its way: alarms first, a few at a time, again with growing pauses, until the aggregator's receipt.

The word of a broker counts for nothing: it may drop what it has acknowledged. So no more is under way than the
aggregator is likely to take soon, and each receipt lets the next follow. A body that was sent before is not sent whole
again: its last chunk makes the aggregator say whether it has the rest, or ask for what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedgate.config.protocol import topics
from fedgate.config.protocol.backoff import draw_jitter, wait_ns
from fedgate.config.protocol.messages import Alarm, Receipt
from fedgate.config.protocol.transfer import list_requested
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import CLASSES, UPDATE_PRIORITY, Dequeue, Effect, Item, Log, Publish
from fedgate.gateway_agent.outbox.outbox import Outbox
from fedgate.models.time_units import NS

URGENT_SHARE = 0.2  # of the spread after an outage: within so much of it the alarms go
ITEMS_MAX = 32  # under way at once; brokers keep 1,000 messages for a client that is slow, and some far fewer
BYTES_MAX = 256 * 1024  # under way at once, of what is no alarm; one item always is
Active = Mapping[str, Alarm]  # the alarms that are active, by cause


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
    turns_ns = {kind: outbox.urgent_ns if kind < UPDATE_PRIORITY else outbox.bulk_ns for kind in CLASSES}
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
    return sum(map(len, item.payloads)) if item.priority >= UPDATE_PRIORITY else 0


def _is_under_way(outbox: Outbox, context: Context, name: str) -> bool:
    """Tell whether the receipt of an item that was sent is not overdue. No receipt is for a body that is still leaving.

    Where the aggregator has answered since, one message was lost, and patience is no help.
    """
    sent_ns, settings = outbox.sent_ns[name], context.settings
    if outbox.items[name].priority >= UPDATE_PRIORITY and outbox.bytes_waiting > 0:
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
