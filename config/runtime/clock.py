"""What this gateway knows of the time: a timeline that never steps, and whether the wall clock can be believed.

A Raspberry Pi without a battery-backed clock boots in the past and jumps when the network comes. Windows are cut on a
timeline that starts at the wall time of the process and then follows the monotonic clock. Where the wall clock is set,
whoever has the timeline moves it when it suits him; every record says whether the wall clock was synchronised.
"""

from __future__ import annotations

import ctypes
import time
import uuid
from pathlib import Path
from typing import Literal

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
STEPPED_NS = 1_000_000_000
TIMEX_BYTES = 512  # larger than struct timex on every platform; all zero asks and changes nothing

Quality = Literal["synchronised", "unsynchronised", "unknown"]


class Clock:
    """The gateway's timeline in ns of Unix time, as of the start of the process."""

    def __init__(self) -> None:
        self.anchor_ns = time.time_ns() - time.monotonic_ns()  # of the boot, as far as the wall clock is right

    def now_ns(self) -> int:
        """Return the present moment; never steps, whatever happens to the wall clock, but in `follow`."""
        return self.anchor_ns + time.monotonic_ns()

    def follow(self) -> int:
        """Move the timeline to a wall clock that was set and can be believed; return by how many ns, mostly 0."""
        by_ns = time.time_ns() - self.now_ns()
        if abs(by_ns) <= STEPPED_NS or quality() != "synchronised":
            return 0
        self.anchor_ns += by_ns
        return by_ns

    def quality(self) -> Quality:
        """Return whether `now_ns` can be believed: a wall clock that was set after our start left this timeline
        behind.
        """
        return "unsynchronised" if abs(time.time_ns() - self.now_ns()) > STEPPED_NS else quality()


def boot_id() -> str:
    """Return an id of this boot of the machine; where the kernel has none, of this process."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return str(uuid.uuid4())


def quality() -> Quality:
    """Ask the kernel whether something disciplines its clock."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return "unknown"
    state = adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    if state < 0:
        return "unknown"
    return "unsynchronised" if state == UNSYNCHRONISED else "synchronised"
