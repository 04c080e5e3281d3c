"""What the store asks of a database: all in which SQLite and PostgreSQL differ, behind one set of methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fedgate.config.runtime.store_lock import StoreError as StoreError

CANNOT_OPEN = "cannot be opened as the aggregator's store"


class Database(Protocol):
    """A database of one kind. Its methods raise `StoreError`, or an error of SQLAlchemy where a connection is given."""

    name: str  # the path or the URL, as it is shown
    was_there: bool  # before `connect`, with tables or without

    def hold(self, program: str) -> None:
        """Take the store for this process alone, until `release` or its end."""

    def release(self) -> None:
        """Let others have the store."""

    def find_held_since_ns(self) -> int | None:
        """Return since when a process has the store, in ns of Unix time by the clock of this machine, also where that
        process is not seen from here; None where nobody has it.
        """

    def exists(self) -> bool:
        """Tell whether a store was ever made here."""

    def connect(self, *, create: bool) -> Connection:
        """Return a connection; where this process has taken the store, the one that what it holds depends on."""

    def connect_to_read(self) -> Connection:
        """Return a connection that can write nothing, and needs no right to; raises `StoreError`."""

    def read_change(self, db: Connection) -> object:
        """Return what is another value after others have written something, on one connection, and the same while they
        have not.
        """

    def is_replaced(self, db: Connection) -> bool:
        """Tell whether what the last connection that only reads has open is no more the store, as it is now."""

    def read_schema_version(self, db: Connection) -> int:
        """Return the number that `write_schema_version` wrote, 0 where there is none."""

    def write_schema_version(self, db: Connection, version: int) -> None:
        """Write that all tables of a version are there, within the transaction that is open."""

    def open_snapshot(self) -> AbstractContextManager[Connection]:
        """Open a transaction that reads all tables as they are at one moment, whatever is written meanwhile; raises
        `StoreError` too where the database itself is damaged, as far as it can tell.
        """

    def size_bytes(self) -> int:
        """Return about how much the store takes."""

    def find_free_bytes(self) -> int | None:
        """Return how much more the disk of the store takes; None where that is not the disk of this machine."""

    def cause_of(self, error: SQLAlchemyError) -> str:
        """Return what is wrong and what to do, in a line."""

    def is_of_values(self, error: SQLAlchemyError) -> bool:
        """Tell whether an error is of what was to be written, and not of the database."""

    def put(self, copy: Path) -> str:
        """Put what a file of SQLite holds in the place of the store, which this process has taken, all or nothing;
        return where the one before was set aside, empty where there was none. The file is used up.
        """


def message_of(error: SQLAlchemyError) -> str:
    """Return what a database says of an error, in a line."""
    return str(error.orig if isinstance(error, DBAPIError) else error).splitlines()[0]


@contextmanager
def name_errors(database: Database, what: str) -> Iterator[None]:
    """Make an error of the database a `StoreError` that names it."""
    try:
        yield
    except SQLAlchemyError as error:
        raise StoreError(f"{database.name}: {what} ({database.cause_of(error)})") from None
