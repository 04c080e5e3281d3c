"""A place for a copy of the store while a backup is made or put back, for one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME, PRIVATE_MODE = ".aggregator.db.copy", 0o600
WITH_IT = ("-journal", "-wal", "-shm")


@contextmanager
def scratch_file(folder: Path) -> Iterator[Path]:
    """Yield an empty file in a folder, which is made for it and left as it was, whatever a process that was killed has
    left there. Raises `OSError` where another works there: the kernel ends its claim with the process.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    copy = folder / NAME
    claim = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_MODE)
    try:
        _take(claim, copy)
        try:
            yield copy
        finally:
            _remove(copy, "", *WITH_IT)
    finally:
        os.close(claim)
        with suppress(OSError):  # something is in it: the site
            for one in made:
                one.rmdir()


def _take(claim: int, copy: Path) -> None:
    """Lock an open file, which is empty then, for this process; raises `OSError` where another has it."""
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = copy.stat().st_ino == os.fstat(claim).st_ino
    except (BlockingIOError, FileNotFoundError):  # another has it, or has just removed it
        is_ours = False
    if not is_ours:
        raise OSError(f"{copy.parent}: another backup or restore is at work here; wait for its end")
    os.ftruncate(claim, 0)
    _remove(copy, *WITH_IT)


def _remove(copy: Path, *suffixes: str) -> None:
    for suffix in suffixes:
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)
