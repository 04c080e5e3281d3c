"""A durable delivery queue: what waits for its receipt, stored before it is sent and sent until the receipt is here.

A gateway delivers so to the aggregator, whose receipt is a message, and the aggregator to a webhook, whose receipt is
an HTTP 2xx. Which items are sent next, how many at once, and which give way to others, is for each of them to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Enqueue:
    """Store an item under its name, in place of one that has it."""

    name: str
    item: Any  # of the owner's kind


@dataclass(frozen=True)
class Dequeue:
    """Remove an item: its receipt is here, or it is given up."""

    name: str


@dataclass(frozen=True)
class DeliveryQueue(Generic[Item]):
    """The items that wait, in their order, and how far they are on their way. Only the items are durable."""

    items: dict[str, Item] = field(default_factory=dict)  # by name
    sent_ns: dict[str, int] = field(default_factory=dict)  # item -> when it was last sent, where a receipt may come
    tries: dict[str, int] = field(default_factory=dict)  # item -> how often it was tried, as the owner counts

    def having(self, name: str, item: Item) -> Self:
        """Return the queue with an item; a new one comes last."""
        return replace(self, items={**self.items, name: item})

    def without(self, names: Iterable[str]) -> Self:
        """Return the queue without some items."""
        items, sent_ns, tries = dict(self.items), dict(self.sent_ns), dict(self.tries)
        for name in names:  # a copy and what goes of it is much faster than what stays, one by one
            for held in (items, sent_ns, tries):
                held.pop(name, None)
        return replace(self, items=items, sent_ns=sent_ns, tries=tries)

    def mark_sent(self, name: str, uptime_ns: int) -> Self:
        """Return the queue with an item under way."""
        return replace(self, sent_ns={**self.sent_ns, name: uptime_ns})
