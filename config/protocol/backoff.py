"""How long to wait before something is tried again.

Nothing here is random: the pauses of a gateway follow from its name and from what it waits for. So they differ from
gateway to gateway, and a fleet does not return in step, yet the same run of events gives the same messages.
"""

from __future__ import annotations

import hashlib

from fedgate.models.time_units import NS

WAIT_S_MAX = 300.0
JITTER = 0.25  # of a wait, on top of it
JITTER_BYTES = 8


def draw_jitter(*parts: str | int) -> float:
    """Return a number from 0 to 1, always the same for the same parts."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:JITTER_BYTES], "big") / 256.0**JITTER_BYTES


def compute_pause_s(first_s: float, tries: int, longest_s: float) -> float:
    """Return a pause after so many tries: twice as long each time, up to `longest_s`."""
    return min(first_s * 2.0 ** min(tries - 1, 30), longest_s)


def wait_ns(first_s: float, tries: int, *who: str, longest_s: float = WAIT_S_MAX) -> int:
    """Return how long to wait for an answer after so many tries: twice as long each time, up to `longest_s`, and the
    jitter on top.
    """
    pause_s = compute_pause_s(first_s, tries, max(first_s, longest_s))
    return round(pause_s * (1.0 + JITTER * draw_jitter(*who, tries)) * NS)
