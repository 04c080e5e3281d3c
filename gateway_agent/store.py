"""The agent's memory: one SQLite file in WAL mode that survives a power cut.

All durable effects of one step are one transaction. The file is private to its owner: it holds the gateway's baseline.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from config import wire
from gateway_agent.events import Durable, Item, Keep, Queue, Save, Settle
from gateway_agent.memory import Seen
from gateway_agent.state import Stored
from models.federated.algorithm import EPSILON

FIRST_SCHEMA, SCHEMA_VERSION = 1, 2
WINDOWS = "SELECT row, end_ns FROM baseline ORDER BY number"
WINDOWS_WITHOUT_TIMES = "SELECT row, NULL FROM baseline ORDER BY number"
PRIVATE_MASK = 0o077
PRIVATE_MODE = 0o600
CACHE_KIB = 128  # the store is read once, at the start; the default keeps 2 MiB of what was read then for good
SCHEMA = """
CREATE TABLE IF NOT EXISTS baseline (number INTEGER PRIMARY KEY, row BLOB NOT NULL, end_ns INTEGER);
CREATE TABLE IF NOT EXISTS blob (key TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    name TEXT PRIMARY KEY, topic TEXT NOT NULL, retain INTEGER NOT NULL, priority INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS payload (
    name TEXT NOT NULL REFERENCES outbox (name) ON DELETE CASCADE, number INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (name, number)
);
"""


class StoreError(OSError):
    """The store cannot be opened or written; the message names the file and what to do."""


class Store:
    """The open store. Use it from one thread."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = None if read_only else _locked(path)
        try:
            self._db = _open(path, read_only)
        except sqlite3.Error as error:
            self._unlock()
            raise StoreError(f"{path}: cannot be opened as the agent's store ({error})") from None

    def commit(self, effects: Iterable[Durable]) -> None:
        """Make the durable effects of one step true together, on disk, before this returns."""
        try:
            with self._db:
                for effect in effects:
                    self._apply(effect)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot be written ({error}); check the disk's space and health") from None

    def _apply(self, effect: Durable) -> None:
        match effect:
            case Keep(seen=seen):
                window = (seen.row.astype("<f4").tobytes(), seen.end_ns)
                self._db.execute("INSERT INTO baseline (row, end_ns) VALUES (?, ?)", window)
            case Save(key=key, body=body):
                self._db.execute("INSERT OR REPLACE INTO blob VALUES (?, ?)", (key, body))
            case Queue(name=name, item=item):
                self._db.execute(
                    "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?)",
                    (name, item.topic, item.retain, item.priority),
                )
                rows = [(name, number, body) for number, body in enumerate(item.payloads)]
                self._db.executemany("INSERT OR REPLACE INTO payload VALUES (?, ?, ?)", rows)
            case Settle(name=name):
                self._db.execute("DELETE FROM outbox WHERE name = ?", (name,))

    def read(self) -> Stored:
        """Return everything the store holds."""
        try:
            return self._read()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot be read ({error}); move it away to commission anew") from None

    def _read(self) -> Stored:
        # 0.2 kept no times, and a status is read without changing what it wrote.
        has_times = self._db.execute("PRAGMA user_version").fetchone()[0] > FIRST_SCHEMA
        windows = self._db.execute(WINDOWS if has_times else WINDOWS_WITHOUT_TIMES)
        payloads: dict[str, list[bytes]] = {}
        for name, body in self._db.execute("SELECT name, body FROM payload ORDER BY name, number"):
            payloads.setdefault(name, []).append(body)
        return Stored(
            baseline=tuple(Seen(np.frombuffer(row, dtype="<f4"), end_ns) for row, end_ns in windows),
            blobs=dict(self._db.execute("SELECT key, body FROM blob")),
            outbox={
                name: Item(topic, tuple(payloads.get(name, ())), bool(retain), priority)
                for name, topic, retain, priority in self._db.execute("SELECT * FROM outbox ORDER BY rowid")
            },
        )

    def summary(self) -> dict[str, Any]:
        """Return, as JSON-able values, what `gateway-agent status` shows."""
        held = self.read()
        alarms = json.loads(held.blobs.get("alarms", b'{"anomaly": {}, "sensors": {}}'))
        return {
            "store": str(self.path),
            "store_bytes": self.path.stat().st_size,
            "baseline_windows": len(held.baseline),
            "outbox": {name: sum(map(len, item.payloads)) for name, item in held.outbox.items()},
            "anomaly_active": bool(alarms["anomaly"].get("active")),
            "sensor_alarms": alarms["sensors"],
            "model": held.blobs.get("model"),
            "privacy_epsilon": _epsilon(held.blobs.get("own")),
        }

    def close(self) -> None:
        """Close the file and let others have it."""
        self._db.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _epsilon(own: bytes | None) -> float | None:
    """Return what was spent of this gateway's privacy, nothing where it keeps no account of that."""
    arrays = {} if own is None else wire.decode(own, size_max=len(own))[0]
    return float(arrays[EPSILON]) if EPSILON in arrays else None


def _locked(path: Path) -> int:
    """Return a lock that says this store has its agent; the kernel takes it back however the agent ends."""
    try:
        lock = os.open(path.with_name(path.name + ".lock"), os.O_WRONLY | os.O_CREAT, PRIVATE_MODE)
    except OSError as error:
        reason = f"{error.strerror}; check its folder"
        raise StoreError(f"{path}: cannot be opened as the agent's store ({reason})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StoreError(f"{path}: another agent runs on this store; stop it first") from None
    return lock


def _open(path: Path, read_only: bool) -> sqlite3.Connection:
    before = os.umask(PRIVATE_MASK)
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}", uri=True)
        found = db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FIRST_SCHEMA, SCHEMA_VERSION):
            raise sqlite3.DatabaseError(f"it has schema {found}, this agent knows {SCHEMA_VERSION}; update the agent")
        if not read_only:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            added = "ALTER TABLE baseline ADD COLUMN end_ns INTEGER;" if found == FIRST_SCHEMA else ""
            db.executescript(f"BEGIN;{added}{SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
    finally:
        os.umask(before)
    return db
