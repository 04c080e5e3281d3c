"""A store in a file of SQLite, as both ends have one: private to its owner, and a commit that returned is on the disk.

Nothing here knows a table. Beside the file lies its log, which belongs to it: where one goes the other goes along.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgate.config.runtime.files import PRIVATE_MODE
from fedgate.config.runtime.store_lock import StoreError as StoreError

FILES = ("", "-wal", "-shm")  # of a store, by what follows its name
SYNCHRONOUS = "FULL"  # a commit that returned is on the disk
# What SQLite says of a disk, and not of the file: primary result codes.
OF_THE_DISK = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)
OF_THE_FILE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT})


class StoreFullError(StoreError):
    """The disk takes no more, or nothing at present; what was to be written is to be tried again."""


class StoreDamagedError(StoreError):
    """The file is not what was written."""


def make_private(path: Path) -> None:
    """Make an empty file that its owner alone may read, where there is none; SQLite gives its mode to those beside it.

    Where that fails nothing is raised: SQLite, which is to be asked for a file that is there (`mode=rw`), says it of
    its own. The process's mask is not touched, since all threads share it.
    """
    with suppress(OSError):
        os.close(os.open(path.resolve(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE))


def set_up(db: sqlite3.Connection, checkpoint_pages: int, page_bytes: int) -> None:
    """Set how a new connection writes: in a new file by pages of this size, so many of which are folded from the log
    into the file at once.
    """
    pages = (f"page_size = {page_bytes}", "journal_mode = WAL", f"wal_autocheckpoint = {checkpoint_pages}")
    for setting in (*pages, f"synchronous = {SYNCHRONOUS}"):
        db.execute(f"PRAGMA {setting}")


def find_damage(ask: Callable[[str], Iterable[Any]]) -> str:
    """Return what SQLite's own check of all pages finds, three things at most, empty where they are sound."""
    found = [str(row[0]) for row in ask("PRAGMA quick_check(3)")]
    return "" if found == ["ok"] else "; ".join(found)


def refuse_schema(found: int, known: int, program: str, instead: str) -> str:
    """Return why a store of another schema is not opened, and what to do."""
    if found > known:
        return f"it has schema {found}, this {program} knows {known}; update the {program}"
    return f"an older fedgate made it (schema {found}); {instead}"


def move(path: Path, target: Path) -> None:
    """Give a store another name, the file first: a log alone is no store that anybody takes for a whole one."""
    for suffix in FILES:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))


def remove(path: Path) -> None:
    """Remove a store, where there is one."""
    for suffix in FILES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def classify_error(error: sqlite3.Error) -> type[StoreError]:
    """Return which of our errors one of SQLite's is."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # of the Python module: text that is none, a type that the database does not know
        return StoreDamagedError if isinstance(error, sqlite3.OperationalError) else StoreError
    primary = code & 0xFF
    if primary in OF_THE_DISK:
        return StoreFullError
    return StoreDamagedError if primary in OF_THE_FILE else StoreError
