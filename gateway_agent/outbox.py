"""What must not be lost: queued durably, published when there is a link, settled only by the aggregator's receipt.

An outage may last for months and a store is bounded; `room` decides what goes then.
"""

from __future__ import annotations

from dataclasses import replace

from config import topics
from config.messages import Receipt, alarm_item
from gateway_agent import room
from gateway_agent.events import UPDATE_PRIORITY, Effect, Item, Log, Publish, Queue, Settle
from gateway_agent.state import ANOMALY, State, alarm_id, counted, save_counted

NS = 1_000_000_000


def queue(state: State, name: str, item: Item) -> tuple[State, list[Effect]]:
    """Store an item and, after that, send it; where there is no room for it, say that it is lost."""
    item = replace(item, t_ns=item.t_ns or state.now_ns)
    state, effects, is_in = room.admitted(state, name, item)
    if not is_in:
        return state, effects
    state = replace(state, outbox={**state.outbox, name: item})
    state, sends = _send(state, name)
    return state, [*effects, Queue(name, item), *sends]


def send_due(state: State, *, everything: bool = False) -> tuple[State, list[Effect]]:
    """Send again what has waited too long for its receipt, or everything after a reconnect; alarms first."""
    wait_ns = round(state.settings.exchange.resend_s * NS)
    effects: list[Effect] = []
    for name in sorted(state.outbox, key=lambda name: state.outbox[name].priority):  # stable: oldest first
        if everything or state.now_ns - state.sent_ns.get(name, 0) >= wait_ns:
            state, sends = _send(state, name)
            effects += sends
    return state, effects


def _send(state: State, name: str) -> tuple[State, list[Effect]]:
    if not state.connected:
        return state, []
    item = state.outbox[name]
    retain = item.retain and _is_present(state, name, topics.parse(item.topic).item)
    sends: list[Effect] = [Publish(item.topic, payload, retain) for payload in item.payloads]
    return replace(state, sent_ns={**state.sent_ns, name: state.now_ns}), sends


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
    """Take in a receipt: the item is the aggregator's now, or was refused for good."""
    if name not in state.outbox:
        return state, []
    refusal = receipt.reason
    is_update = state.outbox[name].priority == UPDATE_PRIORITY
    if receipt.accepted and not is_update:
        refusal = state.refusal  # that an alarm has arrived says nothing about the training
    state = replace(room.without(state, [name]), refusal=refusal)
    effects: list[Effect] = [Settle(name)]
    if receipt.accepted and name == state.awaited:
        state = replace(state, is_counted=True)
        effects.append(save_counted(state))
    if not receipt.accepted:
        effects.append(Log("warning", f"aggregator refused {name[:16]}: {receipt.reason}"))
    return state, effects


def resend(state: State, name: str, missing: tuple[int, ...]) -> tuple[State, list[Effect]]:
    """Send again the chunks of an update that the aggregator lacks."""
    if name not in state.outbox:
        return state, []
    item = state.outbox[name]
    wanted = sorted(set(missing)) or range(len(item.payloads))
    return state, [Publish(item.topic, item.payloads[index]) for index in wanted if index < len(item.payloads)]
