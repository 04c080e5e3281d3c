"""What is to be stored and may wait a little, gathered into one commit: every commit wears the flash.

What waits stays in order and goes to the disk with the first thing that may not wait, in the same transaction. So the
disk always holds a state that the gateway has been in, and a power cut takes back the last moments at most. A change
that another overtakes while it waits is never written at all: telemetry whose receipt comes in time costs nothing. For
the same reason what waits stays small, however long a disk is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fedgate.gateway_agent.events import (
    ALARM_PRIORITY,
    CLASSES,
    TELEMETRY_PRIORITY,
    Durable,
    Keep,
    Outward,
    Publish,
    Queue,
    Save,
    Settle,
)
from fedgate.gateway_agent.monitor.monitor import MEMORY
from fedgate.gateway_agent.outbox.outbox import is_tombstone
from fedgate.gateway_agent.state import FLASH, LINK
from fedgate.gateway_agent.store_identity import SEQUENCE
from fedgate.gateway_agent.training.training import COUNTED

MAY_WAIT = frozenset(
    {COUNTED, MEMORY, FLASH, SEQUENCE, LINK}
)  # blobs; that an update was counted comes again with its next receipt


def may_wait(effect: Durable) -> bool:
    """Tell whether losing an effect in a power cut, with all behind it, does no more harm than the documents say."""
    match effect:
        case Queue(name=name, item=item):
            return item.priority == TELEMETRY_PRIORITY or is_tombstone(name)
        case Save(key=key):
            return key in MAY_WAIT
        case _:
            return True  # a window of the baseline; the end of an item, which otherwise is sent and acknowledged again


class WriteBatch:
    """The effects that are not on the disk yet, `stored` being the outbox that is."""

    def __init__(self, stored: Iterable[str]) -> None:
        self._stored = set(stored)  # names
        self._windows: list[Keep] = []
        self._blobs: dict[str, Save] = {}
        self._items: dict[str, Queue | Settle] = {}
        self._since_ns: int | None = None
        self.is_urgent = False

    def add(self, effects: Iterable[Durable], uptime_ns: int) -> None:
        """Take in the effects of a step."""
        for effect in effects:
            match effect:
                case Keep():
                    self._windows.append(effect)
                case Save(key=key):
                    self._blobs[key] = effect
                case Queue(name=name) | Settle(name=name):
                    self._items.pop(name, None)  # it goes to the end
                    if isinstance(effect, Queue) or name in self._stored:
                        self._items[name] = effect
            self.is_urgent |= not may_wait(effect)
        if not (self._windows or self._blobs or self._items):
            self._since_ns = None
        elif self._since_ns is None:
            self._since_ns = uptime_ns

    def waited_s(self, uptime_ns: int) -> float:
        """Return for how long the oldest of the effects has waited, 0 where there is none."""
        return 0.0 if self._since_ns is None else (uptime_ns - self._since_ns) / 1e9

    @property
    def effects(self) -> list[Durable]:
        """All that waits, in an order that does what the effects did in theirs."""
        return [*self._windows, *self._blobs.values(), *self._items.values()]

    @property
    def blobs(self) -> dict[str, bytes]:
        """The blobs that wait."""
        return {key: effect.body for key, effect in self._blobs.items()}

    def lost(self) -> str:
        """Say what ends with the agent, for no disk took it."""
        items = [one.item for one in self._items.values() if isinstance(one, Queue)]
        kinds = Counter(CLASSES[item.priority] for item in items)
        alarms = [item.payloads[0].decode(errors="replace") for item in items if item.priority == ALARM_PRIORITY]
        counted = ", ".join(f"{count} of class {kind}" for kind, count in sorted(kinds.items())) or "no message"
        listed = f"; alarms: {' '.join(alarms)}" if alarms else ""
        return f"the disk is full to the end; lost with this agent: {counted}, {len(self._windows)} windows{listed}"

    def rests(self, effect: Outward) -> bool:
        """Tell whether a message says what is not stored yet. Telemetry may be published and then lost."""
        if not isinstance(effect, Publish):
            return False
        return any(
            isinstance(item, Queue)
            and item.item.topic == effect.topic
            and effect.payload in item.item.payloads
            and item.item.priority != TELEMETRY_PRIORITY
            for item in self._items.values()
        )

    def stored(self) -> None:
        """All of it is on the disk."""
        for name, effect in self._items.items():
            if isinstance(effect, Queue):
                self._stored.add(name)
            else:
                self._stored.discard(name)
        self._windows, self._blobs, self._items = [], {}, {}
        self._since_ns, self.is_urgent = None, False
