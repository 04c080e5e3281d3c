"""Which life of which store this is: what lets the aggregator tell a copy, or an old one brought back, from this one.

A gateway's card is copied, or an image of last year is put back; it then forgets what was counted of it, and would be
counted twice. So the store has a name that follows from its secret, and counts the starts on it and the items it ever
queued: none of the three goes back in one that was left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from fedgate.gateway_agent.events import Save

STARTS, SEQUENCE = "starts", "sequence"  # keys of stored blobs
NAME_LENGTH = 32


@dataclass(frozen=True)
class Life:
    """The counts, and where the timeline begins."""

    starts: int = 0
    sequence: int = 0
    anchor_ns: int | None = None  # the time of the boot by the gateway's timeline, where that is known

    def monotonic_ns(self, now_ns: int) -> int | None:
        """Return how long after the boot a moment of the timeline is."""
        return None if self.anchor_ns is None else now_ns - self.anchor_ns


def store_id(secret: bytes) -> str:
    """Return the public name of a store; nothing can be learned from it of the secret."""
    return hashlib.sha256(b"name of a store: " + secret).hexdigest()[:NAME_LENGTH] if secret else ""


def saved(life: Life) -> list[Save]:
    """Return the effects that store the counts."""
    return [Save(STARTS, str(life.starts).encode()), Save(SEQUENCE, str(life.sequence).encode())]


def restored(blobs: Mapping[str, bytes], anchor_ns: int | None) -> Life:
    """Return what a store held of it; 0.4 did not count."""
    return Life(int(blobs.get(STARTS, b"0")), int(blobs.get(SEQUENCE, b"0")), anchor_ns)
