"""What the aggregator has on disk: the training at hand, and the registry of rounds, models, alarms and gateways.

SQLAlchemy, so that SQLite serves one machine and PostgreSQL several. All durable effects of one step are one
transaction.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Integer, Row, Select, create_engine, delete, event, func, insert, literal_column, select
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from fedgate.cloud_aggregator.access.device_sessions import DeviceSessions, restore_sessions
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.alarms.records import Alarms, restore_alarms_record
from fedgate.cloud_aggregator.alarms.register import KEPT
from fedgate.cloud_aggregator.events import (
    Answered,
    Dequeue,
    DropHeld,
    Durable,
    Enqueue,
    HoldUpdate,
    Ordered,
    Post,
    RecordAlarm,
    RecordCount,
    RecordDiscovery,
    RecordFleet,
    RecordGateway,
    RecordLoss,
    RecordModel,
    RecordRound,
    RecordScores,
    RecordService,
    SaveRollout,
    SaveTraining,
)
from fedgate.cloud_aggregator.storage import history_table, models_table, registry_table
from fedgate.cloud_aggregator.storage.tables import (
    ALARMS,
    COUNTS,
    DISCOVERED,
    GATEWAYS,
    HELD,
    META,
    ORDERS,
    POSTS,
    ROUNDS,
    SCHEMA_VERSION,
    SERVICE,
    TRAINING,
    put,
)
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.topics import ALL
from fedgate.config.runtime import store_lock

# Columns of an alarm that carry the same name in the message.
SAME_IN_ALARM = (
    *("cause", "kind", "severity", "text", "onset_ns", "score", "level"),
    *(
        "model_version",
        "model_digest",
        "clock",
        "boot_id",
        "rule",
        "feature",
        "sequence",
        "store_id",
        "weather",
        "power",
    ),
)


OF_ITS_RAISE = ("text", "level", "model_version", "model_digest", "rule", "feature", "weather", "power")
OF_ITS_PEAK = ("score", "severity", "received_ns")


class StoreError(OSError):
    """The database cannot be opened, read or written; the message names it and the cause."""


def locked(path: Path) -> int:
    """Return a lock that says this store has its aggregator; the kernel takes it back however that ends."""
    try:
        lock = store_lock.hold(path, "aggregator")
        os.utime(lock)  # see `held_since_ns`
        return lock
    except store_lock.InUseError as error:
        raise StoreError(str(error)) from None
    except OSError as error:
        reason = f"{error.strerror}; check its folder"
        raise StoreError(f"{path}: cannot be opened as the aggregator's store ({reason})") from None


def held_since_ns(path: Path) -> int | None:
    """Return when the process took this store that has it now, in ns of Unix time, also where that is not seen from
    here; None where nobody has it.
    """
    return None if store_lock.holder_of(path) is None else store_lock.lock_file(path).stat().st_mtime_ns


def coming(path: Path) -> Path:
    """Return the file beside a store in which `restore` has the whole one that is about to take its place."""
    return path.with_name(f".{path.name}.restored")


PRIVATE_MASK = 0o077
# The newest of each; of `DISCOVERED_KEPT` documents the oldest were taken back long since, or stay at the broker.
ROUNDS_KEPT, ORDERS_KEPT, DISCOVERED_KEPT = 10_000, 1_000, 100_000
CHECKPOINT_PAGES = 16_000  # 64 MiB: as large as the file beside the database becomes


class Store:
    """The open database, readable by its owner only. Use it from one thread."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        if coming(path).exists():
            raise StoreError(f"{path}: a restore was cut off here; give the same 'cloud-aggregator restore' again")
        if not create and not path.exists():
            raise StoreError(f"{path}: there is no store yet; the aggregator has not run with these settings")
        self.is_new, self.was_empty = not path.exists(), False  # was_empty: the file was there, and nothing in it
        self.models = models_table.Models(self._read)
        self._history = history_table.History()
        before = os.umask(PRIVATE_MASK)
        try:
            self._db: Connection = self._connect()
            self._check_schema(create)
        except SQLAlchemyError as error:
            raise StoreError(f"{path}: cannot be opened as the aggregator's store ({_cause(error)})") from None
        finally:
            os.umask(before)

    def _connect(self) -> Connection:
        """Return a connection to the file, which is made where there is none."""
        engine = create_engine(URL.create("sqlite", database=str(self.path)))
        event.listen(engine, "connect", set_up_sqlite)
        return engine.connect()

    def _check_schema(self, create: bool) -> None:
        with self._db.begin():
            found = int(self._db.exec_driver_sql("PRAGMA user_version").scalar_one())
            reason = ""
            if not 0 <= found <= SCHEMA_VERSION:
                reason = f"it has schema {found}, this aggregator knows {SCHEMA_VERSION}; update the aggregator"
            elif 0 < found < SCHEMA_VERSION:
                reason = f"fedgate 0.5 or before made it (schema {found}); move it away to begin a new training"
            if reason:
                raise StoreError(f"{self.path}: cannot be opened as the aggregator's store ({reason})")
            self.was_empty = found == 0 and not self.is_new
            if create and found == 0:
                META.create_all(self._db)
                self._db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def commit(self, effects: Iterable[Durable]) -> None:
        """Make the durable effects of one step, or of several, true together, on disk, before this returns."""
        given = list(effects)
        last = max((place for place, effect in enumerate(given) if isinstance(effect, SaveTraining)), default=-1)
        try:
            with self._db.begin():
                for place, effect in enumerate(given):
                    if place == last or not isinstance(effect, SaveTraining):
                        self._apply(effect)
        except (DataError, IntegrityError):
            raise  # of what is written, not of the disk
        except SQLAlchemyError as error:
            raise StoreError(f"{self.path}: cannot be written ({_cause(error)}); check the disk") from None

    def _apply(self, effect: Durable) -> None:
        match effect:
            case SaveTraining(body=body):
                put(self._db, TRAINING, {"id": 1}, {"body": body})
            case RecordRound():
                names = {"gateways": " ".join(effect.gateways), "empty": " ".join(effect.empty)}
                names["late"] = " ".join(f"{gateway}:{index}" for gateway, index in effect.late)
                values = {**vars(effect), **names}
                number = self._db.execute(insert(ROUNDS).values(**values).returning(ROUNDS.c.id)).scalar_one()
                self._db.execute(delete(ROUNDS).where(ROUNDS.c.id <= number - ROUNDS_KEPT))
            case HoldUpdate(gateway=gateway):
                self._db.execute(delete(HELD).where(HELD.c.gateway == gateway))
                self._db.execute(insert(HELD).values(**vars(effect)))
            case DropHeld():
                self._db.execute(delete(HELD))
            case RecordLoss() | RecordScores():
                self._history.apply(self._db, effect)
            case RecordModel() | SaveRollout():
                models_table.apply(self._db, effect)
            case RecordAlarm():
                self._alarm(effect)
            case RecordGateway(gateway=gateway, status=status):
                online = status.state == "online"
                last = {"online": online, "status": status.model_dump_json()}
                last |= {"seen_ns": effect.seen_ns, "lives": effect.lives}
                put(self._db, GATEWAYS, {"gateway": gateway}, last)
            case RecordService():
                put(self._db, SERVICE, {"id": 1}, vars(effect))
            case RecordFleet():
                self._fleet(effect)
            case Enqueue(post=post):
                self._db.execute(insert(POSTS).values(**vars(post)))
            case Dequeue(id=id):
                first = select(func.min(POSTS.c.number)).where(POSTS.c.id == id).scalar_subquery()
                self._db.execute(delete(POSTS).where(POSTS.c.number == first))
            case RecordDiscovery(topic=topic):
                if not self._db.execute(select(DISCOVERED).filter_by(topic=topic)).first():
                    self._db.execute(insert(DISCOVERED).values(topic=topic))
                    number = literal_column("rowid", Integer)
                    newest = self._db.execute(select(func.max(number)).select_from(DISCOVERED)).scalar_one()
                    self._db.execute(delete(DISCOVERED).where(number <= newest - DISCOVERED_KEPT))
            case RecordCount(name=name, value=value):
                put(self._db, COUNTS, {"name": name}, {"value": value})
            case Answered(number=number, text=text, problem=problem):
                put(self._db, ORDERS, {"number": number}, {"answer": text, "problem": problem})
                is_answered = ORDERS.c.answer.is_not(None) & (ORDERS.c.answer != "")
                self._db.execute(delete(ORDERS).where(is_answered, ORDERS.c.number <= number - ORDERS_KEPT))
            case _:
                registry_table.apply(self._db, effect)

    def _alarm(self, effect: RecordAlarm) -> None:
        alarm = effect.alarm
        values = {name: getattr(alarm, name) for name in SAME_IN_ALARM} | {"received_ns": effect.received_ns}
        values |= {f"{alarm.state}_ns": alarm.t_ns, "begun_ns": effect.begun_ns, "ended": effect.ended}
        key = {"id": alarm.id, "gateway": effect.gateway}
        columns = select(ALARMS.c.raised_ns, ALARMS.c.cleared_ns, ALARMS.c.ended)
        held = self._db.execute(columns.filter_by(**key)).first()
        is_its_own_end = held is not None and held.ended and alarm.state == "cleared" and not effect.ended
        if held is not None and getattr(held, f"{alarm.state}_ns") is not None and not is_its_own_end:
            return  # sent again, or retained by the broker: it was received when it was received
        if held is not None:  # what raised an alarm stays on record, whichever end of its story came first
            kept = OF_ITS_RAISE if alarm.state == "raised" else (*OF_ITS_PEAK, "ended")
            values = {name: values[name] for name in (*kept, f"{alarm.state}_ns")}
        put(self._db, ALARMS, key, values)
        self._history.prune_alarms(self._db, effect.gateway)

    def _fleet(self, effect: RecordFleet) -> None:
        alarm = effect.alarm
        values = {name: getattr(alarm, name) for name in (*SAME_IN_ALARM, "common")}
        values |= {f"{alarm.state}_ns": alarm.t_ns, "gateways": " ".join(alarm.gateways)}
        put(self._db, ALARMS, {"id": alarm.id, "gateway": ALL}, {**values, "received_ns": effect.decided_ns})

    def training(self) -> bytes | None:
        """Return the stored training, if any."""
        rows = self._read(select(TRAINING.c.body))
        return rows[0].body if rows else None

    def statuses(self) -> dict[str, Status]:
        """Return the last known status of every gateway."""
        rows = self._read(select(GATEWAYS.c.gateway, GATEWAYS.c.status))
        return {row.gateway: Status.model_validate_json(row.status).compact() for row in rows}

    def service(self) -> RecordService | None:
        """Return the last sign of the service; None where there was none."""
        rows = self._read(select(*(column for column in SERVICE.c if column.name != "id")))
        return RecordService(**rows[0]._asdict()) if rows else None

    def seen(self) -> dict[str, int]:
        """Return when every gateway was last heard live; 0: not yet."""
        return {row.gateway: row.seen_ns for row in self._read(select(GATEWAYS.c.gateway, GATEWAYS.c.seen_ns))}

    def sessions(self) -> dict[str, DeviceSessions]:
        """Return who speaks under the name of every gateway."""
        return restore_sessions((row.gateway, row.lives) for row in self._read(select(GATEWAYS)))

    def held(self) -> dict[str, HoldUpdate]:
        """Return the updates that came after their round, by gateway, in the order of arrival."""
        rows = self._read(select(HELD).order_by(HELD.c.number))
        return {row.gateway: HoldUpdate(row.gateway, row.run, row.round_index, row.digest, row.body) for row in rows}

    def alarms(self) -> Alarms:
        """Return what is stored of alarms and of whom they were told."""
        by_cause = func.row_number().over(
            partition_by=(ALARMS.c.gateway, ALARMS.c.cause),
            order_by=(ALARMS.c.received_ns.desc(), ALARMS.c.onset_ns.desc(), ALARMS.c.id),
        )
        latest = select(ALARMS, by_cause.label("place")).subquery()
        is_kept = (latest.c.place <= KEPT) | latest.c.cleared_ns.is_(None)
        waiting = select(POSTS).order_by(POSTS.c.number)
        rows = self._read(select(latest).where(is_kept).order_by(latest.c.received_ns, latest.c.onset_ns))
        return restore_alarms_record(
            alarms=[row._asdict() for row in rows],
            posts=[Post(row.id, row.body, row.gateway or "") for row in self._read(waiting)],
            discovered=[row.topic for row in self._read(select(DISCOVERED))],
            counts={row.name: row.value for row in self._read(select(COUNTS))},
        )

    def registry(self) -> Registry:
        """Return who was let in."""
        try:
            with self._db.begin():
                return registry_table.read(self._db)
        except SQLAlchemyError as error:
            raise StoreError(f"{self.path}: cannot be read ({_cause(error)})") from None

    def order(self, kind: str, body: dict[str, Any]) -> int:
        """Store an order for the service, which may run in another process, and return its number."""
        try:
            with self._db.begin():
                order = insert(ORDERS).values(kind=kind, body=json.dumps(body)).returning(ORDERS.c.number)
                return int(self._db.execute(order).scalar_one())
        except SQLAlchemyError as error:
            raise StoreError(f"{self.path}: cannot be written ({_cause(error)}); check the disk") from None

    def orders(self) -> list[Ordered]:
        """Return the orders that have no answer yet, oldest first."""
        waiting = select(ORDERS).where(ORDERS.c.answer.is_(None)).order_by(ORDERS.c.number)
        return [Ordered(row.number, row.kind, json.loads(row.body)) for row in self._read(waiting)]

    def half_answered(self) -> list[int]:
        """Return the orders that are done and whose answer waited for the broker, oldest first."""
        at_the_broker = select(ORDERS.c.number).where(ORDERS.c.answer == "").order_by(ORDERS.c.number)
        return [int(row.number) for row in self._read(at_the_broker)]

    def answer(self, number: int) -> tuple[str, str] | None:
        """Return what became of an order, and the problem where there was one; None while it waits."""
        rows = self._read(select(ORDERS).where(ORDERS.c.number == number, ORDERS.c.answer.is_not(None)))
        return (rows[0].answer, rows[0].problem) if rows and rows[0].answer else None

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
        self._db.engine.dispose()


def _cause(error: SQLAlchemyError) -> str:
    return str(error.orig if isinstance(error, DBAPIError) else error).splitlines()[0]


def set_up_sqlite(connection: Any, _record: Any) -> None:
    """Set how a new connection writes: every commit is on disk before it returns."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    # A training is written over and over: what is folded into the file seldom is written once where it were ten times.
    cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    cursor.close()
