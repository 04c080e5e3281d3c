"""What the aggregator has on disk: the training at hand, and the registry of rounds, models, alarms and gateways.

SQLAlchemy, so that SQLite serves one machine and PostgreSQL several. All durable effects of one step are one
transaction.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Select,
    String,
    Table,
    create_engine,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from cloud_aggregator.events import Durable, RecordAlarm, RecordGateway, RecordModel, RecordRound, SaveTraining
from config.messages import Manifest, Status

META = MetaData()
TRAINING = Table("training", META, Column("id", Integer, primary_key=True), Column("body", LargeBinary, nullable=False))
ROUNDS = Table(
    "rounds",
    META,
    Column("id", Integer, primary_key=True),
    Column("run", String, nullable=False),
    Column("round_index", Integer, nullable=False),
    Column("algorithm", String, nullable=False),
    Column("gateways", String, nullable=False),
    Column("refused", Integer, nullable=False),
    Column("closed_ns", BigInteger, nullable=False),
)
MODELS = Table(
    "models",
    META,
    Column("version", Integer, primary_key=True),
    Column("digest", String, nullable=False),
    Column("manifest", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
ALARMS = Table(
    "alarms",
    META,
    Column("id", String, primary_key=True),
    Column("gateway", String, primary_key=True),
    Column("cause", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("severity", String, nullable=False),
    Column("text", String, nullable=False),
    Column("onset_ns", BigInteger, nullable=False),
    Column("raised_ns", BigInteger),
    Column("cleared_ns", BigInteger),
    Column("score", Float),
    Column("level", Float),
    Column("model_version", Integer, nullable=False),
    Column("model_digest", String, nullable=False),
    Column("clock", String, nullable=False),
    Column("boot_id", String, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
)
GATEWAYS = Table(
    "gateways",
    META,
    Column("gateway", String, primary_key=True),
    Column("online", Boolean, nullable=False),
    Column("status", String, nullable=False),
    Column("seen_ns", BigInteger, nullable=False),
)

# Columns of an alarm that carry the same name in the message.
SAME_IN_ALARM = (
    *("cause", "kind", "severity", "text", "onset_ns", "score", "level"),
    *("model_version", "model_digest", "clock", "boot_id"),
)


OF_ITS_RAISE = ("text", "level", "model_version", "model_digest")
OF_ITS_PEAK = ("score", "severity", "received_ns")


class StoreError(OSError):
    """The database cannot be opened, read or written; the message names it and the cause."""


SCHEMA_VERSION = 1
PRIVATE_MASK = 0o077


class Store:
    """The open database, readable by its owner only. Use it from one thread."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        if not create and not path.exists():
            raise StoreError(f"{path}: there is no store yet; the aggregator has not run with these settings")
        self._engine: Engine = create_engine(URL.create("sqlite", database=str(path)))
        event.listen(self._engine, "connect", _set_up_sqlite)
        before = os.umask(PRIVATE_MASK)
        try:
            self._db: Connection = self._engine.connect()
            self._check_schema(create)
        except SQLAlchemyError as error:
            raise StoreError(f"{path}: cannot be opened as the aggregator's store ({_cause(error)})") from None
        finally:
            os.umask(before)

    def _check_schema(self, create: bool) -> None:
        with self._db.begin():
            found = self._db.exec_driver_sql("PRAGMA user_version").scalar()
            if found not in (0, SCHEMA_VERSION):
                reason = f"it has schema {found}, this aggregator knows {SCHEMA_VERSION}; update the aggregator"
                raise StoreError(f"{self.path}: cannot be opened as the aggregator's store ({reason})")
            if create:
                META.create_all(self._db)
                self._db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def commit(self, effects: Iterable[Durable]) -> None:
        """Make the durable effects of one step true together, on disk, before this returns."""
        try:
            with self._db.begin():
                for effect in effects:
                    self._apply(effect)
        except SQLAlchemyError as error:
            raise StoreError(f"{self.path}: cannot be written ({_cause(error)}); check the disk") from None

    def _apply(self, effect: Durable) -> None:
        match effect:
            case SaveTraining(body=body):
                self._put(TRAINING, {"id": 1}, {"body": body})
            case RecordRound():
                values = {**vars(effect), "gateways": " ".join(effect.gateways)}
                self._db.execute(insert(ROUNDS).values(**values))
            case RecordModel(manifest=manifest, body=body):
                rest = {"digest": manifest.model.digest, "manifest": manifest.model_dump_json(), "body": body}
                self._put(MODELS, {"version": manifest.version}, rest)
            case RecordAlarm():
                self._alarm(effect)
            case RecordGateway(gateway=gateway, status=status, seen_ns=seen_ns):
                online = status.state == "online"
                last = {"online": online, "status": status.model_dump_json(), "seen_ns": seen_ns}
                self._put(GATEWAYS, {"gateway": gateway}, last)

    def _alarm(self, effect: RecordAlarm) -> None:
        alarm = effect.alarm
        values = {name: getattr(alarm, name) for name in SAME_IN_ALARM} | {"received_ns": effect.received_ns}
        values[f"{alarm.state}_ns"] = alarm.t_ns
        key = {"id": alarm.id, "gateway": effect.gateway}
        held = self._db.execute(select(ALARMS.c.raised_ns, ALARMS.c.cleared_ns).filter_by(**key)).first()
        if held is not None and getattr(held, f"{alarm.state}_ns") is not None:
            return  # sent again, or retained by the broker: it was received when it was received
        if held is not None:  # what raised an alarm stays on record, whichever end of its story came first
            kept = OF_ITS_RAISE if alarm.state == "raised" else OF_ITS_PEAK
            values = {name: values[name] for name in (*kept, f"{alarm.state}_ns")}
        self._put(ALARMS, key, values)

    def _put(self, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
        changed = self._db.execute(update(table).filter_by(**key).values(**values))
        if changed.rowcount == 0:
            self._db.execute(insert(table).values(**key, **values))

    def training(self) -> bytes | None:
        """Return the stored training, if any."""
        rows = self._read(select(TRAINING.c.body))
        return rows[0].body if rows else None

    def latest_model(self) -> tuple[Manifest, bytes] | None:
        """Return the newest released model, if any."""
        rows = self._read(select(MODELS).order_by(MODELS.c.version.desc()).limit(1))
        return (Manifest.model_validate_json(rows[0].manifest), rows[0].body) if rows else None

    def statuses(self) -> dict[str, Status]:
        """Return the last known status of every gateway."""
        rows = self._read(select(GATEWAYS.c.gateway, GATEWAYS.c.status))
        return {row.gateway: Status.model_validate_json(row.status) for row in rows}

    def rows(self, name: str, *columns: str) -> list[dict[str, Any]]:
        """Return the named columns (all where none are named) of a table, in the order of its key."""
        table = META.tables[name]
        chosen = [table.c[column] for column in columns] or list(table.c)
        return [row._asdict() for row in self._read(select(*chosen).order_by(*table.primary_key))]

    def _read(self, statement: Select[Any]) -> Sequence[Row[Any]]:
        try:
            with self._db.begin():
                return self._db.execute(statement).all()
        except SQLAlchemyError as error:
            raise StoreError(f"{self.path}: cannot be read ({_cause(error)})") from None

    def close(self) -> None:
        """Close the database."""
        self._db.close()
        self._engine.dispose()


def _cause(error: SQLAlchemyError) -> str:
    return str(error.orig if isinstance(error, DBAPIError) else error).splitlines()[0]


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()
