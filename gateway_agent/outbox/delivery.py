"""The outbox on its way: alarms first, a few at a time, again with growing pauses, until the aggregator's receipt.

The word of a broker counts for nothing: it may drop what it has acknowledged. So no more is under way than the
aggregator is likely to take soon, and each receipt lets the next follow. A body that was sent before is not sent whole
again: its last chunk makes the aggregator say whether it has the rest, or ask for what it lacks.
"""

from __future__ import annotations

from collections import Counter

from fedgate.config.protocol import topics
from fedgate.config.protocol.messages import Receipt, alarm_item
from fedgate.gateway_agent.events import CLASSES, UPDATE_PRIORITY, Effect, Item, Log, Publish, Settle
from fedgate.gateway_agent.outbox import eviction
from fedgate.gateway_agent.outbox.connection import NS, URGENT_SHARE, jitter, wait_ns
from fedgate.gateway_agent.state import ANOMALY, State, alarm_id, save_counted
from fedgate.models.records import replace

ITEMS_MAX = 32  # under way at once; brokers keep 1,000 messages for a client that is slow, and some far fewer
BYTES_MAX = 256 * 1024  # under way at once, of what is no alarm; one item always is


def connected(state: State) -> State:
    """Return the state with a new connection: nothing is under way, and what has gathered waits for its turn.

    The turn of each gateway is another, within `exchange.spread_s`: after an outage all of a fleet come back. One whose
    turn is still to come keeps it, or a line that breaks every few seconds would carry nothing.
    """
    name, number = state.settings.gateway.id, state.line.connections + 1
    line, spread_ns = replace(state.line, connections=number, bytes_waiting=0), state.settings.exchange.spread_s * NS
    if not 0 < line.bulk_ns - state.now_ns <= spread_ns:
        turn_ns = spread_ns * jitter(name, number) if state.outbox else 0.0
        urgent_ns, bulk_ns = state.now_ns + round(turn_ns * URGENT_SHARE), state.now_ns + round(turn_ns)
        line = replace(line, urgent_ns=urgent_ns, bulk_ns=bulk_ns)
    return replace(state, sent_ns={}, line=line)


def heard(state: State) -> State:
    """Return the state after a word of the aggregator, whatever it says."""
    return replace(state, line=replace(state.line, heard_ns=state.now_ns))


def send_due(state: State) -> tuple[State, list[Effect]]:
    """Send what is due, the most important and oldest first, as far as there is room under way."""
    if not state.connected or not state.outbox:
        return state, []
    items, size_bytes = Counter[int](), Counter[int]()  # under way, by priority
    due = _fresh(state)
    for name, sent_ns in state.sent_ns.items():
        item = state.outbox[name]
        if _is_under_way(state, name, item):
            items[item.priority] += 1
            size_bytes[item.priority] += _size(item)
        elif _is_its_turn(state, item.priority):  # none that nobody answers stands before one that was not sent yet
            due.append((item.priority, True, sent_ns, name))
    effects: list[Effect] = []
    for priority, _, _, name in sorted(due, key=lambda one: one[:3]):  # stable: the oldest first
        item = state.outbox[name]
        before = sum(count for other, count in items.items() if other <= priority)  # a lesser one stops no other
        bulk = sum(size for other, size in size_bytes.items() if UPDATE_PRIORITY <= other <= priority)
        is_too_much = priority >= UPDATE_PRIORITY and bulk > 0 and bulk + _size(item) > BYTES_MAX
        if before >= ITEMS_MAX or is_too_much:
            break
        items[priority] += 1
        size_bytes[priority] += _size(item)
        state, sends = _send(state, name, item)
        effects += sends
    return state, effects


def _is_its_turn(state: State, priority: int) -> bool:
    return state.now_ns >= (state.line.urgent_ns if priority < UPDATE_PRIORITY else state.line.bulk_ns)


def _fresh(state: State) -> list[tuple[int, bool, int, str]]:
    """Return what was not sent yet over this connection and whose turn it is, no more of a class than may be under way:
    after a long outage this is what takes the time.
    """
    found: dict[int, list[str]] = {priority: [] for priority in CLASSES if _is_its_turn(state, priority)}
    if not found:
        return []
    for name, item in state.outbox.items():
        names = found.get(item.priority)
        if names is not None and len(names) < ITEMS_MAX and name not in state.sent_ns:
            names.append(name)
    return [(priority, False, 0, name) for priority, names in found.items() for name in names]


def _size(item: Item) -> int:
    return sum(map(len, item.payloads))


def _is_under_way(state: State, name: str, item: Item) -> bool:
    """Tell whether an item was sent and its receipt is not overdue. No receipt is for a body that is still leaving."""
    sent_ns = state.sent_ns.get(name)
    if sent_ns is None:
        return False
    if item.priority >= UPDATE_PRIORITY and state.line.bytes_waiting > 0:
        return True
    heard_ns = state.line.heard_ns
    is_there = heard_ns is not None and heard_ns > sent_ns  # then one message was lost, and patience helps nobody
    tries = 1 if is_there else state.line.tries.get(name, 1)
    return state.now_ns - sent_ns < wait_ns(state.settings.exchange.resend_s, tries, state.settings.gateway.id, name)


def _send(state: State, name: str, item: Item) -> tuple[State, list[Effect]]:
    tries = state.line.tries.get(name, 0)
    retain = item.retain and _is_present(state, name, topics.parse(item.topic).item)
    payloads = item.payloads[-1:] if tries else item.payloads
    sends: list[Effect] = [Publish(item.topic, payload, retain) for payload in payloads]
    line = replace(state.line, tries={**state.line.tries, name: tries + 1})
    return replace(state, sent_ns={**state.sent_ns, name: state.now_ns}, line=line), sends


def _is_present(state: State, name: str, cause: str) -> bool:
    """Tell whether a change of an alarm is how things are now: an older one that is sent once more must not be what
    late listeners see.
    """
    anomaly = state.pipeline.alarm
    onsets_ns = state.sensor_alarms | ({ANOMALY: anomaly.onset_ns} if anomaly.active else {})
    if cause not in onsets_ns:
        return name.endswith(".cleared")
    return name == alarm_item(alarm_id(state, cause, onsets_ns[cause]), "raised")


def settle(state: State, name: str, receipt: Receipt) -> tuple[State, list[Effect]]:
    """Take in a receipt: the item is the aggregator's now, or was refused for good. The next may follow."""
    if name not in state.outbox:
        if not receipt.accepted or name != state.awaited or state.is_counted:
            return state, []
        state = replace(state, is_counted=True, last_counted=name)  # given up here for lack of room, and there already
        return state, [save_counted(state)]
    refusal = receipt.reason
    is_update = state.outbox[name].priority == UPDATE_PRIORITY
    if receipt.accepted and not is_update:
        refusal = state.refusal  # that an alarm has arrived says nothing about the training
    state = replace(eviction.without(state, [name]), refusal=refusal)
    effects: list[Effect] = [Settle(name)]
    if receipt.accepted and name == state.awaited:
        state = replace(state, is_counted=True, last_counted=name)
        effects.append(save_counted(state))
    if not receipt.accepted:
        effects.append(Log("warning", f"aggregator refused {name[:16]}: {receipt.reason}"))
    if len(state.sent_ns) > ITEMS_MAX // 2:  # to look through a full outbox for every receipt would take too long
        return state, effects
    state, sends = send_due(state)
    return state, [*effects, *sends]


def resend(state: State, name: str, missing: tuple[int, ...]) -> tuple[State, list[Effect]]:
    """Send again the chunks of an update that the aggregator lacks."""
    if name not in state.outbox:
        return state, []
    item = state.outbox[name]
    wanted = sorted(set(missing)) or range(len(item.payloads))
    sends: list[Effect] = [Publish(item.topic, item.payloads[index]) for index in wanted if index < len(item.payloads)]
    return replace(state, sent_ns={**state.sent_ns, name: state.now_ns}), sends
