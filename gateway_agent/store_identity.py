"""Which store this is, and how often agents were started on it: what distinguishes it from a copy or an old one.

A gateway's card is copied, or an image of last year is put back; it then forgets what was counted of it, and would be
counted twice. So the store has a name that follows from its secret, and counts the starts on it and the items it ever
queued: none of the three goes back in one that was left alone.
"""

from __future__ import annotations

import hashlib

from fedgate.gateway_agent.events import Save

STARTS, SEQUENCE = "starts", "sequence"  # keys of stored blobs
NAME_LENGTH = 32


def store_id(secret: bytes) -> str:
    """Return the public name of a store; nothing can be learned from it of the secret."""
    return hashlib.sha256(b"name of a store: " + secret).hexdigest()[:NAME_LENGTH] if secret else ""


def save(starts: int, sequence: int) -> list[Save]:
    """Return the effects that store the counts."""
    return [Save(STARTS, str(starts).encode()), Save(SEQUENCE, str(sequence).encode())]
