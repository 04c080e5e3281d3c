"""Files that no power cut leaves half written, in folders that one process at a time changes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PRIVATE_MODE, PUBLIC_MODE = 0o600, 0o644


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """Open a folder, for what the kernel does with one."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make durable which files are in a folder, and under which names."""
    with open_folder(folder) as descriptor:
        os.fsync(descriptor)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep out other processes that change the files of a folder and ask in this way; wait for one that does."""
    with open_folder(folder) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def write_whole(path: Path, mode: int = PRIVATE_MODE) -> Iterator[BinaryIO]:
    """Open a file that gets its name when it is whole and on the disk, and else leaves nothing: after a power cut it is
    the old one or the new one, never a part of either.
    """
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def write(path: Path, body: bytes, mode: int) -> None:
    """Replace a file as a whole."""
    with write_whole(path, mode) as file:
        file.write(body)


def own_as_folder(path: Path) -> None:
    """Give a file that root has made to whom its folder belongs, as SQLite does: the service is another user's."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
