"""The disks of a simulated world: the real stores on real files, and what a power cut leaves of a write.

With `synchronous = FULL` SQLite promises all but the commit at hand. So that is what is torn here: the sectors that the
commit wrote to the -wal are there, or not, or hold rubbish; and where the power fails while the -wal is copied into the
file, some pages of it are new and some old, the -wal being whole. A cut is composed from files before and after.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sqlalchemy import Engine, NullPool, create_engine, event

from fedgate.cloud_aggregator.events import Durable as CloudDurable
from fedgate.cloud_aggregator.storage import sqlite
from fedgate.cloud_aggregator.storage import store as cloud_store
from fedgate.cloud_aggregator.storage.tables import META
from fedgate.gateway_agent.events import Durable as GatewayDurable
from fedgate.gateway_agent.events import Enqueue
from fedgate.gateway_agent.state import Stored
from fedgate.gateway_agent.storage import rows
from fedgate.gateway_agent.storage import store as gateway_store

SECTOR, PAGE = 512, 4_096
VOLATILE = ("-shm", ".lock")  # what no power cut leaves: shared memory, and a lock that the kernel holds
Image = dict[str, bytes]  # the files of a store, by what follows its name
Contents = Mapping[Any, Any]  # all that a store holds, each by its key; equal where nothing changed


_opening = [Path()]  # the file of the next connection
_ENGINE = create_engine("sqlite://", creator=lambda: sqlite3.connect(_opening[0]), poolclass=NullPool)
event.listen(_ENGINE, "connect", sqlite.set_up)


class PowerCutError(BaseException):  # no service catches it
    """The power failed within a commit."""


def image(path: Path) -> Image:
    """Return what the disk holds of a store."""
    files = sorted(path.parent.glob(f"{path.name}*"))
    return {file.name.removeprefix(path.name): file.read_bytes() for file in files if not file.name.endswith(VOLATILE)}


def restore(path: Path, held: Image) -> None:
    """Make the disk hold this of a store, and nothing else."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    for name, body in held.items():
        path.with_name(path.name + name).write_bytes(body)


def torn(before: Image, after: Image, rng: np.random.Generator) -> Image:
    """Return what a power cut within a commit may leave, given the files before it and after it."""
    if before.get("") != after.get(""):  # the commit also copied the -wal into the file, which begins when it is whole
        return {**after, "": mixed(before.get("", b""), after[""], PAGE, rng)}
    old, new = before.get("-wal", b""), after.get("-wal", b"")
    sectors = -(-len(new) // SECTOR)
    in_order = np.arange(sectors) < rng.integers(sectors + 1)
    there = in_order if rng.random() < 0.5 else rng.random(sectors) < rng.random()
    rubbish = (~there) & (rng.random(sectors) < 0.3)
    # Disks are trusted with one thing: what lies beside the bytes that are written, in the same sector, stays.
    start = _first_difference(old, new)
    parts = [new[:start]]
    for index in range(start // SECTOR, sectors):
        place = slice(max(index * SECTOR, start), (index + 1) * SECTOR)
        length = len(new[place])
        left = rng.bytes(length) if rubbish[index] else old[place].ljust(length, b"\0")
        parts.append(new[place] if there[index] else left)
    length = len(new) if rng.random() < 0.5 else max(len(old), int(rng.integers(len(new) + 1)))
    return {**after, "-wal": b"".join(parts)[:length]}


def _first_difference(old: bytes, new: bytes) -> int:
    length = min(len(old), len(new))
    differing = np.flatnonzero(np.frombuffer(old, np.uint8, length) != np.frombuffer(new, np.uint8, length))
    return int(differing[0]) if len(differing) else length


def mixed(old: bytes, new: bytes, size: int, rng: np.random.Generator) -> bytes:
    """Return a file of which some pages are old and some new."""
    pages = -(-max(len(old), len(new)) // size)
    chosen = rng.random(pages) < rng.random()
    places = [slice(index * size, (index + 1) * size) for index in range(pages)]
    return b"".join((new if chosen[index] else old)[place].ljust(size, b"\0") for index, place in enumerate(places))


def cut_in_checkpoint(path: Path, held: Image, rng: np.random.Generator) -> Image:
    """Return what is left where the power fails while the -wal is copied into the file."""
    if "-wal" not in held:
        return held
    scratch = path.with_name(f"scratch-{path.name}")
    restore(scratch, held)
    database = sqlite3.connect(scratch)
    database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    checkpointed = scratch.read_bytes()
    database.close()
    restore(scratch, {})
    return {**held, "": mixed(held.get("", b""), checkpointed, PAGE, rng)}


@dataclass(frozen=True)
class Renewed:
    """A store was found damaged while it was open, and a new one took its place, which holds this."""

    stored: Stored


@dataclass(frozen=True)
class Doubt:
    """A commit that was cut: nobody knows whether it is there before the store is open again."""

    effects: list[Any]
    before: Contents
    after: Contents

    def there(self, found: Contents) -> list[bool]:
        """Return, for each thing that the commit changed, whether a store holds it as it is after the commit."""
        keys = self.before.keys() | self.after.keys()
        changed = [key for key in keys if self.before.get(key) != self.after.get(key)]
        return [found.get(key) == self.after.get(key) for key in changed]


@dataclass
class Disk:
    """The disk of one machine, and whoever wants to know of its commits."""

    path: Path
    rng: np.random.Generator
    committed: Callable[[Sequence[Any]], None]
    is_cut_armed: bool = False  # the next commit is one too many
    is_full: bool = False
    torn: float = 1.0  # share of the cuts within a commit that leave any part of it; the others leave nothing
    left: Image | None = None  # by a power cut within a commit
    doubt: Doubt | None = None  # about that commit
    commits: int = 0

    def commit(self, write: Callable[[], None], effects: list[Any], contents: Callable[[], Contents]) -> None:
        """Write, or be cut off while writing; `contents` says what the store holds."""
        if not self.is_cut_armed:
            write()
            self.commits += 1
            self.committed(effects)
            return
        before, held = image(self.path), contents()
        write()
        left = torn(before, image(self.path), self.rng)
        self.left, self.is_cut_armed = left if self.rng.random() < self.torn else before, False
        self.doubt = Doubt(effects, held, contents())
        raise PowerCutError

    def fail(self, close: Callable[[], None], *, in_checkpoint: bool) -> None:
        """Let the machine that uses it go down: what is on the disk stays there, all else is gone."""
        held = image(self.path) if self.left is None else self.left
        if in_checkpoint and self.left is None:
            held = cut_in_checkpoint(self.path, held, self.rng)
        close()
        restore(self.path, held)
        self.left, self.is_cut_armed = None, False

    def resolved(self) -> Doubt | None:
        """Return what was in doubt, once: the store is open and can be asked."""
        doubt, self.doubt = self.doubt, None
        return doubt


class GatewayStore(gateway_store.Store):
    """A gateway's store on a disk that may fail, with reserves as small as its world."""

    reserve_bytes: ClassVar[int] = 64 * 1024
    log_bytes: ClassVar[int] = 128 * 1024
    start_bytes: ClassVar[int] = 0

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(disk.path)
        self.fill(disk.is_full)

    def commit(self, effects: Iterable[GatewayDurable]) -> None:
        """As the real one, unless the power fails."""
        held = list(effects)
        super_commit = super().commit
        self._disk.commit(lambda: super_commit(held), held, self.contents)

    def contents(self) -> Contents:
        """Return all that it holds and that is whole."""
        stored = rows.read(self._db).stored
        windows = {("window", place): (one.row.tobytes(), one.end_ns) for place, one in enumerate(stored.baseline)}
        blobs = {("blob", key): body for key, body in stored.blobs.items()}
        return windows | blobs | {("item", name): item for name, item in stored.outbox.items()}

    def renew(self, reason: str, stored: Stored) -> None:
        """As the real one; what the agent has in mind counts as committed."""
        super().renew(reason, stored)
        self._disk.committed([Renewed(self.read()), *(Enqueue(name, item) for name, item in stored.outbox.items())])

    def fill(self, is_full: bool) -> None:
        """Let the file grow no more, or again."""
        self._db.execute(f"PRAGMA max_page_count = {1 if is_full else 2**30}")


class SharedEngine(sqlite.SqliteDatabase):
    """As the real one; all stores share one engine, for SQLAlchemy writes each statement anew for another."""

    def make_engine(self) -> Engine:
        _opening[0] = self.path
        return _ENGINE


class CloudStore(cloud_store.Store):
    """The aggregator's store on a disk that may fail."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(SharedEngine(disk.path))
        self.fill(disk.is_full)

    def commit(self, effects: Iterable[CloudDurable]) -> None:
        """As the real one, unless the power fails."""
        held = list(effects)
        super_commit = super().commit
        self._disk.commit(lambda: super_commit(held), held, self.contents)

    def contents(self) -> Contents:
        """Return all rows of all tables."""
        return {
            (name, *(row[column.name] for column in table.primary_key)): row
            for name, table in META.tables.items()
            for row in self.read_rows(name)
        }

    def fill(self, is_full: bool) -> None:
        """Let the file grow no more, or again."""
        with self._db.begin():
            self._db.exec_driver_sql(f"PRAGMA max_page_count = {1 if is_full else 2**30}")


def complaint(path: Path) -> str:
    """Return what SQLite finds wrong with the file of a store; empty where it is sound."""
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        result = str(database.execute("PRAGMA integrity_check").fetchone()[0])
    except sqlite3.Error as error:
        result = str(error)
    finally:
        database.close()
    return "" if result == "ok" else result
