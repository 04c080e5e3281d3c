"""What must not be lost: queued durably, sent while there is a link (`delivery`), settled by a receipt alone.

An outage may last for months and a store is bounded; `eviction` decides what goes then.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import Effect, Item, Queue, Save
from fedgate.gateway_agent.outbox import delivery, eviction
from fedgate.gateway_agent.outbox.outbox import Outbox
from fedgate.gateway_agent.store_identity import SEQUENCE


def queue(
    outbox: Outbox, context: Context, active: delivery.Active, name: str, item: Item
) -> tuple[Outbox, list[Effect]]:
    """Store an item and, after that, send it; where there is no room for it, say that it is lost.

    `active` are the alarms that are active, see `delivery`.
    """
    item = replace(item, t_ns=item.t_ns or context.now_ns)
    outbox, effects, is_in = eviction.make_room(outbox, context, name, item)
    if not is_in:
        return outbox, effects
    outbox = replace(outbox, items={**outbox.items, name: item}, sequence=outbox.sequence + 1)
    stored: list[Effect] = [Queue(name, item), Save(SEQUENCE, str(outbox.sequence).encode())]
    outbox, sends = delivery.send_due(outbox, context, active)
    return outbox, [*effects, *stored, *sends]
