"""The store as a file of SQLite: the only place that knows what SQLite alone has."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles

from fedgate.cloud_aggregator.storage.copying import Advance, copy_tables
from fedgate.cloud_aggregator.storage.database import CANNOT_OPEN, StoreError, message_of, name_errors
from fedgate.cloud_aggregator.storage.tables import META, SCHEMA_VERSION, OctetLength
from fedgate.config.runtime import sqlite, store_lock
from fedgate.config.runtime.files import own_as_folder, sync_folder, write_whole

PAGE_BYTES = 16_384  # updates are a megabyte: by the usual 4 KiB they take half as long again
CHECKPOINT_PAGES = 4_000  # 64 MiB: as large as the file beside the database becomes
READ_CACHE_KIB = 256  # of one who only reads: the machine keeps the file's pages anyway
OF_THE_FILE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)  # primary result codes
RESTORE = "an older backup is the better one: cloud-aggregator restore FILE --replace"


class SqliteDatabase:
    """A file of SQLite, readable by its owner only."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self.was_there = False
        self._lock: int | None = None
        self._read_file = (0, False, 0)  # see `is_replaced`

    def hold(self, program: str) -> None:
        """Lock the file; the kernel takes the lock back however this process ends."""
        self._lock = store_lock.hold(self.path, program)
        os.utime(self._lock)  # see `find_held_since_ns`

    def release(self) -> None:
        """Let others have the file."""
        if self._lock is not None:
            store_lock.release(self._lock)
            self._lock = None

    def find_held_since_ns(self) -> int | None:
        """Return when the process took the file that has it now, None where nobody has it."""
        held = store_lock.find_holder(self.path) is not None
        return store_lock.lock_file(self.path).stat().st_mtime_ns if held else None

    def exists(self) -> bool:
        """Tell whether there is the file, or a log of it."""
        log = self.path.with_name(f"{self.path.name}-wal")
        return self.path.exists() or (log.exists() and log.stat().st_size > 0)

    def connect(self, *, create: bool) -> Connection:
        """Return a connection to the file, which is made where there is none."""
        if locate_staged(self.path).exists():
            raise StoreError(f"{self.name}: a restore was cut off here; give the same 'cloud-aggregator restore' again")
        self.was_there = self.path.exists()
        store_lock.check_is_file(self.path)
        if not (create or self.was_there):
            raise StoreError(f"{self.name}: there is no store yet; the aggregator has not run with these settings")
        if create:
            sqlite.make_private(self.path)
        with name_errors(self, CANNOT_OPEN):
            db = self.make_engine().connect()
        if create:
            self._share()
        return db

    def _share(self) -> None:
        """Let the group of a folder read what is in it, where that folder hands its group on (chmod g+s): so the page
        runs as another user, who can write nothing.
        """
        if self.path.parent.stat().st_mode & stat.S_ISGID:
            for file in (store_lock.lock_file(self.path), *locate_files(self.path)):
                if file.exists():
                    file.chmod(stat.S_IMODE(file.stat().st_mode) | stat.S_IRGRP)

    def make_engine(self) -> Engine:
        """Return what makes connections to the file, which is there."""
        return _make_engine(self.path, mode="rw")

    def connect_to_read(self) -> Connection:
        """Return a connection that writes nothing. A file with no log beside it is open to nobody, and who may not make
        a log reads it as one that does not change.
        """
        if not self.path.exists():
            raise StoreError(f"{self.name}: there is no store yet; the aggregator has not run with these settings")
        self._read_file = _, is_live, _ = self._look()
        with name_errors(self, CANNOT_OPEN):
            db = _make_engine(self.path, mode="ro", **({} if is_live else {"immutable": "1"})).connect()
            db.exec_driver_sql(f"PRAGMA cache_size = -{READ_CACHE_KIB}")
            db.rollback()
            return db

    def read_change(self, db: Connection) -> object:
        """Return SQLite's number of the last change by others."""
        return db.exec_driver_sql("PRAGMA data_version").scalar_one()

    def is_replaced(self, _db: Connection) -> bool:
        """Tell whether another file has taken the place of the one that is read, or one that did not change is written
        to again.
        """
        return self._look() != self._read_file

    def _look(self) -> tuple[int, bool, int]:
        """Return which file it is, 0 for none, whether there is a log beside it, and, where there is none, when it was
        written last.
        """
        if not self.path.exists():
            return 0, False, 0
        file, is_live = self.path.stat(), self.path.with_name(f"{self.path.name}-wal").exists()
        return file.st_ino, is_live, 0 if is_live else file.st_mtime_ns

    def read_schema_version(self, db: Connection) -> int:
        """Return the number in the header of the file."""
        return int(db.exec_driver_sql("PRAGMA user_version").scalar_one())

    def write_schema_version(self, db: Connection, version: int) -> None:
        """Write the number into the header of the file."""
        db.exec_driver_sql(f"PRAGMA user_version = {version}")

    @contextmanager
    def open_snapshot(self) -> Iterator[Connection]:
        """Read in one transaction; in WAL mode a reader holds up no writer."""
        with name_errors(self, "cannot be read"), self.connect(create=False) as db, db.begin():
            db.exec_driver_sql("BEGIN")  # Python's module begins none for what only reads
            if damage := _find_damage(db):
                raise StoreError(f"{self.name}: it is damaged ({damage}); {RESTORE}")
            yield db

    def size_bytes(self) -> int:
        """Return the size of the file and its log."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def find_free_bytes(self) -> int:
        """Return what the file system has left for who is not root."""
        return shutil.disk_usage(self.path.parent).free

    def cause_of(self, error: SQLAlchemyError) -> str:
        """Return what SQLite says, and what to do about a damaged file."""
        message = message_of(error)
        return f"{message}; {RESTORE}" if _is_damage(error) else f"{message}; check the disk"

    def is_of_values(self, error: SQLAlchemyError) -> bool:
        """Tell whether a value did not fit."""
        return isinstance(error, DataError | IntegrityError)

    def put(self, copy: Path) -> str:
        """Give a file that nobody has open its place.

        The new one lies beside the old one, whole, before that is touched, and while it lies there nobody opens a store
        in this place. So a cut leaves the old one, the new one, or what the same command puts right.
        """
        staged = _move(copy, locate_staged(self.path))
        own_as_folder(staged)
        sync_folder(self.path.parent)
        stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"  # of no other time
        kept = self.path.with_name(f"{self.path.name}.before-{stamp}")
        sqlite.move(self.path, kept)
        sync_folder(self.path.parent)
        staged.replace(self.path)
        sync_folder(self.path.parent)
        return str(kept) if kept.exists() else ""


def _make_engine(path: Path, **query: str) -> Engine:
    url = URL.create("sqlite", database=path.absolute().as_uri(), query={"uri": "true"} | query)
    engine = create_engine(url, poolclass=NullPool)
    event.listen(engine, "connect", set_up)
    return engine


def locate_files(path: Path) -> tuple[Path, ...]:
    """Return the file of a store and those that SQLite keeps beside it, which have its mode."""
    return tuple(path.with_name(path.name + suffix) for suffix in sqlite.FILES)


def locate_staged(path: Path) -> Path:
    """Return the file beside a store in which `restore` has the whole one that is about to take its place."""
    return path.with_name(f".{path.name}.restored")


def make_copy(source: Connection, path: Path, advance: Advance) -> None:
    """Write a new file with all that the tables of a source hold, which is whole by itself, with no log beside it."""
    database = SqliteDatabase(path)
    with name_errors(database, "cannot be written"), database.connect(create=True) as db, db.begin():
        META.create_all(db)
        database.write_schema_version(db, SCHEMA_VERSION)
        copy_tables(source, db, advance)
    close_log(path)


def close_log(path: Path) -> None:
    """Make a file that nobody has open whole by itself; who opens it to write begins a log again."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")


def set_up(connection: sqlite3.Connection, _record: Any) -> None:
    """Set how a new connection writes.

    A training is written over and over: what is folded into the file seldom is written once where it were ten times.
    """
    sqlite.set_up(connection, CHECKPOINT_PAGES, PAGE_BYTES)


@compiles(OctetLength, "sqlite")
def _compile_octet_length(element: OctetLength, compiler: Any, **more: Any) -> str:
    """Count bytes, for which SQLite has a function only since 3.43."""
    return f"length(CAST({compiler.process(element.clauses, **more)} AS BLOB))"


def _find_damage(db: Connection) -> str:
    """Return what SQLite's own check of all pages finds, empty where it is sound."""
    try:
        return sqlite.find_damage(db.exec_driver_sql)
    except SQLAlchemyError as error:
        if not _is_damage(error):
            raise
        return message_of(error)


def _is_damage(error: SQLAlchemyError) -> bool:
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)
    return code & 0xFF in OF_THE_FILE


def _move(staged: Path, target: Path) -> Path:
    """Bring a file that is closed to the folder, and maybe the disk, where it belongs, whole; return it there."""
    if staged.stat().st_dev == target.parent.stat().st_dev:
        return staged.replace(target)
    with staged.open("rb") as source, write_whole(target) as out:
        shutil.copyfileobj(source, out)
    return target
