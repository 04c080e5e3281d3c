"""The files of the agent's store: opened, locked, set aside and made anew where damaged.

A new file is made beside the old one, closed, and then renamed into its place, so at every instant there is one that
is whole: `tidied` finds out which after a power cut.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import ExitStack, closing, suppress
from itertools import starmap
from pathlib import Path

from fedgate.config.protocol import wire
from fedgate.config.runtime import sqlite
from fedgate.config.runtime.files import sync_folder
from fedgate.config.runtime.sqlite import StoreDamagedError, StoreError, classify_error
from fedgate.gateway_agent.events import Durable, Enqueue, Keep, Save
from fedgate.gateway_agent.state import RESCUED, Stored
from fedgate.gateway_agent.storage import rows
from fedgate.gateway_agent.storage.rows import SCHEMA_VERSION, Found
from fedgate.gateway_agent.training.training import OWN, PRIVACY
from fedgate.models.federated.wrappers.privacy_ledger import lost_ledger

APPLICATION = 0x0FED_6000  # plus the schema; a second place for it, so that a damaged byte is no newer agent
NEWER_MAX = 100
PAGE_BYTES = 1_024  # an alarm touches a handful of pages, and each is written whole
CHECKPOINT_PAGES = 2_048  # 2 MiB; the fewer checkpoints, the less is written
CACHE_KIB = 128  # the store is read once, at the start; the default keeps 2 MiB of what was read then for good
SET_ASIDE_MAX = 2
DAMAGE_LINES_MAX, DAMAGE_LINE_LENGTH = 4, 200  # of the lines that say what is damaged
OURS = {"baseline", "blob", "outbox", "payload"}  # tables, of every version


def open_database(path: Path, *, read_only: bool = False, log_bytes: int = 0) -> sqlite3.Connection:
    """Return the open database, a new one where there is none; raises `StoreError` and its kinds.

    A file with no log beside it is open to nobody, and who only reads and may not make a log reads it as one that does
    not change.
    """
    was_cut_off = path.with_name(path.name + "-wal").exists()  # a clean end takes the log along
    is_at_rest = read_only and not was_cut_off and not os.access(path.parent, os.W_OK)
    is_new = not path.exists()
    if not (is_new or path.stat().st_size or read_only):  # SQLite would take it for a new one
        raise StoreDamagedError(f"{path}: it is empty, and was a store")
    if not read_only:
        sqlite.make_private(path)
    try:
        with ExitStack() as undo:
            mode = "ro&immutable=1" if is_at_rest else "ro" if read_only else "rw"
            place = f"{path.absolute().as_uri()}?mode={mode}"
            db = undo.enter_context(closing(sqlite3.connect(place, uri=True)))
            is_empty = _is_empty(db)
            if not read_only:
                _prepare(db, is_empty)
                if was_cut_off and not is_new and (damage := sqlite.find_damage(db.execute)):
                    raise StoreDamagedError(f"{path}: {damage}")
                if log_bytes:
                    # A full disk has no room for another file; whoever writes to the log will say so.
                    with suppress(OSError), path.with_name(path.name + "-wal").open("r+b") as log:
                        allocate(log.fileno(), log_bytes)
            undo.pop_all()
    except sqlite3.Error as error:
        _forget_empty(path, is_new)
        kind = StoreDamagedError if _is_read_only_by_itself(path, error) else classify_error(error)
        raise kind(f"{path}: cannot be opened as the agent's store ({error})") from None
    return db


def _forget_empty(path: Path, is_new: bool) -> None:
    """Take away a file that was to be a new store and got no byte: an empty one reads as damage."""
    with suppress(OSError):
        if is_new and path.stat().st_size == 0:
            path.unlink()


def _is_read_only_by_itself(path: Path, error: sqlite3.Error) -> bool:
    """Tell whether it is the header of a file that says it may not be written; then it is damaged."""
    is_read_only = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY
    return is_read_only and os.access(path, os.W_OK)


def _is_empty(db: sqlite3.Connection) -> bool:
    """Tell whether an open database has nothing in it; raises `sqlite3.Error` or `StoreError` for what is no store of
    this version.
    """
    schema = int(db.execute("PRAGMA user_version").fetchone()[0])
    again = int(db.execute("PRAGMA application_id").fetchone()[0]) - APPLICATION
    is_older = 0 < schema < SCHEMA_VERSION and again in (schema, -APPLICATION)
    if is_older or SCHEMA_VERSION < schema == again <= NEWER_MAX:
        reason = sqlite.refuse_schema(
            schema, SCHEMA_VERSION, "agent", f"move {_find_path(db)} away, and this gateway is commissioned anew"
        )
        raise StoreError(f"{_find_path(db)}: cannot be opened as the agent's store ({reason})")
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if tables and not tables >= OURS:
        reason = "it is the database of another program; name another file"
        raise StoreError(f"{_find_path(db)}: cannot be opened as the agent's store ({reason})")
    is_empty = (schema, again) == (0, -APPLICATION) and not tables
    if not is_empty and (schema, again) != (SCHEMA_VERSION, SCHEMA_VERSION):
        raise StoreDamagedError(f"{_find_path(db)}: its header is not what was written")
    return is_empty


def _find_path(db: sqlite3.Connection) -> str:
    return str(db.execute("PRAGMA database_list").fetchone()[2])


def _prepare(db: sqlite3.Connection, is_empty: bool) -> None:
    sqlite.set_up(db, CHECKPOINT_PAGES, PAGE_BYTES)
    db.execute("PRAGMA foreign_keys = ON")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    if is_empty:
        numbers = f"PRAGMA user_version = {SCHEMA_VERSION};PRAGMA application_id = {APPLICATION + SCHEMA_VERSION};"
        db.executescript(f"BEGIN;{rows.SCHEMA}{numbers}COMMIT;")


def allocate(file: int, size_bytes: int) -> None:
    """Give a file its blocks before others take them, as far as there are any; nothing is written for that."""
    with suppress(OSError):
        os.posix_fallocate(file, 0, size_bytes)


def finish_renewal(path: Path) -> None:
    """Finish, or take back, what a power cut interrupted while a new file took the place of an old one.

    A log that is left of the old one goes aside too: beside the new file it would be taken for its own.
    """
    new = path.with_name(path.name + ".new")
    if not path.exists():
        before = set_aside(path)[-1:]
        for suffix in sqlite.FILES[1:]:
            left = path.with_name(path.name + suffix)
            if left.exists():
                taken = [file for file in before if not file.with_name(file.name + suffix).exists()]
                aside = taken[0] if taken else _free_name(path)
                left.rename(aside.with_name(aside.name + suffix))
        sync_folder(path.parent)
        if new.exists():
            new.rename(path)
            sync_folder(path.parent)
    sqlite.remove(new)


def _write(new: Path, stored: Stored) -> None:
    sqlite.remove(new)  # of an attempt for which there was no room
    effects: list[Durable] = [*map(Keep, stored.baseline), *starmap(Save, stored.blobs.items())]
    effects += starmap(Enqueue, stored.outbox.items())
    db = open_database(new)
    try:
        with db:
            for effect in effects:
                rows.apply(db, effect)
    except sqlite3.Error as error:
        raise classify_error(error)(f"{new}: cannot be written ({error}); check the disk's space and health") from None
    finally:
        db.close()  # which takes the log along


def rescue(path: Path, reason: str) -> Found:
    """Return what can still be read of a damaged file that nobody has open, and what is wrong with it."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)
    try:
        found = rows.read(db)
    finally:
        db.close()
    return Found(found.stored, tuple(dict.fromkeys((reason, *found.damage))))


def renew(path: Path, found: Found) -> str:
    """Set a damaged file aside, closed or not, put a new one with what was found in its place, and say so."""
    stored, blobs = found.stored, {**found.stored.blobs, RESCUED: b"1"}
    if not blobs.keys() & {OWN, PRIVACY}:
        blobs[PRIVACY] = wire.encode(lost_ledger())  # an account that began anew would spend everything again
    _write(path.with_name(path.name + ".new"), Stored(stored.baseline, blobs, stored.outbox))
    aside = _free_name(path)
    sqlite.move(path, aside)
    sync_folder(path.parent)  # from here on the log is not beside the name of the new file, whatever order the disk has
    path.with_name(path.name + ".new").rename(path)
    sync_folder(path.parent)
    for old in set_aside(path)[:-SET_ASIDE_MAX]:
        sqlite.remove(old)
    lines = [line.removeprefix(f"{path}: ")[:DAMAGE_LINE_LENGTH] for line in found.damage[:DAMAGE_LINES_MAX]]
    more = f" and {len(found.damage) - DAMAGE_LINES_MAX} more" if len(found.damage) > DAMAGE_LINES_MAX else ""
    return (
        f"the store was damaged and is set aside as {aside.name}; kept: {len(stored.baseline)} windows of the "
        f"baseline, {len(stored.outbox)} items to be sent, {', '.join(sorted(stored.blobs)) or 'nothing else'}; "
        f"found: {'; '.join(lines)}{more}"
    )


def _free_name(path: Path) -> Path:
    """Return a name behind all that are taken, by the clock or, where that stands still, by a number."""
    stamp = f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    taken = [int(file.name.rpartition("-")[2]) for file in set_aside(path) if file.name.startswith(stamp)]
    return path.with_name(f"{stamp}-{max(taken, default=-1) + 1:03}")


def set_aside(path: Path) -> list[Path]:
    """Return the damaged files that were set aside, the oldest first as far as the clock was right."""
    return sorted(
        file
        for file in path.parent.iterdir()
        if file.name.startswith(f"{path.name}.damaged-") and not file.name.endswith(sqlite.FILES[1:])
    )


def free_bytes(path: Path) -> int:
    """Return what the disk of a file has left for us."""
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize
