"""The rows of the agent's store: how an effect becomes rows, and how rows are read again, each one checked.

A database that opens may still hold rubbish: SQLite sees that its pages hang together, not that a byte in one of them
is the byte that was written. So every row carries a checksum of what stands in it. Whoever reads gets what is whole,
and is told of what is not.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from fedgate.gateway_agent.events import Dequeue, Durable, Enqueue, Item, Keep, Save
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.state import Stored

SCHEMA_VERSION = 6
Value = int | str | bytes | None
# Two tables without a row number of their own: one tree to write, and to be damaged, instead of two.
SCHEMA = """
CREATE TABLE IF NOT EXISTS baseline (
    number INTEGER PRIMARY KEY, row BLOB NOT NULL, end_ns INTEGER, checksum INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS blob (key TEXT PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    name TEXT PRIMARY KEY, topic TEXT NOT NULL, retain INTEGER NOT NULL, priority INTEGER NOT NULL,
    payloads INTEGER NOT NULL, t_ns INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS payload (
    name TEXT NOT NULL REFERENCES outbox (name) ON DELETE CASCADE, number INTEGER NOT NULL, body BLOB NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (name, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reserve (body BLOB NOT NULL);
"""


class Table(NamedTuple):
    """A table: its key in the order of its rows, its columns but the checksum, and of what type each of these is."""

    key: str
    columns: str
    kinds: tuple[Any, ...]


TABLES = {
    "baseline": Table("number", "row, end_ns", (bytes, int | None)),
    "blob": Table("key", "key, body", (str, bytes)),
    "outbox": Table("rowid", "name, topic, retain, priority, payloads, t_ns", (str, str, int, int, int, int)),
    "payload": Table("name, number", "name, number, body", (str, int, bytes)),
}


class Found(NamedTuple):
    """What a store holds, and what is wrong with it, a line each; nothing where all is well."""

    stored: Stored
    damage: tuple[str, ...]


def compute_checksum(values: tuple[Value, ...]) -> int:
    """Return the checksum of a row."""
    total = 0
    for value in values:
        body = value if isinstance(value, bytes) else repr(value).encode()
        total = zlib.crc32(body, zlib.crc32(b"%d:" % len(body), total))
    return total


def insert(db: sqlite3.Connection, table: str, values: tuple[Value, ...]) -> None:
    """Write a row, in place of one with the same key."""
    marks = ", ".join("?" * (len(values) + 1))
    statement = f"INSERT OR REPLACE INTO {table} ({TABLES[table].columns}, checksum) VALUES ({marks})"  # noqa: S608 - names of our own
    db.execute(statement, (*values, compute_checksum(values)))


def apply(db: sqlite3.Connection, effect: Durable) -> None:
    """Write what an effect says."""
    match effect:
        case Keep(seen=seen):
            insert(db, "baseline", (seen.row.astype("<f4").tobytes(), seen.end_ns))
        case Save(key=key, body=body):
            insert(db, "blob", (key, body))
        case Enqueue(name=name, item=item):
            db.execute("DELETE FROM outbox WHERE name = ?", (name,))  # with its messages, which may have been more
            count = len(item.payloads)
            insert(db, "outbox", (name, item.topic, int(item.retain), item.priority, count, item.t_ns))
            for number, body in enumerate(item.payloads):
                insert(db, "payload", (name, number, body))
        case Dequeue(name=name):
            db.execute("DELETE FROM outbox WHERE name = ?", (name,))


def read(db: sqlite3.Connection) -> Found:
    """Return everything that can be read whole."""
    damage: list[str] = []
    tables = {table: list(_read_rows(db, table, damage)) for table in TABLES}
    payloads: dict[str, dict[int, bytes]] = {}
    for name, number, body in tables["payload"]:
        payloads.setdefault(name, {})[number] = body
    outbox: dict[str, Item] = {}
    for name, topic, retain, priority, count, t_ns in tables["outbox"]:
        parts = payloads.get(name, {})
        if sorted(parts) != list(range(count)):
            damage.append(f"outbox: {name} lacks some of its {count} messages")
            continue
        outbox[name] = Item(topic, tuple(parts[number] for number in range(count)), bool(retain), priority, t_ns)
    stored = Stored(
        baseline=tuple(FeatureRow(np.frombuffer(row, dtype="<f4"), end_ns) for row, end_ns in tables["baseline"]),
        blobs=dict(tables["blob"]),
        outbox=outbox,
    )
    return Found(stored, tuple(damage))


def _read_rows(db: sqlite3.Connection, table: str, damage: list[str]) -> list[tuple[Any, ...]]:
    """Return the whole rows of a table in order: those before a page that cannot be read, and those behind it."""
    kinds = TABLES[table].kinds
    rows: dict[tuple[Value, ...], tuple[Any, ...]] = {}
    late: list[tuple[Any, ...]] = []
    for is_first in (True, False):
        broken: list[str] = []
        for key, row, total in _read_until_damage(db, table, is_first, broken):
            if key in rows:  # met in the middle
                break
            if not all(map(isinstance, row, kinds)) or compute_checksum(row) != total:
                damage.append(f"{table}: row {key} is not what was written")
            elif is_first:
                rows[key] = row
            else:
                late.append(row)
        damage += broken
        if not broken:
            break
    return [*rows.values(), *reversed(late)]


Row = tuple[tuple[Value, ...], tuple[Any, ...], Value]  # its key, what is in it, and its checksum


def _read_until_damage(db: sqlite3.Connection, table: str, is_first: bool, broken: list[str]) -> Iterator[Row]:
    """Yield the rows from one end of a table to the first page that cannot be read; why not is put into `broken`."""
    key: tuple[Value, ...] = ()
    try:
        for row in _select(db, table, is_first):
            key = row[0]
            yield row
    except (sqlite3.Error, OverflowError) as error:
        broken.append(f"{table}: {error}")
        # Python's module is a row ahead of what it hands over, and loses the last one before the page.
        with suppress(sqlite3.Error, OverflowError):
            yield from _select(db, table, is_first, key)


def _select(
    db: sqlite3.Connection, table: str, is_first: bool, behind: tuple[Value, ...] | None = None
) -> Iterator[Row]:
    """Yield the rows of a table from one end; with a key, or an empty one, the row behind it, or the first, alone."""
    key, columns, _ = TABLES[table]
    order = ", ".join(f"{part} {'ASC' if is_first else 'DESC'}" for part in key.split(", "))
    count = len(key.split(", "))
    side, marks = ">" if is_first else "<", ", ".join("?" * count)
    where = f"WHERE ({key}) {side} ({marks})" if behind else ""
    limit = "" if behind is None else "LIMIT 1"
    statement = f"SELECT {key}, {columns}, checksum FROM {table} {where} ORDER BY {order} {limit}"  # noqa: S608 - names of our own
    for row in db.execute(statement, behind or ()):
        yield row[:count], row[count:-1], row[-1]
