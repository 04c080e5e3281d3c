"""The outbox on its way: alarms first, a few at a time, again with growing pauses, until the aggregator's receipt.

The word of a broker counts for nothing: it may drop what it has acknowledged. So no more is under way than the
aggregator is likely to take soon, and each receipt lets the next follow. A body that was sent before is not sent whole
again: its last chunk makes the aggregator say whether it has the rest, or ask for what it lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from fedgate.config.protocol import topics
from fedgate.config.protocol.messages import Receipt, alarm_item
from fedgate.config.runtime.backoff import NS, jitter, wait_ns
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import CLASSES, UPDATE_PRIORITY, Effect, Item, Log, Publish, Settle
from fedgate.gateway_agent.outbox.outbox import Outbox

URGENT_SHARE = 0.2  # of the spread after an outage: within so much of it the alarms go
ITEMS_MAX = 32  # under way at once; brokers keep 1,000 messages for a client that is slow, and some far fewer
BYTES_MAX = 256 * 1024  # under way at once, of what is no alarm; one item always is
Active = Mapping[str, str]  # cause -> id, of the alarms that are active


def begin_connection(outbox: Outbox, context: Context) -> Outbox:
    """Return the outbox with a new connection: nothing is under way, and what has gathered waits for its turn.

    The turn of each gateway is another, within `exchange.spread_s`: after an outage all of a fleet come back. One whose
    turn is still to come keeps it, or a line that breaks every few seconds would carry nothing.
    """
    settings, number = context.settings, outbox.line.connections + 1
    line, spread_ns = replace(outbox.line, connections=number, bytes_waiting=0), settings.exchange.spread_s * NS
    if not 0 < line.bulk_ns - context.now_ns <= spread_ns:
        turn_ns = spread_ns * jitter(settings.gateway.id, number) if outbox.items else 0.0
        urgent_ns, bulk_ns = context.now_ns + round(turn_ns * URGENT_SHARE), context.now_ns + round(turn_ns)
        line = replace(line, urgent_ns=urgent_ns, bulk_ns=bulk_ns)
    return replace(outbox, sent_ns={}, line=line)


def note_answer(outbox: Outbox, context: Context) -> Outbox:
    """Return the outbox after a message of the aggregator, whatever it says."""
    return replace(outbox, line=replace(outbox.line, received_ns=context.now_ns))


def send_due(outbox: Outbox, context: Context, active: Active) -> tuple[Outbox, list[Effect]]:
    """Send what is due, the most important and oldest first, as far as there is room under way."""
    if not context.is_connected or not outbox.items:
        return outbox, []
    items, size_bytes = Counter[int](), Counter[int]()  # under way, by priority
    due = _unsent(outbox, context)
    for name, sent_ns in outbox.sent_ns.items():
        item = outbox.items[name]
        if _is_under_way(outbox, context, name, item):
            items[item.priority] += 1
            size_bytes[item.priority] += _size(item)
        elif _is_its_turn(
            outbox, context, item.priority
        ):  # none that nobody answers stands before one that was not sent yet
            due.append((item.priority, True, sent_ns, name))
    effects: list[Effect] = []
    for priority, _, _, name in sorted(due, key=lambda one: one[:3]):  # stable: the oldest first
        item = outbox.items[name]
        before = sum(count for other, count in items.items() if other <= priority)  # a lesser one stops no other
        bulk = sum(size for other, size in size_bytes.items() if UPDATE_PRIORITY <= other <= priority)
        is_too_much = priority >= UPDATE_PRIORITY and bulk > 0 and bulk + _size(item) > BYTES_MAX
        if before >= ITEMS_MAX or is_too_much:
            break
        items[priority] += 1
        size_bytes[priority] += _size(item)
        outbox, sends = _send(outbox, context, active, name, item)
        effects += sends
    return outbox, effects


def _is_its_turn(outbox: Outbox, context: Context, priority: int) -> bool:
    return context.now_ns >= (outbox.line.urgent_ns if priority < UPDATE_PRIORITY else outbox.line.bulk_ns)


def _unsent(outbox: Outbox, context: Context) -> list[tuple[int, bool, int, str]]:
    """Return what was not sent yet over this connection and whose turn it is, no more of a class than may be under way:
    after a long outage this is what takes the time.
    """
    found: dict[int, list[str]] = {priority: [] for priority in CLASSES if _is_its_turn(outbox, context, priority)}
    if not found:
        return []
    for name, item in outbox.items.items():
        names = found.get(item.priority)
        if names is not None and len(names) < ITEMS_MAX and name not in outbox.sent_ns:
            names.append(name)
    return [(priority, False, 0, name) for priority, names in found.items() for name in names]


def _size(item: Item) -> int:
    return sum(map(len, item.payloads))


def _is_under_way(outbox: Outbox, context: Context, name: str, item: Item) -> bool:
    """Tell whether an item was sent and its receipt is not overdue. No receipt is for a body that is still leaving."""
    sent_ns, line = outbox.sent_ns.get(name), outbox.line
    if sent_ns is None:
        return False
    if item.priority >= UPDATE_PRIORITY and line.bytes_waiting > 0:
        return True
    is_there = (
        line.received_ns is not None and line.received_ns > sent_ns
    )  # then one message was lost: patience is no help
    tries, settings = 1 if is_there else line.tries.get(name, 1), context.settings
    return context.now_ns - sent_ns < wait_ns(settings.exchange.resend_s, tries, settings.gateway.id, name)


def _send(outbox: Outbox, context: Context, active: Active, name: str, item: Item) -> tuple[Outbox, list[Effect]]:
    tries = outbox.line.tries.get(name, 0)
    retain = item.retain and _is_present(active, name, topics.parse(item.topic).item)
    payloads = item.payloads[-1:] if tries else item.payloads
    sends: list[Effect] = [Publish(item.topic, payload, retain) for payload in payloads]
    line = replace(outbox.line, tries={**outbox.line.tries, name: tries + 1})
    return replace(outbox, sent_ns={**outbox.sent_ns, name: context.now_ns}, line=line), sends


def _is_present(active: Active, name: str, cause: str) -> bool:
    """Tell whether a change of an alarm is how things are now: an older one that is sent once more must not be what
    late listeners see.
    """
    return name == alarm_item(active[cause], "raised") if cause in active else name.endswith(".cleared")


def settle(
    outbox: Outbox, context: Context, active: Active, name: str, receipt: Receipt
) -> tuple[Outbox, list[Effect]]:
    """Take in a receipt: the item is the aggregator's now, or was refused for good. The next may follow."""
    if name not in outbox.items:
        return outbox, []
    outbox, effects = outbox.without([name]), list[Effect]([Settle(name)])
    if not receipt.accepted:
        effects.append(Log("warning", f"aggregator refused {name[:16]}: {receipt.reason}"))
    if len(outbox.sent_ns) > ITEMS_MAX // 2:  # to look through a full outbox for every receipt would take too long
        return outbox, effects
    outbox, sends = send_due(outbox, context, active)
    return outbox, [*effects, *sends]


def resend(outbox: Outbox, context: Context, name: str, missing: tuple[int, ...]) -> tuple[Outbox, list[Effect]]:
    """Send again the chunks of an update that the aggregator lacks."""
    if name not in outbox.items:
        return outbox, []
    item = outbox.items[name]
    wanted = sorted(set(missing)) or range(len(item.payloads))
    sends: list[Effect] = [Publish(item.topic, item.payloads[index]) for index in wanted if index < len(item.payloads)]
    return replace(outbox, sent_ns={**outbox.sent_ns, name: context.now_ns}), sends
