"""How a clip lies in the file of clips: a header and the bytes of the clip, in whole slots."""

from __future__ import annotations

import struct

SLOT_BYTES = 4096
CLIP = struct.Struct("<16sQHQI")  # key, number, bytes of the alarm's id, bytes and checksum of the body; then the id
SUM = struct.Struct("<I")  # of the header
NAME_BYTES_MAX = SLOT_BYTES - CLIP.size - SUM.size


def count_slots(name_bytes: int, body_bytes: int) -> int:
    """Return how many slots a clip takes, by the length of its alarm's id and its own."""
    return -(-(CLIP.size + name_bytes + SUM.size + body_bytes) // SLOT_BYTES)


def count_written_bytes(alarm: str, body_bytes: int) -> int:
    """Return how many bytes of the flash are written for a clip."""
    return count_slots(len(alarm.encode()), body_bytes) * SLOT_BYTES
