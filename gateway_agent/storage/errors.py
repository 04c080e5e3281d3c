"""What can be wrong with the agent's store: the disk, the file, or something else; as SQLite names it, and as we do."""

from __future__ import annotations

import sqlite3

from fedgate.config.runtime.store_lock import StoreError as StoreError

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


def kind_of(error: sqlite3.Error) -> type[StoreError]:
    """Return which of our errors one of SQLite's is."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # of the Python module: text that is none, a type that the database does not know
        return StoreDamagedError if isinstance(error, sqlite3.OperationalError) else StoreError
    primary = code & 0xFF
    if primary in OF_THE_DISK:
        return StoreFullError
    return StoreDamagedError if primary in OF_THE_FILE else StoreError
