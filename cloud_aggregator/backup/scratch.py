"""A place for a copy of the store while a backup is made or put back, for one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = ".aggregator.db.copy"


@contextmanager
def scratch_file(folder: Path) -> Iterator[Path]:
    """Yield the name of a file in a folder, which is made for it and left as it was; what a process that was killed has
    left there is removed. Raises `OSError` where another works there: the kernel ends its claim with the process.
    """
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    copy, descriptor = folder / NAME, os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _claim(descriptor, folder)
        try:
            _remove(copy)
            yield copy
        finally:
            _remove(copy)
    finally:
        os.close(descriptor)
        with suppress(OSError):  # something is in it: the site
            for one in made:
                one.rmdir()


def _claim(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(f"{folder}: another backup or restore is at work here; wait for its end") from None


def _remove(copy: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)
