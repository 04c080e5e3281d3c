"""The agent's memory: one SQLite file in WAL mode that survives a power cut, a full disk and damage to itself.

All effects of one commit are one transaction. The file is private to its owner: it holds the gateway's baseline. What
cannot be written because the disk is full is not lost: the caller still has it, and a reserve inside the file serves
what comes first. A file that is damaged is set aside, and what can still be read of it goes into a new one.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedgate.config.protocol import wire
from fedgate.config.runtime import store_lock
from fedgate.config.runtime.sqlite import StoreDamagedError, StoreError, StoreFullError, classify_error
from fedgate.gateway_agent.context import STARTS
from fedgate.gateway_agent.deployment.deployment import find_in_force
from fedgate.gateway_agent.events import Durable
from fedgate.gateway_agent.outbox.outbox import count_by_class
from fedgate.gateway_agent.state import LINK, Stored, restore_ledger
from fedgate.gateway_agent.storage import files, rows
from fedgate.gateway_agent.storage.rows import SCHEMA_VERSION as SCHEMA_VERSION
from fedgate.gateway_agent.storage.rows import Found
from fedgate.gateway_agent.training.training import OWN
from fedgate.models.federated.wrappers.privacy_ledger import EPSILON

KIB = 1024
THREAD_IO = Path("/proc/thread-self/io")


class Store:
    """The open store. Use it from one thread.

    `damage` says what was found and done where the file was damaged, and is empty otherwise. `is_tight` is True while
    the reserve is in use, the disk being full. `written_bytes` is what was written to the flash so far, None where the
    kernel keeps no account.
    """

    reserve_bytes: ClassVar[int] = 2048 * KIB  # in the file, for when others have filled the disk
    log_bytes: ClassVar[int] = (
        4096 * KIB
    )  # of the -wal, allocated at the start; twice what it takes between checkpoints
    start_bytes: ClassVar[int] = 1024 * KIB  # in the lock file, given back where a start finds the disk full

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path, self._is_read_only = path, read_only
        self.damage, self.is_tight = "", False
        self.written_bytes: int | None = 0 if _count_written_bytes() is not None else None
        self._lock = None if read_only else store_lock.hold(path, "agent")
        try:
            self._open()
        except BaseException:
            self._unlock()
            raise

    def _open(self) -> None:
        if self._is_read_only:
            self._db = files.open_database(self.path, read_only=True)
            return
        with self._count_written():
            files.finish_renewal(self.path)
            try:
                self._open_or_renew()
            except StoreFullError:
                self.make_room()
                self._open_or_renew()
            if self._lock is not None and self.start_bytes:
                files.allocate(self._lock, self.start_bytes)

    def _open_or_renew(self) -> None:
        try:
            self._open_whole()
        except StoreDamagedError as error:
            self._renew(files.rescue(self.path, str(error)))

    def _open_whole(self) -> None:
        """Open a file that is as it was left."""
        self._db = files.open_database(self.path, log_bytes=self.log_bytes)
        try:
            if damage := rows.read(self._db).damage:
                raise StoreDamagedError("; ".join(damage))
            self._regain()
        except StoreError:
            self._db.close()
            raise

    def _renew(self, found: Found) -> None:
        self.damage = files.renew(self.path, found)
        self._db = files.open_database(self.path, log_bytes=self.log_bytes)
        self._regain()

    def renew(self, reason: str, stored: Stored) -> None:
        """Set the file aside, damaged while it was in use, and go on with a new one that holds this, which the agent
        knows better, and of the rest what can be read.

        Raises `StoreFullError` where there is no room for one; the damaged file stays then, and this may be called
        again.
        """
        with self._count_written():
            self._db.close()
            found = files.rescue(self.path, reason)
            blobs = {**found.stored.blobs, **stored.blobs}
            kept = Found(Stored(stored.baseline, blobs, stored.outbox), found.damage)
            try:
                self._renew(kept)
            except StoreFullError:
                self.make_room()
                self._renew(kept)

    def make_room(self) -> None:
        """Give back to the disk what was taken for a start."""
        if self._lock is not None:
            os.ftruncate(self._lock, 0)

    def commit(self, effects: Iterable[Durable]) -> None:
        """Make the durable effects true together, on disk, before this returns.

        Raises `StoreFullError` where the disk has no room even with the reserve, or cannot be written at present, and
        `StoreDamagedError` where the file is damaged; nothing of the effects is in the store then.
        """
        held = list(effects)
        with self._count_written():
            try:
                self._commit(held)
            except StoreFullError:
                if self.is_tight:
                    raise
                self._commit(held, with_reserve=True)
                self.is_tight = True

    def _commit(self, effects: Iterable[Durable], *, with_reserve: bool = False) -> None:
        try:
            with self._db:
                if with_reserve:
                    self._db.execute("DELETE FROM reserve")
                for effect in effects:
                    rows.apply(self._db, effect)
        except sqlite3.Error as error:
            raise classify_error(error)(
                f"{self.path}: cannot be written ({error}); check the disk's space and health"
            ) from None

    def regain(self) -> None:
        """Try to lay in a reserve that was used up; raises `StoreDamagedError`."""
        with self._count_written():
            self._regain()

    def _regain(self) -> None:
        """Lay in the reserve anew where it is gone and the disk has room for it."""
        self.is_tight = True
        try:
            if self._db.execute("SELECT count(*) FROM reserve").fetchone()[0] == 0:
                if files.free_bytes(self.path) < 2 * self.reserve_bytes:
                    return
                with self._db:
                    self._db.execute("INSERT INTO reserve VALUES (zeroblob(?))", (self.reserve_bytes,))
            self.is_tight = False
        except sqlite3.Error as error:
            if not issubclass(classify_error(error), StoreFullError):
                raise classify_error(error)(f"{self.path}: cannot be written ({error})") from None

    @contextmanager
    def _count_written(self) -> Iterator[None]:
        """Count what is written within."""
        before = _count_written_bytes()
        try:
            yield
        finally:
            after = _count_written_bytes()
            if before is not None and after is not None and self.written_bytes is not None:
                self.written_bytes += after - before

    def read(self) -> Stored:
        """Return everything the store holds."""
        found = rows.read(self._db)
        if found.damage and not self._is_read_only:
            raise StoreDamagedError(f"{self.path}: {found.damage[0]}")
        return found.stored

    def look(self) -> Found:
        """Return everything that can be read, and what is wrong with it."""
        return rows.read(self._db)

    def summarise(self, found: Found) -> dict[str, Any]:
        """Return, as JSON-able values, what `gateway-agent status` shows of what was found by `look`."""
        held = found.stored
        alarms = json.loads(held.blobs.get("alarms", b'{"active": []}'))["active"]
        return {
            "store": str(self.path),
            "store_bytes": self.path.stat().st_size,
            "baseline_windows": len(held.baseline),
            "outbox": {name: sum(map(len, item.payloads)) for name, item in held.outbox.items()},
            "waiting": {kind: {"items": n, "bytes": size} for kind, (n, size) in count_by_class(held.outbox).items()},
            "anomaly_active": any(alarm["kind"] == "anomaly" for alarm in alarms),
            "sensor_alarms": {one["cause"]: one["onset_ns"] for one in alarms if one["kind"] == "sensor"},
            "model": find_in_force(held.blobs),
            "privacy_epsilon": _read_epsilon(held),
            "flash_bytes_written": json.loads(held.blobs.get("flash", b"[0, 0]"))[1],
            "link": _read_link(held),
            "damage": list(found.damage),
            "set_aside": [str(file) for file in files.set_aside(self.path)],
        }

    def close(self) -> None:
        """Close the file and let others have it."""
        self._db.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            store_lock.release(self._lock)
            self._lock = None


def _read_link(held: Stored) -> dict[str, Any] | None:
    """Return how the link to the broker changed last since the latest start; None where that is not here."""
    link: dict[str, Any] = json.loads(held.blobs.get(LINK, b"{}"))
    is_of_this_start = str(link.pop("starts", "")).encode() == held.blobs.get(STARTS)
    return link if is_of_this_start else None


def _read_epsilon(held: Stored) -> float | Literal["unknown"] | None:
    """Return what was spent of this gateway's privacy, nothing where it keeps no account of that."""
    own = wire.decode(held.blobs[OWN], size_max=len(held.blobs[OWN]))[0] if OWN in held.blobs else {}
    spent = restore_ledger(held, own).get(EPSILON)
    return None if spent is None else float(spent) if np.isfinite(spent) else "unknown"


def _count_written_bytes() -> int | None:
    """Return how many bytes this thread has written so far, None where the kernel does not say."""
    try:
        text = THREAD_IO.read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("wchar")), None)
