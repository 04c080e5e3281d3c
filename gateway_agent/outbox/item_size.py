"""How much of the store an item of the outbox takes; the bound of the outbox is kept by it."""

from __future__ import annotations

from collections.abc import Mapping

from fedgate.gateway_agent.events import CLASSES, Item

ITEM_BYTES = 256  # what a database adds to an item, and to each payload of it: rows, indices, a part of a page
TOMBSTONE_BYTES = 1_280  # no tombstone is larger, with what a database adds
TOMBSTONES_BYTES = TOMBSTONE_BYTES * len(CLASSES)
TOMBSTONE = "tombstone"


def is_tombstone(name: str) -> bool:
    """Tell whether an item, by its name, says what was lost."""
    return name.endswith(f".{TOMBSTONE}")


def stored_bytes(name: str, item: Item) -> int:
    """Return how many bytes of the store an item takes, rather too many than too few."""
    return len(name) + len(item.topic) + ITEM_BYTES + sum(len(payload) + ITEM_BYTES for payload in item.payloads)


def held_bytes(outbox: Mapping[str, Item]) -> int:
    """Return how many bytes of the store the outbox takes, or may take: the room of tombstones is never given away."""
    return TOMBSTONES_BYTES + sum(stored_bytes(name, item) for name, item in outbox.items() if not is_tombstone(name))


def by_class(outbox: Mapping[str, Item]) -> dict[str, tuple[int, int]]:
    """Return how many items of each class wait, and how many bytes they take; tombstones as a class of their own."""
    held: dict[str, tuple[int, int]] = dict.fromkeys((*CLASSES.values(), TOMBSTONE), (0, 0))
    for name, item in outbox.items():
        kind = TOMBSTONE if is_tombstone(name) else CLASSES[item.priority]
        items, size_bytes = held[kind]
        held[kind] = (items + 1, size_bytes + stored_bytes(name, item))
    return held
