"""What must not be lost: queued durably, sent while there is a link (`delivery`), settled by a receipt alone.

An outage may last for months and a store is bounded; `eviction` decides what goes then.
"""

from __future__ import annotations

from fedgate.gateway_agent.events import Effect, Item, Queue, Save
from fedgate.gateway_agent.outbox import delivery, eviction
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.store_identity import SEQUENCE
from fedgate.models.records import replace


def queue(state: State, name: str, item: Item) -> tuple[State, list[Effect]]:
    """Store an item and, after that, send it; where there is no room for it, say that it is lost."""
    item = replace(item, t_ns=item.t_ns or state.now_ns)
    state, effects, is_in = eviction.admitted(state, name, item)
    if not is_in:
        return state, effects
    sequence = state.life.sequence + 1
    life = replace(state.life, sequence=sequence)
    state = replace(state, outbox={**state.outbox, name: item}, life=life)
    state, sends = delivery.send_due(state)
    return state, [*effects, Queue(name, item), Save(SEQUENCE, str(sequence).encode()), *sends]
