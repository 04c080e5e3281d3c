"""The broker's process: made to read its files again, started anew, and known from the one that runs after it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from fedgate.config.settings.identity import Identity

BROKER = "mosquitto"
COMMAND_S = 30.0
START_S, POLL_S = 2.0, 0.01  # how long a broker that has begun may take until it hears the signal
STARTED = 19  # place of the starting time in /proc/<pid>/stat behind the name, which may hold anything
BY_HAND = "neither identity.broker_pid_file nor identity.reload_command is set: reload the broker by hand"


class BrokerError(OSError):
    """The broker could not be notified; the message says why."""


def reload(spec: Identity) -> str:
    """Have the broker read its files again; raises `BrokerError`. Return what is left to do by hand."""
    if spec.reload_command:
        _run("reload_command", spec.reload_command)
    elif spec.broker_pid_file is not None:
        _hang_up(spec.broker_pid_file)
    else:
        return BY_HAND
    return ""


def restart(spec: Identity) -> None:
    """Have the broker ended and started again, with all its connections; raises `BrokerError`."""
    _run("restart_command", spec.restart_command)


def find_running(spec: Identity) -> str | None:
    """Return what no other process of the broker is called; empty: none runs; None: it is not ours to see."""
    if spec.broker_pid_file is None:
        return None
    try:
        return _name(_read_pid(spec.broker_pid_file))
    except (OSError, ValueError):
        return ""


def _run(name: str, command: tuple[str, ...]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_S)  # noqa: S603 - the operator's own command
    except (OSError, subprocess.SubprocessError) as error:
        raise BrokerError(f"identity.{name} failed ({error})") from None


def _read_pid(pid_file: Path) -> int:
    """Return the broker's number. Numbers are given anew, and what asks a broker to read ends most other programs."""
    pid = int(pid_file.read_text(encoding="ascii"))
    if BROKER not in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace"):
        raise BrokerError(f"{pid_file}: process {pid} is no {BROKER}; is the broker running?")
    return pid


def _name(pid: int) -> str:
    """Return boot, number and starting time of a process: numbers are given anew, also within one boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return f"{boot} {pid} {stat.rpartition(')')[2].split()[STARTED]}"


def _hang_up(pid_file: Path) -> None:
    try:
        pid = _read_pid(pid_file)
        _wait_until_caught(pid)
        os.kill(pid, signal.SIGHUP)
    except (OSError, ValueError) as error:
        raise BrokerError(f"identity.broker_pid_file: {error}; is the broker running, and ours to signal?") from None


def _wait_until_caught(pid: int) -> None:
    """Wait until a process handles the signal: Mosquitto writes its number first, and until then the signal ends it."""
    end_s = time.monotonic() + START_S
    while not _is_caught(pid, signal.SIGHUP):
        if time.monotonic() >= end_s:
            raise BrokerError(f"process {pid} handles no SIGHUP yet")
        time.sleep(POLL_S)


def _is_caught(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)
