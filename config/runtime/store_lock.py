"""One process to a store: a lock that the kernel takes back however that process ends, and the word on who holds it.

It is a record lock (fcntl) on a file beside the store. The kernel knows it by the process and not by an open file, so a
child that outlives its parent does not keep it, and says itself which process holds it, so no number in a file can be
out of date. What is locked is the file at the end of all links: one store has one lock, by whatever name it is opened.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from datetime import UTC, datetime
from pathlib import Path

from fedgate.config.runtime.files import PRIVATE_MODE

FLOCK = "hhqqi4x"  # struct flock of fcntl(2): type, whence, start, length, process
PROC = Path("/proc")
START_FIELD = 19  # of /proc/PID/stat behind the name of the program: when it began, in ticks since the boot

# Locks of this process, by device and inode, with the process that took them: a child has none of its parent's. To the
# kernel a process never stands in its own way, and closing any descriptor of a locked file gives the lock away.
_taken: dict[tuple[int, int], int] = {}


class StoreError(OSError):
    """A store that cannot be opened, read or written; the message names it and what to do."""


class InUseError(StoreError):
    """Another process has the store; the message names it, since when it runs, and how to see it."""


def lock_file(store: Path) -> Path:
    """Return the file that is locked for a store, beside the file that all its names lead to."""
    found = store.resolve()
    return found.with_name(found.name + ".lock")


def hold(store: Path, program: str) -> int:
    """Return the descriptor of a lock on a store for this process, to be given to `release`.

    Raises `InUseError` where another process has it, which `program` describes, or where the store has a second name
    that no look at this one leads to; `StoreError` where its folder takes no file.
    """
    try:
        return _hold(store, program)
    except StoreError:
        raise
    except OSError as error:
        reason = f"{error.strerror}; check its folder"
        raise StoreError(f"{store}: cannot be opened as the {program}'s store ({reason})") from None


def check_is_file(store: Path) -> None:
    """Raise `StoreError` where a store is named that is a folder."""
    if store.is_dir():
        raise StoreError(f"{store}: it is a folder; expected the path of a file, such as one in it")


def _hold(store: Path, program: str) -> int:
    check_is_file(store)
    if store.exists() and store.stat().st_nlink > 1:
        raise InUseError(
            f"{store}: the file has {store.stat().st_nlink} names (hard links). SQLite keeps a log beside each, so "
            f"two processes would spoil it: remove the others (find -samefile {store.name})"
        )
    path = lock_file(store)
    if _is_ours(path):
        raise _make_error(store, program, os.getpid())
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
    try:
        if os.geteuid() == 0:  # and the service is another user's, to whom the folder belongs
            owner = path.parent.stat()
            os.fchown(lock, owner.st_uid, owner.st_gid)
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _find_holder(lock)
        os.close(lock)
        raise _make_error(store, program, holder or 0) from None  # None: it has just ended
    except OSError:
        os.close(lock)
        raise
    _taken[_identify(os.fstat(lock))] = os.getpid()
    return lock


def release(lock: int) -> None:
    """Let others have the store."""
    _taken.pop(_identify(os.fstat(lock)), None)
    os.close(lock)


def find_holder(store: Path) -> int | None:
    """Return the process that has a store, 0 for one that has no number here, such as one in another container, and
    None where nobody has it. The kernel is asked and no lock is taken, so whoever starts meanwhile is not in its way.

    Raises `OSError` where this user may not look.
    """
    path = lock_file(store)
    if _is_ours(path):
        return os.getpid()
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _find_holder(lock)
    finally:
        os.close(lock)


def describe_process(process: int) -> str:
    """Return which process it is, since when it runs and how to see it."""
    if process == 0:
        return "a process that is not seen from here, such as one in another container"
    started = _start_time(process)
    return f"process {process}{f', since {started}' if started else ''} (ps -fp {process}, systemctl status {process})"


def _make_error(store: Path, program: str, process: int) -> InUseError:
    return InUseError(f"{store}: another {program} runs on this store: {describe_process(process)}; stop it first")


def _is_ours(path: Path) -> bool:
    try:
        return _taken.get(_identify(path.stat())) == os.getpid()
    except OSError:
        return False


def _identify(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _find_holder(lock: int) -> int | None:
    """Return the process in the way of a lock, 0 where it is of another namespace, None where there is none."""
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, process = struct.unpack(FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(int(process), 0)  # below 0: of another machine


def _start_time(process: int) -> str:
    """Return when a process began, empty where the kernel does not say."""
    try:
        ticks = int((PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[START_FIELD])
        up_s = float((PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return ""
    started_s = time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")
    return datetime.fromtimestamp(started_s, UTC).isoformat(timespec="seconds")
