"""What a process takes of the machine: memory, processor, bytes written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import psutil

MIB = 2**20


class Memory(NamedTuple):
    """Resident memory in MiB.

    `rss_mib` counts all pages; `pss_mib` divides those that several processes share; `private_dirty_mib` are the pages
    that the kernel cannot drop and read again from a file.
    """

    rss_mib: float
    pss_mib: float
    private_dirty_mib: float


def memory(pid: int) -> Memory:
    maps = psutil.Process(pid).memory_maps()
    return Memory(*(sum(getattr(part, kind) for part in maps) / MIB for kind in ("rss", "pss", "private_dirty")))


def peak_mib(pid: int) -> float:
    """Return the most that a process ever had resident."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / MIB


def forget_touched(pid: int) -> None:
    """Let `touched_mib` begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("1")


def touched_mib(pid: int) -> float:
    """Return how much of its memory a process has read or written since `forget_touched`."""
    return float(sum(part.referenced for part in psutil.Process(pid).memory_maps()) / MIB)


def busy_s(pid: int) -> float:
    """Return the processor time of a process so far, all its threads together."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def written_bytes() -> int:
    """Return how many bytes this process has given to write calls so far."""
    return int(psutil.Process().io_counters().write_chars)
