"""A process by a name that no other ever has: numbers are given anew, also within one boot."""

from __future__ import annotations

import os
from pathlib import Path

STARTED = 19  # place of the starting time in /proc/<pid>/stat behind the name, which may hold anything
STATE, GONE = 0, "ZX"  # place of the state there, and those of a process that has ended


def process_name(pid: int) -> str:
    """Return what no other process is called: boot, number and starting time; raises `OSError` where none has it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {pid} {_fields(pid)[STARTED]}"


def own_name() -> str:
    """Return what this process is called; empty where the system does not say."""
    try:
        return process_name(os.getpid())
    except OSError:
        return ""


def is_alive(name: str) -> bool:
    """Tell whether the process of this name runs, in sight of this one: on this machine, in this container."""
    _, _, rest = name.partition(" ")
    number = rest.partition(" ")[0]
    try:
        return number.isdecimal() and process_name(int(number)) == name and _fields(int(number))[STATE] not in GONE
    except OSError:
        return False


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
