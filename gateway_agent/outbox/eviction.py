"""Room in a bounded outbox: the least important goes first, oldest first, and a tombstone says that it went.

The classes are alarms, sensor alarms, updates, telemetry. A class gives way to those before it and, oldest first, to
its own; where that is not enough, what came last is what is lost. A tombstone is an item like an alarm and leaves only
on its receipt; there is at most one a class, for which room is kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedgate.config.protocol.losses import Reason, Tombstone
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
from fedgate.gateway_agent.outbox.item_size import TOMBSTONE, held_bytes, is_tombstone, weight
from fedgate.gateway_agent.state import State, counted, topic
from fedgate.models.records import replace


def without(state: State, names: Iterable[str]) -> State:
    """Return the state without some items of the outbox."""
    outbox, sent_ns, tries = dict(state.outbox), dict(state.sent_ns), dict(state.line.tries)
    for name in names:  # a copy and what goes of it is much faster than what stays, one by one
        for held in (outbox, sent_ns, tries):
            held.pop(name, None)
    return replace(state, outbox=outbox, sent_ns=sent_ns, line=replace(state.line, tries=tries))


def admitted(state: State, name: str, item: Item) -> tuple[State, list[Effect], bool]:
    """Return the state with room for an item and True, or with the item given up and False."""
    if item.priority == TELEMETRY_PRIORITY and (why := no_telemetry(state)):
        state, effects = lost(state, {name: item}, why)
        return state, effects, False
    replaced = state.outbox.get(name)
    before = 0 if replaced is None else weight(name, replaced)
    excess = held_bytes(state.outbox) - before + weight(name, item) - state.settings.store.max_bytes
    if excess <= 0:
        return state, [], True
    victims: dict[str, Item] = {}
    for other in _least_important_first(state, name, item.priority):
        if excess <= 0:
            break
        victims[other] = state.outbox[other]
        excess -= weight(other, state.outbox[other])
    if excess > 0:  # nothing that may be given up for it is enough, so nothing is
        state, effects = lost(state, {name: item}, "outbox-full")
        return state, effects, False
    state, effects = lost(state, victims, "outbox-full")
    return state, effects, True


def _least_important_first(state: State, name: str, priority: int) -> list[str]:
    names = [
        other
        for other, item in state.outbox.items()
        if item.priority >= priority and other != name and not is_tombstone(other)
    ]
    return sorted(names, key=lambda other: -state.outbox[other].priority)  # stable: the oldest of a class first


def no_telemetry(state: State) -> Reason | None:
    """Return why no telemetry is stored at present, None where it is."""
    if state.store_problem == "disk-full":
        return "disk-full"
    return "flash-budget" if state.flash.written_bytes >= state.settings.store.flash_bytes_per_day else None


def lost(state: State, items: dict[str, Item], why: Reason) -> tuple[State, list[Effect]]:
    """Give up items, stored or not, and say so in the tombstones of their classes."""
    known = [name for name in items if name in state.outbox]
    state = without(state, known)
    effects: list[Effect] = [Settle(name) for name in known]
    for priority, kind in CLASSES.items():
        gone = {name: item for name, item in items.items() if item.priority == priority and not is_tombstone(name)}
        if not gone:
            continue
        state = counted(state, f"dropped.{kind}", len(gone))
        if (state.counts[f"dropped.{kind}"] - len(gone)).bit_length() != state.counts[f"dropped.{kind}"].bit_length():
            total = state.counts[f"dropped.{kind}"]
            effects.append(Log("warning", f"{kind} given up ({total} so far): {why}"))
        state, buried = _buried(state, priority, gone, why)
        effects += buried
    return state, effects


def _buried(state: State, priority: int, gone: dict[str, Item], why: Reason) -> tuple[State, list[Durable]]:
    """Return the state with these items, all of one class, in the tombstone of that class."""
    kind = CLASSES[priority]
    times = [item.t_ns for item in gone.values()]
    stone = Tombstone(
        id=next(iter(gone)),
        kind=kind,
        items=len(gone),
        size_bytes=sum(len(payload) for item in gone.values() for payload in item.payloads),
        first_ns=min(times),
        last_ns=max(times),
        why=(why,),
        boot_id=state.boot_id,
    )
    where, effects = topic(state, TOMBSTONE, kind), list[Durable]()
    before = next((name for name, item in state.outbox.items() if item.topic == where), None)
    sent_ns = None
    if before is not None:
        sent_ns = state.sent_ns.get(before)
        stone = merged(Tombstone.from_bytes(state.outbox[before].payloads[0]), stone)
        state = without(state, [before])
        effects.append(Settle(before))
    item = Item(where, (stone.to_bytes(),), retain=False, priority=ALARM_PRIORITY, t_ns=state.now_ns)
    state = replace(state, outbox={**state.outbox, stone.item: item})
    if sent_ns is not None:  # one that grows by the second is not to be sent by the second
        state = replace(state, sent_ns={**state.sent_ns, stone.item: sent_ns})
    return state, [*effects, Queue(stone.item, item)]


def merged(before: Tombstone, more: Tombstone) -> Tombstone:
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


def without_telemetry(state: State) -> tuple[State, list[Effect]]:
    """Give up all telemetry: the disk is full, and what is said of the structure needs the room."""
    held = {name: item for name, item in state.outbox.items() if item.priority == TELEMETRY_PRIORITY}
    return lost(state, held, "disk-full") if held else (state, [])
