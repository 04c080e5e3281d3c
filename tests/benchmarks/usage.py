"""What a process takes of the machine: memory, processor, bytes written."""

from __future__ import annotations

from typing import NamedTuple

import psutil  # type: ignore[import-untyped]  # psutil ships no types

MIB = 2**20


class Memory(NamedTuple):
    """Resident memory in MiB: all of it, and with what is shared divided among those who share it."""

    rss_mib: float
    pss_mib: float


def memory(pid: int) -> Memory:
    full = psutil.Process(pid).memory_full_info()
    return Memory(full.rss / MIB, full.pss / MIB)


def busy_s(pid: int) -> float:
    """Return the processor time of a process so far, all its threads together."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def written_bytes() -> int:
    """Return how many bytes this process has given to write calls so far."""
    return int(psutil.Process().io_counters().write_chars)
