"""The record of what must reach the aggregator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fedgate.config.protocol.messages import Score
from fedgate.gateway_agent.events import Item


@dataclass(frozen=True)
class Line:
    """What is known of the way to the aggregator."""

    tries: dict[str, int] = field(default_factory=dict)  # outbox item -> how often it was sent, over all connections
    urgent_ns: int = 0  # alarms wait until then, ...
    bulk_ns: int = 0  # ... and everything else until then
    connections: int = 0  # so far
    received_ns: int | None = None  # when the aggregator last said anything
    bytes_waiting: int = 0  # that the broker has not acknowledged
    trouble: str = ""  # what keeps ending the connection


@dataclass(frozen=True)
class Outbox:
    """What waits for a receipt, in the order in which it was queued, and how far it is on its way."""

    items: dict[str, Item] = field(default_factory=dict)
    sequence: int = 0  # items that this store has ever queued
    sent_ns: dict[str, int] = field(default_factory=dict)  # item -> when it was last sent over this connection
    line: Line = field(default_factory=Line)
    scores: tuple[Score, ...] = ()  # that were published to nobody, or perhaps not; see `scores`
    dropped: dict[str, int] = field(default_factory=dict)  # class -> how many items were given up

    def without(self, names: Iterable[str]) -> Outbox:
        """Return the outbox without some items."""
        items, sent_ns, tries = dict(self.items), dict(self.sent_ns), dict(self.line.tries)
        for name in names:  # a copy and what goes of it is much faster than what stays, one by one
            for held in (items, sent_ns, tries):
                held.pop(name, None)
        return replace(self, items=items, sent_ns=sent_ns, line=replace(self.line, tries=tries))

    def move_times(self, by_ns: int) -> Outbox:
        """Return the outbox after the timeline was moved."""
        line = self.line
        line = replace(line, urgent_ns=line.urgent_ns + by_ns, bulk_ns=line.bulk_ns + by_ns, received_ns=None)
        return replace(self, line=line, sent_ns={name: at_ns + by_ns for name, at_ns in self.sent_ns.items()})
