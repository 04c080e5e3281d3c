"""What a machine knows of the time: how long it is up, which nothing sets, and the time of day, which may be wrong.

A Raspberry Pi without a battery-backed clock boots in the past and jumps when the network comes. So deadlines, pauses
and ages go by the uptime. The time of day is the uptime after an anchor, the time of the boot: that is taken from the
wall clock when a process starts, and again where the wall clock was set and can be believed.
"""

from __future__ import annotations

import ctypes
import time
import uuid
from pathlib import Path

from fedgate.config.protocol.messages import ClockQuality

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
STEPPED_NS = 1_000_000_000
TIMEX_BYTES = 512  # larger than struct timex on every platform; all zero asks and changes nothing


class Clock:
    """The two times of a process."""

    def __init__(self) -> None:
        self.anchor_ns = time.time_ns() - time.monotonic_ns()  # of the boot, as far as the wall clock is right

    @staticmethod
    def uptime_ns() -> int:
        """Return the time since the boot, whatever happens to the wall clock."""
        return time.monotonic_ns()

    def now_ns(self) -> int:
        """Return the time of day in ns of Unix time, by a wall clock that was set as of `follow`."""
        return self.anchor_ns + self.uptime_ns()

    def follow(self) -> bool:
        """Take a new anchor from a wall clock that was set and can be believed; return whether it was."""
        by_ns = time.time_ns() - self.now_ns()
        if abs(by_ns) <= STEPPED_NS or ask_quality() != "synchronised":
            return False
        self.anchor_ns += by_ns
        return True

    def quality(self) -> ClockQuality:
        """Return whether `now_ns` can be believed: a wall clock that was set after our start left it behind."""
        return "unsynchronised" if abs(time.time_ns() - self.now_ns()) > STEPPED_NS else ask_quality()


def boot_id() -> str:
    """Return an id of this boot of the machine; where the kernel has none, of this process."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return str(uuid.uuid4())


def ask_quality() -> ClockQuality:
    """Ask the kernel whether something disciplines its clock."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return "unknown"
    state = adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    if state < 0:
        return "unknown"
    return "unsynchronised" if state == UNSYNCHRONISED else "synchronised"
