"""Room in a bounded outbox: the least important goes first, oldest first, and a tombstone says that it went.

The classes are alarms, sensor alarms, updates, telemetry. A class gives way to those before it and, oldest first, to
its own; where that is not enough, what came last is what is lost. A tombstone is an item like an alarm and leaves only
on its receipt; there is at most one a class, for which room is kept.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.config.protocol.losses import Reason, Tombstone
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import (
    ALARM_PRIORITY,
    CLASSES,
    TELEMETRY_PRIORITY,
    Durable,
    Effect,
    Item,
    Log,
    Queue,
    Settle,
)
from fedgate.gateway_agent.outbox.item_size import TOMBSTONE, held_bytes, is_tombstone, stored_bytes
from fedgate.gateway_agent.outbox.outbox import Outbox


def make_room(outbox: Outbox, context: Context, name: str, item: Item) -> tuple[Outbox, list[Effect], bool]:
    """Return the outbox with room for an item and True, or with the item given up and False."""
    if item.priority == TELEMETRY_PRIORITY and (why := why_no_telemetry(context)):
        outbox, effects = give_up(outbox, context, {name: item}, why)
        return outbox, effects, False
    replaced = outbox.items.get(name)
    before = 0 if replaced is None else stored_bytes(name, replaced)
    excess = held_bytes(outbox.items) - before + stored_bytes(name, item) - context.settings.store.max_bytes
    if excess <= 0:
        return outbox, [], True
    victims: dict[str, Item] = {}
    for other in _least_important_first(outbox, name, item.priority):
        if excess <= 0:
            break
        victims[other] = outbox.items[other]
        excess -= stored_bytes(other, outbox.items[other])
    if excess > 0:  # nothing that may be given up for it is enough, so nothing is
        outbox, effects = give_up(outbox, context, {name: item}, "outbox-full")
        return outbox, effects, False
    outbox, effects = give_up(outbox, context, victims, "outbox-full")
    return outbox, effects, True


def _least_important_first(outbox: Outbox, name: str, priority: int) -> list[str]:
    names = [
        other
        for other, item in outbox.items.items()
        if item.priority >= priority and other != name and not is_tombstone(other)
    ]
    return sorted(names, key=lambda other: -outbox.items[other].priority)  # stable: the oldest of a class first


def why_no_telemetry(context: Context) -> Reason | None:
    """Return why no telemetry is stored at present, None where it is."""
    if context.store.problem == "disk-full":
        return "disk-full"
    return "flash-budget" if context.store.flash.written_bytes >= context.settings.store.flash_bytes_per_day else None


def give_up(outbox: Outbox, context: Context, items: dict[str, Item], why: Reason) -> tuple[Outbox, list[Effect]]:
    """Give up items, stored or not, and say so in the tombstones of their classes."""
    known = [name for name in items if name in outbox.items]
    outbox = outbox.without(known)
    effects: list[Effect] = [Settle(name) for name in known]
    for priority, kind in CLASSES.items():
        dropped = {name: item for name, item in items.items() if item.priority == priority and not is_tombstone(name)}
        if not dropped:
            continue
        before = outbox.dropped.get(kind, 0)
        total = before + len(dropped)
        outbox = replace(outbox, dropped={**outbox.dropped, kind: total})
        if before.bit_length() != total.bit_length():
            effects.append(Log("warning", f"{kind} given up ({total} so far): {why}"))
        outbox, recorded = _record_loss(outbox, context, priority, dropped, why)
        effects += recorded
    return outbox, effects


def _record_loss(
    outbox: Outbox, context: Context, priority: int, dropped: dict[str, Item], why: Reason
) -> tuple[Outbox, list[Durable]]:
    """Return the outbox with these items, all of one class, in the tombstone of that class."""
    kind = CLASSES[priority]
    times = [item.t_ns for item in dropped.values()]
    stone = Tombstone(
        id=next(iter(dropped)),
        kind=kind,
        items=len(dropped),
        size_bytes=sum(len(payload) for item in dropped.values() for payload in item.payloads),
        first_ns=min(times),
        last_ns=max(times),
        why=(why,),
        boot_id=context.boot_id,
    )
    where, effects = context.topic(TOMBSTONE, kind), list[Durable]()
    before = next((name for name, item in outbox.items.items() if item.topic == where), None)
    sent_ns = None
    if before is not None:
        sent_ns = outbox.sent_ns.get(before)
        stone = merge(Tombstone.from_bytes(outbox.items[before].payloads[0]), stone)
        outbox = outbox.without([before])
        effects.append(Settle(before))
    item = Item(where, (stone.to_bytes(),), retain=False, priority=ALARM_PRIORITY, t_ns=context.now_ns)
    outbox = replace(outbox, items={**outbox.items, stone.item: item})
    if sent_ns is not None:  # one that grows by the second is not to be sent by the second
        outbox = replace(outbox, sent_ns={**outbox.sent_ns, stone.item: sent_ns})
    return outbox, [*effects, Queue(stone.item, item)]


def merge(before: Tombstone, more: Tombstone) -> Tombstone:
    """Return one tombstone for what two of a class say."""
    return before.model_copy(
        update={
            "items": before.items + more.items,
            "size_bytes": before.size_bytes + more.size_bytes,
            "first_ns": min(before.first_ns, more.first_ns),
            "last_ns": max(before.last_ns, more.last_ns),
            "why": tuple(dict.fromkeys((*before.why, *more.why))),
            "boot_id": more.boot_id,
        }
    )


def give_up_telemetry(outbox: Outbox, context: Context) -> tuple[Outbox, list[Effect]]:
    """Give up all telemetry: the disk is full, and what is said of the structure needs the room."""
    held = {name: item for name, item in outbox.items.items() if item.priority == TELEMETRY_PRIORITY}
    return give_up(outbox, context, held, "disk-full") if held else (outbox, [])
