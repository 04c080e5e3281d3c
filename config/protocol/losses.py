"""What a gateway says of what it had to give up: a bounded store must not forget in silence.

A tombstone stands for lost items of one class. While it waits for its receipt it takes in what else of that class is
lost, so there is one a class however long an outage lasts. It keeps its `id` then and only grows, so of several
messages of one id the one with the most items is the whole truth, and the others are part of it.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, get_args

from pydantic import Field

from fedgate.config.protocol.messages import Count, Message, Moment, Name

LossClass = Literal["alarm", "sensor-alarm", "evidence", "update", "telemetry"]
Reason = Literal["outbox-full", "flash-budget", "disk-full", "store-damaged"]


class Tombstone(Message):
    """Items of one class that will never arrive: how many, how large, from when, why."""

    id: Name  # the name of the first item that is lost; the same as long as this tombstone grows
    kind: LossClass
    items: Annotated[int, Field(ge=1, le=2**63 - 1)]
    size_bytes: Count
    first_ns: Moment
    last_ns: Moment
    why: Annotated[tuple[Reason, ...], Field(max_length=len(get_args(Reason)))]
    boot_id: Name = ""

    @property
    def item(self) -> str:
        """The name under which the aggregator acknowledges it; another as soon as it has grown, so that the receipt for
        what it said before does not settle what it says now.
        """
        return f"{hashlib.sha256(f'{self.id}/{self.kind}/{self.items}'.encode()).hexdigest()[:32]}.tombstone"

    def merge(self, more: Tombstone) -> Tombstone:
        """Return one tombstone for what this one and a later one of its class say."""
        return self.model_copy(
            update={
                "items": self.items + more.items,
                "size_bytes": self.size_bytes + more.size_bytes,
                "first_ns": min(self.first_ns, more.first_ns),
                "last_ns": max(self.last_ns, more.last_ns),
                "why": tuple(dict.fromkeys((*self.why, *more.why))),
                "boot_id": more.boot_id,
            }
        )
