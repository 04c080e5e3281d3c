"""The store as a database of a PostgreSQL server: the only place that knows what PostgreSQL alone has.

All tables lie in the current schema of the connection, `public` where nothing else was set up. Numbers of rows come
from sequences, text is ordered by the characters' numbers, and the server's own checks stand for the file's.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    MetaData,
    NullPool,
    Table,
    create_engine,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from fedgate.cloud_aggregator.storage.copying import copy_tables
from fedgate.cloud_aggregator.storage.database import CANNOT_OPEN, StoreError, message_of, name_errors
from fedgate.cloud_aggregator.storage.sqlite import SqliteDatabase
from fedgate.cloud_aggregator.storage.tables import META, SCHEMA_VERSION
from fedgate.config.settings.database import DatabaseUrl

VERSION = Table("schema_version", MetaData(), Column("version", BigInteger, nullable=False))
CONNECT_S = 10  # after which a server that does not answer counts as unreachable
LOCK = 0x0FED_6A7E  # with the schema: what processes of ours lock, whatever else lies in the database
TRY = text("SELECT pg_try_advisory_lock(:lock, hashtext(current_schema()))")
BACKEND = text("SELECT pg_backend_pid()")  # the process of the server that serves a connection
GIVE_BACK = text("SELECT pg_advisory_unlock_all()")
POOLER = (
    "behind a pooler in transaction mode no connection keeps a session of the server, which the lock of a store is of; "
    "connect to the server itself, or to a pool in session mode: docs/reference/aggregator.md, PostgreSQL"
)
HOLDER = text("""
SELECT a.pid, a.application_name, a.client_addr, a.backend_start,
       extract(epoch FROM clock_timestamp() - a.backend_start) AS age_s
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.classid = :lock
  AND l.objid = (hashtext(current_schema())::bigint & 4294967295)
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
""")
# A commit that returned is on the disk of the server, whatever is set for others; nobody is served less than that.
DURABLE = text(
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
# A line that is dead ends the session at both ends within a minute: the server's own default keeps its lock for hours.
ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
WATCHED = text("""
SELECT set_config('tcp_keepalives_idle', '30', false), set_config('tcp_keepalives_interval', '10', false),
       set_config('tcp_keepalives_count', '3', false)
""")
TABLES = text("SELECT to_regclass('alarm_events')::oid")
NEXT_TRANSACTION = text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
LIMITS, NO_RIGHT = "54", "42501"  # SQLSTATE: what no row or index may exceed; a right that is missing
PATIENCE_S = 1.0
NAME_BYTES = 63  # of an application
OWNER = "make this user the owner of the database: docs/reference/aggregator.md, PostgreSQL"
REACH = "does the server run, are there the database and the user, is the password in ~/.pgpass or PGPASSWORD"


class PostgresqlDatabase:
    """A schema in a database of a server."""

    was_there = False

    def __init__(self, url: DatabaseUrl) -> None:
        self.name = str(url)
        self._read_tables: object = None  # see `is_replaced`
        self._held: Connection | None = None

    def hold(self, program: str) -> None:
        """Take the store by a lock of the session; the server takes it back when the connection ends.

        What is written afterwards is written by this connection, so where the lock is lost nothing can be written.
        """
        db = self._connect(program)
        with name_errors(self, CANNOT_OPEN):
            if not self._take_lock(db):
                holder = db.execute(HOLDER, {"lock": LOCK}).first()
                db.close()
                raise StoreError(f"{self.name}: another {program} runs on this store: {_describe(holder)}")
            backend = db.scalar(BACKEND)
            db.commit()
        self._check_session(db, backend)
        self._held = db

    def _take_lock(self, db: Connection) -> bool:
        """Take the lock, and tell whether that was possible. It is tried for a while: a busy server ends the session of
        who had it after that one has closed the connection.
        """
        until_s = time.monotonic() + PATIENCE_S
        while not db.scalar(TRY, {"lock": LOCK}):
            if time.monotonic() >= until_s:
                return False
            time.sleep(PATIENCE_S / 10)
        return True

    def _check_session(self, db: Connection, backend: int | None) -> None:
        """Raise `StoreError` where another connection gets the session of the server in which this one has the lock: a
        pooler in transaction mode gives it to whoever comes next.
        """
        with self._connect("reader") as other, name_errors(self, CANNOT_OPEN):
            if other.scalar(BACKEND) == backend:
                other.execute(GIVE_BACK)  # else the pooler's session would keep it
                other.commit()
                db.close()
                raise StoreError(f"{self.name}: {CANNOT_OPEN} ({POOLER})")

    def release(self) -> None:
        """Let others have the store."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def find_held_since_ns(self) -> int | None:
        """Return when the session began that has the store, None where nobody has it; by how long ago that was, so that
        the clock of the server does not matter. Of another user's session nobody but the server knows: now, then.
        """
        with self._connect("reader") as db, name_errors(self, "cannot be read"):
            holder = db.execute(HOLDER, {"lock": LOCK}).first()
        return None if holder is None else time.time_ns() - round(float(holder.age_s or 0.0) * 1e9)

    def exists(self) -> bool:
        """Tell whether a store was ever made here."""
        with self._connect("reader") as db, name_errors(self, "cannot be read"):
            return bool(self._list_tables(db))

    def connect(self, *, create: bool) -> Connection:
        """Return the connection that has the lock, or a new one."""
        return self._held or self._connect("service" if create else "reader")

    def _connect(self, program: str) -> Connection:
        given = {"application_name": _name_application(program), "connect_timeout": CONNECT_S, **ALIVE}
        try:
            db = create_engine(self.name, poolclass=NullPool, connect_args=given).connect()
            db.execute(DURABLE)
            db.execute(WATCHED)
            schema = db.scalar(text("SELECT current_schema()"))
            db.commit()
        except ModuleNotFoundError:
            raise  # which extra brings it, the command says
        except (SQLAlchemyError, ImportError) as error:
            message = message_of(error) if isinstance(error, SQLAlchemyError) else str(error)
            raise StoreError(f"{self.name}: {CANNOT_OPEN} ({message}; {REACH}?)") from None
        if schema is None:
            db.close()
            raise StoreError(f"{self.name}: {CANNOT_OPEN} (there is no schema of its search_path; CREATE SCHEMA first)")
        return db

    def connect_to_read(self) -> Connection:
        """Return a connection whose transactions write nothing."""
        db = self._connect("reader").execution_options(postgresql_readonly=True)
        self._read_tables = self._find_tables(db)
        return db

    def read_change(self, db: Connection) -> object:
        """Return the number of the transaction that comes next, which others that write take."""
        return db.scalar(NEXT_TRANSACTION)

    def is_replaced(self, db: Connection) -> bool:
        """Tell whether a restore has put other tables in the place of those that were there."""
        with name_errors(self, "cannot be read"):
            return self._find_tables(db) != self._read_tables

    def _find_tables(self, db: Connection) -> object:
        """Return by which number the server knows the tables."""
        with db.begin():
            return db.scalar(TABLES)

    def read_schema_version(self, db: Connection) -> int:
        """Return the number in the table for it."""
        is_there = inspect(db).has_table(VERSION.name)
        return int(db.execute(VERSION.select()).scalar_one()) if is_there else 0

    def write_schema_version(self, db: Connection, version: int) -> None:
        """Write the number into a table of its own."""
        VERSION.metadata.create_all(db)
        db.execute(insert(VERSION).values(version=version))

    @contextmanager
    def open_snapshot(self) -> Iterator[Connection]:
        """Read in one transaction, of which others see nothing."""
        with self._connect("reader") as db, name_errors(self, "cannot be read"):
            reading = db.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with reading.begin():
                yield reading

    def find_free_bytes(self) -> None:
        """Return nothing: the disk is the server's."""

    def size_bytes(self) -> int:
        """Return the size of all tables with what belongs to them."""
        with self._connect("reader") as db, name_errors(self, "cannot be read"):
            sizes = (db.scalar(text("SELECT pg_total_relation_size(to_regclass(:n))"), {"n": n}) for n in META.tables)
            return sum(size or 0 for size in sizes)

    def cause_of(self, error: SQLAlchemyError) -> str:
        """Return what the server says, and what to do about it."""
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return f"{message_of(error)}; the connection is lost, and with it the lock where this process had it"
        return f"{message_of(error)}; {OWNER if _state(error) == NO_RIGHT else 'look into the log of the server'}"

    def is_of_values(self, error: SQLAlchemyError) -> bool:
        """Tell whether a value did not fit, such as text with a NUL or a key that no index holds."""
        return isinstance(error, DataError | IntegrityError) or _state(error).startswith(LIMITS)

    def put(self, copy: Path) -> str:
        """Copy the rows of a file, in one transaction with the move of the tables before into a schema of their own."""
        db, aside = self.connect(create=True), ""
        with name_errors(self, "cannot be written"), SqliteDatabase(copy).open_snapshot() as source, db.begin():
            if tables := self._list_tables(db):
                aside = f"before_{datetime.now(UTC):%Y%m%dt%H%M%S_%fz}"
                db.execute(text(f"CREATE SCHEMA {aside}"))
                for table in tables:
                    db.execute(text(f"ALTER TABLE {table} SET SCHEMA {aside}"))
            META.create_all(db)
            self.write_schema_version(db, SCHEMA_VERSION)
            copy_tables(source, db, lambda _: None)
            _advance_sequences(db)
        copy.unlink()
        return f"schema {aside}" if aside else ""

    def _list_tables(self, db: Connection) -> list[str]:
        return sorted({*META.tables, VERSION.name} & set(inspect(db).get_table_names()))


def _advance_sequences(db: Connection) -> None:
    """Let numbers of rows go on behind those that were copied."""
    for table in META.sorted_tables:
        column = table.autoincrement_column
        if column is not None:
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            db.execute(select(func.setval(sequence, func.coalesce(func.max(column), 0) + 1, False)))


def _name_application(program: str) -> str:
    """Return as what a connection shows in `pg_stat_activity`: which program, which process, on which machine."""
    return f"fedgate {program}, process {os.getpid()} on {socket.gethostname()}"[:NAME_BYTES]


def _describe(holder: Any) -> str:
    """Return who has the lock, since when, and how to see it."""
    if holder is None:  # it has just ended
        return "a session that has just ended; try again"
    if holder.backend_start is None:
        return f"a session of another user (as pid {holder.pid} in pg_stat_activity); stop it first"
    since = holder.backend_start.astimezone(UTC).isoformat(timespec="seconds")
    return (
        f"{holder.application_name}, from {holder.client_addr or 'this machine'}, since {since} "
        f"(as pid {holder.pid} in pg_stat_activity); stop it first"
    )


def _state(error: SQLAlchemyError) -> str:
    return str(getattr(getattr(error, "orig", None), "sqlstate", "") or "")
