"""What the aggregator has on disk: the training at hand, and the registry of rounds, models, alarms and gateways.

SQLAlchemy, so that SQLite serves one machine and PostgreSQL several. All durable effects of one step are one
transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, case, delete, func, insert, inspect, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fedgate.cloud_aggregator.access.device_sessions import DeviceSessions, restore_sessions
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.alarms.records import REQUESTS_KEPT, Alarms, restore_alarms_record
from fedgate.cloud_aggregator.alarms.register import KEPT, ROW
from fedgate.cloud_aggregator.events import (
    ACTION,
    ROUNDS_CLOSED,
    ROUNDS_GIVEN_UP,
    ROUNDS_OPEN_MS,
    UPDATES_ADMITTED,
    UPDATES_BYTES,
    UPDATES_REFUSED,
    AlarmEvent,
    Answered,
    Dequeue,
    DropHeld,
    Durable,
    Enqueue,
    HoldUpdate,
    Ordered,
    Post,
    RecordAction,
    RecordAlarm,
    RecordCount,
    RecordDenied,
    RecordDiscovery,
    RecordEvidence,
    RecordFetch,
    RecordFetched,
    RecordFleet,
    RecordGateway,
    RecordLoss,
    RecordModel,
    RecordPresence,
    RecordRound,
    RecordScores,
    RecordService,
    RecordSummary,
    SaveRollout,
    SaveTraining,
)
from fedgate.cloud_aggregator.samples.fetches import Fetches, restore_fetches
from fedgate.cloud_aggregator.storage import (
    history_table,
    models_table,
    months,
    registry_table,
    samples_table,
    training_table,
)
from fedgate.cloud_aggregator.storage.alarm_summaries import (
    AlarmsMark,
    Marks,
    select_marks,
    select_oldest,
    select_summaries,
)
from fedgate.cloud_aggregator.storage.database import CANNOT_OPEN, Database, name_errors
from fedgate.cloud_aggregator.storage.database import StoreError as StoreError
from fedgate.cloud_aggregator.storage.months import make_event
from fedgate.cloud_aggregator.storage.sqlite import SqliteDatabase
from fedgate.cloud_aggregator.storage.tables import (
    ALARM_EVENTS,
    ALARMS,
    BACKUP,
    COUNTS,
    DISCOVERED,
    EVIDENCE,
    GATEWAYS,
    HELD,
    META,
    ORDERS,
    POSTS,
    ROUNDS,
    SAMPLES,
    SCHEMA_VERSION,
    SERVICE,
    put,
)
from fedgate.config.protocol import wire
from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import CONTROL, ActionAnswer, Status
from fedgate.config.protocol.topics import ALL
from fedgate.config.protocol.transfer import digest_of
from fedgate.config.runtime.sqlite import refuse_schema
from fedgate.config.settings.database import DatabaseUrl

OF_ITS_RAISE = ("text", "level", "model_version", "model_digest", "rule", "feature", "weather", "power")
OF_ITS_PEAK = ("score", "severity", "received_ns")
FOUND_MAX = 11  # alarms that a name may mean: enough to see that it means several
# The newest of each; of `DISCOVERED_KEPT` documents the oldest were taken back long since, or stay at the broker.
ROUNDS_KEPT, ORDERS_KEPT, DISCOVERED_KEPT = 10_000, REQUESTS_KEPT, 100_000


def choose_database(place: Path | DatabaseUrl | Database) -> Database:
    """Return the database in which a store is or will be; nothing is opened."""
    if isinstance(place, DatabaseUrl):
        from fedgate.cloud_aggregator.storage.postgresql import PostgresqlDatabase

        return PostgresqlDatabase(place)
    return SqliteDatabase(place) if isinstance(place, Path) else place


class BackupNote(NamedTuple):
    """When a backup was made, where it was written, and whether it has the keys."""

    made_ns: int
    file: str
    has_keys: bool


class AlarmRow(NamedTuple):
    """An alarm that stands; its onset as far as it can be believed."""

    gateway: str
    id: str
    cause: str
    kind: str
    onset_ns: int


class Store:
    """The open database. Use it from one thread."""

    def __init__(
        self,
        place: Path | DatabaseUrl | Database,
        *,
        create: bool = True,
        program: str = "",
        is_read_only: bool = False,
    ) -> None:
        """Open the store, a new one where there is none and `create` says so; with the name of a `program` it is taken
        for this process alone, until `close` or the end of the process. Where it `is_read_only` nothing can be written
        with it, and who opens it needs no right to.
        """
        create = create and not is_read_only
        self.database = choose_database(place)
        self.models = models_table.Models(self._read)
        self.months = months.Months(self._read)
        self._history, self._training = history_table.History(), training_table.TrainingRows()
        with ExitStack() as undo:
            if program:
                self.database.hold(program)
                undo.callback(self.database.release)
            opened = self.database.connect_to_read() if is_read_only else self.database.connect(create=create)
            self._db = undo.enter_context(closing(opened))
            with name_errors(self.database, CANNOT_OPEN):
                self._check_schema(create)
            undo.pop_all()

    @property
    def schema_version(self) -> int:
        """The schema, which is that of this version: no other is opened."""
        return SCHEMA_VERSION

    @property
    def name(self) -> str:
        """The path or the URL, as it is shown."""
        return self.database.name

    def _check_schema(self, create: bool) -> None:
        with self._db.begin():
            found, reason = self.database.read_schema_version(self._db), ""
            if found not in (0, SCHEMA_VERSION):
                reason = refuse_schema(found, SCHEMA_VERSION, "aggregator", "move it away to begin a new training")
            elif found == 0 and not create:
                reason = "there is no store yet; the aggregator has not run with these settings"
            elif found == 0 and set(inspect(self._db).get_table_names()) & META.tables.keys():
                reason = "it is the database of another program; name another"
            if reason:
                raise StoreError(f"{self.name}: {CANNOT_OPEN} ({reason})")
            self.is_new = found == 0 and not self.database.was_there
            self.was_empty = found == 0 and self.database.was_there  # and nothing was in it
            if found == 0:
                META.create_all(self._db)
                self.database.write_schema_version(self._db, SCHEMA_VERSION)

    def read_change(self) -> object:
        """Return what is another value once others have written something since it was asked for."""
        with self._open_transaction("read"):
            return self.database.read_change(self._db)

    def is_replaced(self) -> bool:
        """Tell whether a store that was opened to be read is to be opened anew."""
        return self.database.is_replaced(self._db)

    @contextmanager
    def _open_transaction(self, what: str) -> Iterator[None]:
        """Make what is done within true together, on disk, or nothing of it.

        A connection that is lost is not made again: what it held, such as the lock, is lost with it.
        """
        try:
            with self._db.begin():
                yield
        except SQLAlchemyError as error:
            if self.database.is_of_values(error):
                raise  # nobody's fault but the sender's
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                self._db.close()
            raise StoreError(f"{self.name}: cannot be {what} ({self.database.cause_of(error)})") from None

    def commit(self, effects: Iterable[Durable]) -> None:
        """Make the durable effects of one step, or of several, true together, on disk, before this returns."""
        given = list(effects)
        last = max((place for place, effect in enumerate(given) if isinstance(effect, SaveTraining)), default=-1)
        emptied = max((place for place, effect in enumerate(given) if effect == DropHeld()), default=-1)
        try:
            with self._open_transaction("written"):
                for place, effect in enumerate(given):
                    # What a later effect of the same commit undoes is not written: updates are a megabyte each.
                    is_undone = isinstance(effect, HoldUpdate) and place < emptied
                    if place == last or not (isinstance(effect, SaveTraining) or is_undone):
                        self._apply(effect)
        except BaseException:
            self._training = training_table.TrainingRows()  # what this one has written is not there
            raise

    def _apply(self, effect: Durable) -> None:
        match effect:
            case SaveTraining():
                self._training.save(self._db, effect)
            case RecordRound():
                self._record_round(effect)
            case HoldUpdate(gateway=gateway):
                self._db.execute(delete(HELD).where(HELD.c.gateway == gateway))
                self._db.execute(insert(HELD), vars(effect))
            case DropHeld(round_index=index):
                held = delete(HELD)
                self._db.execute(held if index is None else held.where(HELD.c.round_index == index))
            case RecordLoss() | RecordScores() | RecordSummary() | RecordEvidence() | AlarmEvent():
                self._history.apply(self._db, effect)
            case RecordPresence() | RecordDenied():
                self._history.apply(self._db, effect)
            case RecordFetch() | RecordFetched():
                samples_table.apply(self._db, effect)
            case RecordModel() | SaveRollout():
                models_table.apply(self._db, effect)
            case RecordAlarm():
                self._alarm(effect)
            case RecordGateway(gateway=gateway, status=status):
                online = status.state == "online"
                last = {"online": online, "status": status.model_dump_json()}
                last |= {"seen_ns": effect.seen_ns, "sessions": effect.sessions}
                put(self._db, GATEWAYS, {"gateway": gateway}, last)
            case RecordService():
                put(self._db, SERVICE, {"id": 1}, vars(effect))
            case RecordFleet():
                self._put_fleet(effect)
            case Enqueue(name=name, item=post):  # in its place in the queue, where one of this name waits
                if self._db.execute(update(POSTS).where(POSTS.c.id == name).values(**vars(post))).rowcount == 0:
                    self._db.execute(insert(POSTS).values(**vars(post)))
            case Dequeue(name=name):
                self._db.execute(delete(POSTS).where(POSTS.c.id == name))
            case RecordDiscovery(topic=topic):
                self._note_discovery(topic)
            case RecordCount(name=name, value=value):
                put(self._db, COUNTS, {"name": name}, {"value": value})
            case RecordAction(user=user, body=body):
                self._db.execute(insert(ORDERS).values(kind=f"{ACTION}{user}", body=json.dumps(body)))
            case Answered():
                self._answer(effect)
            case _:
                registry_table.apply(self._db, effect)

    def _record_round(self, effect: RecordRound) -> None:
        names = {"gateways": " ".join(effect.gateways), "empty": " ".join(effect.empty)}
        names |= {"figures": json.dumps(dict(effect.figures)), "refusals": json.dumps(effect.refusals)}
        names["late"] = " ".join(f"{gateway}:{index}" for gateway, index in effect.late)
        values = {name: value for name, value in vars(effect).items() if name in ROUNDS.c} | names
        number = self._db.execute(select(func.coalesce(func.max(ROUNDS.c.id), 0))).scalar_one() + 1
        self._db.execute(insert(ROUNDS).values(id=number, **values))
        self._db.execute(delete(ROUNDS).where(ROUNDS.c.id <= number - ROUNDS_KEPT))
        self._count_round(effect)

    def _count_round(self, effect: RecordRound) -> None:
        """Add a round to what is counted of all, also of those whose rows went since."""
        is_closed = bool(effect.gateways or effect.late)
        more = {
            ROUNDS_CLOSED: int(is_closed),
            ROUNDS_GIVEN_UP: int(not is_closed),
            UPDATES_ADMITTED: len(effect.gateways) + len(effect.late),
            UPDATES_REFUSED: effect.refused,
            UPDATES_BYTES: effect.bytes_received,
            ROUNDS_OPEN_MS: effect.open_ms,
        }
        held = {row.name: row.value for row in self._db.execute(select(COUNTS).where(COUNTS.c.name.in_(more)))}
        for name, value in more.items():
            put(self._db, COUNTS, {"name": name}, {"value": held.get(name, 0) + value})

    def _answer(self, effect: Answered) -> None:
        """Store an answer, and remove the oldest orders that have one: of commands together, and of each other system
        that acts on alarms.
        """
        put(self._db, ORDERS, {"number": effect.number}, {"answer": effect.text, "problem": effect.problem})
        kind = self._db.execute(select(ORDERS.c.kind).filter_by(number=effect.number)).scalar_one()
        is_of_kind = ORDERS.c.kind == kind if kind.startswith(ACTION) else ORDERS.c.kind.not_like(f"{ACTION}%")
        is_answered = ORDERS.c.answer.is_not(None) & (ORDERS.c.answer != "")
        newest_first = select(ORDERS.c.number).where(is_of_kind).order_by(ORDERS.c.number.desc())
        newest_to_go = self._db.execute(newest_first.offset(ORDERS_KEPT).limit(1)).scalar()
        if newest_to_go is not None:
            self._db.execute(delete(ORDERS).where(is_of_kind, is_answered, ORDERS.c.number <= newest_to_go))

    def _note_discovery(self, topic: str) -> None:
        if not self._db.execute(select(DISCOVERED).filter_by(topic=topic)).first():
            added = insert(DISCOVERED).values(topic=topic).returning(DISCOVERED.c.number)
            newest = self._db.execute(added).scalar_one()
            self._db.execute(delete(DISCOVERED).where(DISCOVERED.c.number <= newest - DISCOVERED_KEPT))

    def _alarm(self, effect: RecordAlarm) -> None:
        alarm = effect.alarm
        values = {name: getattr(alarm, name) for name in ROW} | {"received_ns": effect.received_ns}
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

    def _put_fleet(self, effect: RecordFleet) -> None:
        alarm = effect.alarm
        values = {name: getattr(alarm, name) for name in (*ROW, "common")}
        values |= {f"{alarm.state}_ns": alarm.t_ns, "gateways": " ".join(alarm.gateways)}
        put(self._db, ALARMS, {"id": alarm.id, "gateway": ALL}, {**values, "received_ns": effect.decided_ns})

    def read_training(self, *, only_numbers: bool = False) -> SaveTraining | None:
        """Return the stored training, if any; where that is wanted without its large arrays."""
        with self._open_transaction("read"), self._name_damage():
            return training_table.read(self._db, only_numbers=only_numbers)

    def read_training_meta(self) -> dict[str, Any] | None:
        """Return what is stored of the round at hand, without its arrays."""
        with self._open_transaction("read"):
            return training_table.read_meta(self._db)

    @contextmanager
    def _name_damage(self) -> Iterator[None]:
        """Name a damaged row: the training must not go on as if there were none, for what it holds was acknowledged."""
        try:
            yield
        except wire.WireError as error:
            reason = (
                f"the training in it is damaged: {error}; put back a backup: cloud-aggregator restore FILE --replace"
            )
            raise StoreError(f"{self.name}: cannot be read ({reason})") from None

    def read_statuses(self) -> dict[str, Status]:
        """Return the last known status of every gateway."""
        rows = self._read(select(GATEWAYS.c.gateway, GATEWAYS.c.status))
        return {row.gateway: Status.model_validate_json(row.status).compact() for row in rows}

    def service(self) -> RecordService | None:
        """Return the last sign of the service; None where there was none."""
        rows = self._read(select(*(column for column in SERVICE.c if column.name != "id")))
        return RecordService(**rows[0]._asdict()) if rows else None

    def read_seen(self) -> dict[str, int]:
        """Return when every gateway was last received live; 0: not yet."""
        return {row.gateway: row.seen_ns for row in self._read(select(GATEWAYS.c.gateway, GATEWAYS.c.seen_ns))}

    def read_sessions(self) -> dict[str, DeviceSessions]:
        """Return who speaks under the name of every gateway."""
        return restore_sessions((row.gateway, row.sessions) for row in self._read(select(GATEWAYS)))

    def read_held(self) -> dict[str, HoldUpdate]:
        """Return the stored updates by gateway, in the order of arrival, each one whole: by the digest of its transfer,
        or, where it is stored as it was admitted, by its own.
        """
        rows = self._read(select(HELD).order_by(HELD.c.number))
        with self._name_damage():
            for row in rows:
                wire.decode(row.body, size_max=len(row.body), is_verified=digest_of(row.body) == row.digest)
        return {row.gateway: HoldUpdate(row.gateway, row.run, row.round_index, row.digest, row.body) for row in rows}

    def read_alarms(self) -> Alarms:
        """Return what is stored of alarms and of who was notified of them."""
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
            posts=[Post(row.id, row.body, row.gateway or "", row.channel) for row in self._read(waiting)],
            discovered=[row.topic for row in self._read(select(DISCOVERED))],
            counts={row.name: row.value for row in self._read(select(COUNTS))},
            events=self.read_alarm_events(),
            actions=self._read_actions(),
        )

    def _read_actions(self) -> list[tuple[str, str, ActionAnswer | None]]:
        """Return the actions of other systems: user, request and answer, None where it has none yet."""
        rows = self._read(select(ORDERS).where(ORDERS.c.kind.like(f"{ACTION}%")).order_by(ORDERS.c.number))
        found = list[tuple[str, str, ActionAnswer | None]]()
        for row in rows:
            request = str(json.loads(row.body)["request"])
            known = {"answer": row.answer, "problem": row.problem} if row.answer else None
            answer = None if known is None else ActionAnswer(request=request, **known)
            found.append((row.kind.removeprefix(ACTION), request, answer))
        return found

    def read_alarm_events(self, **of: str) -> list[AlarmEvent]:
        """Return what was done about alarms, in its order; with values of columns those that have them."""
        rows = self._read(select(ALARM_EVENTS).filter_by(**of).order_by(ALARM_EVENTS.c.number))
        return [make_event(row) for row in rows]

    def read_events_after(self, number: int, most: int | None = None) -> tuple[int, list[AlarmEvent]]:
        """Return what was done about alarms behind an event with this number, so many at most, and the number of the
        last of them.
        """
        behind = select(ALARM_EVENTS).where(ALARM_EVENTS.c.number > number).order_by(ALARM_EVENTS.c.number)
        rows = self._read(behind.limit(most))
        return rows[-1].number if rows else number, [make_event(row) for row in rows]

    def read_alarm_marks(self) -> Marks:
        """Return what is another value once an alarm was stored, changed or removed, by the share that it is of."""
        return {row[0]: AlarmsMark(*map(int, row[1:])) for row in self._read(select_marks())}

    def find_oldest(self, most: int) -> int:
        """Return when the oldest of so many newest alarms was received; 0 where there are no more."""
        oldest = self._read(select_oldest(most))
        return int(oldest[0].received_ns) if oldest else 0

    def read_summaries(self, oldest_ns: int, shares: Collection[int] | None = None) -> Iterator[Sequence[Row[Any]]]:
        """Yield, some at a time, what a list shows of the alarms that stand and of those that were received at a time
        or later; where shares are named of those in them.
        """
        with self._open_transaction("read"):
            yield from self._db.execute(select_summaries(oldest_ns, shares)).partitions()

    def read_alarm(self, gateway: str, alarm: str) -> dict[str, Any] | None:
        """Return the row of an alarm; None where there is none."""
        rows = self._read(select(ALARMS).filter_by(gateway=gateway, id=alarm))
        return rows[0]._asdict() if rows else None

    def read_active_alarms(self) -> list[AlarmRow]:
        """Return what stands: raised and not over."""
        stands = ALARMS.c.raised_ns.is_not(None) & ALARMS.c.cleared_ns.is_(None)
        columns = (ALARMS.c.gateway, ALARMS.c.id, ALARMS.c.cause, ALARMS.c.kind, ALARMS.c.onset_ns, ALARMS.c.begun_ns)
        return [
            AlarmRow(row.gateway, row.id, row.cause, row.kind, row.onset_ns if row.begun_ns is None else row.begun_ns)
            for row in self._read(select(*columns).where(stands))
        ]

    def read_active_events(self) -> list[AlarmEvent]:
        """Return what was done about alarms that stand, about causes and maintenance windows, in its order."""
        is_it = (ALARMS.c.gateway == ALARM_EVENTS.c.gateway) & (ALARMS.c.id == ALARM_EVENTS.c.alarm)
        stands = select(ALARMS.c.id).where(is_it, ALARMS.c.cleared_ns.is_(None)).exists()
        rows = self._read(
            select(ALARM_EVENTS).where((ALARM_EVENTS.c.alarm == "") | stands).order_by(ALARM_EVENTS.c.number)
        )
        return [make_event(row) for row in rows]

    def count_alarms(self, *since_ns: int) -> dict[tuple[str, str], tuple[int, ...]]:
        """Return how many alarms were received since each of these times, by gateway and kind."""
        counts: list[ColumnElement[Any]] = [
            func.sum(case((ALARMS.c.received_ns >= one, 1), else_=0)) for one in since_ns
        ]
        of_kind: list[ColumnElement[Any]] = [ALARMS.c.gateway, ALARMS.c.kind]
        chosen: Select[Any] = select(*of_kind, *counts).where(ALARMS.c.received_ns >= min(since_ns)).group_by(*of_kind)
        rows = [tuple(row) for row in self._read(chosen)]
        return {(row[0], row[1]): tuple(map(int, row[2:])) for row in rows}

    def find_alarms(self, name: str) -> tuple[str, ...]:
        """Return the alarms, as gateway/id, that a name means: the one that it is the name or the id of, else those
        with whose name or id it begins, some at most.
        """
        if not name or CONTROL.search(name) or any("\ud800" <= letter <= "\udfff" for letter in name):
            return ()  # which no database takes
        gateway, _, alarm = name.partition("/")
        is_of_it, name_of, last = ALARMS.c.gateway == gateway, ALARMS.c.id, "\U0010ffff"
        chosen = [is_of_it & (name_of == alarm), name_of == name]
        chosen += [is_of_it & (name_of >= alarm) & (name_of < alarm + last)] if alarm else []
        chosen += [(name_of >= name) & (name_of < name + last)]
        for condition in chosen:
            columns = select(ALARMS.c.gateway, ALARMS.c.id).where(condition).order_by(ALARMS.c.id, ALARMS.c.gateway)
            if found := self._read(columns.limit(FOUND_MAX)):
                return tuple(f"{row.gateway}/{row.id}" for row in found)
        return ()

    def read_registry(self) -> Registry:
        """Return who was let in."""
        with self._open_transaction("read"):
            return registry_table.read(self._db)

    def note_backup(self, note: BackupNote) -> None:
        """Remember the last backup of this store, or the one that it comes from."""
        with self._open_transaction("written"):
            put(self._db, BACKUP, {"id": 1}, note._asdict())

    def read_backup_note(self) -> BackupNote | None:
        """Return the last backup of this store; None where there was none."""
        rows = self.read_rows("backup", *BackupNote._fields)
        return BackupNote(**rows[0]) if rows else None

    def order(self, kind: str, body: dict[str, Any]) -> int:
        """Store an order for the service, which may run in another process, and return its number."""
        with self._open_transaction("written"):
            order = insert(ORDERS).values(kind=kind, body=json.dumps(body)).returning(ORDERS.c.number)
            return int(self._db.execute(order).scalar_one())

    def read_evidence(self, gateway: str, alarm: str) -> AlarmEvidence | None:
        """Return what an alarm of a gateway rests on; None where nothing came of it."""
        return next((evidence for _, evidence in self.read_evidence_of({(gateway, alarm)})), None)

    def read_evidence_of(self, alarms: Collection[tuple[str, str]]) -> Iterator[tuple[str, AlarmEvidence]]:
        """Yield the evidence that is here of alarms, each by its gateway and id, with the gateway."""
        gateways, names = {gateway for gateway, _ in alarms}, {name for _, name in alarms}
        columns = (EVIDENCE.c.gateway, EVIDENCE.c.alarm, EVIDENCE.c.body)
        wanted = select(*columns).where(EVIDENCE.c.gateway.in_(gateways), EVIDENCE.c.alarm.in_(names))
        for row in self._read(wanted) if alarms else ():
            if (row.gateway, row.alarm) in alarms:
                yield row.gateway, AlarmEvidence.model_validate_json(row.body)

    def read_fetches(self) -> Fetches:
        """Return which samples are asked for, and which are here."""
        rows = self._read(select(*(column for column in SAMPLES.c if column.name != "body")).order_by(SAMPLES.c.number))
        return restore_fetches(
            [(row.gateway, row.alarm, row.requested_ns) for row in rows if row.received_ns is None],
            [(row.gateway, row.alarm, row.requested_ns, row.digest) for row in rows if row.digest],
        )

    def read_samples(self, gateway: str, alarm: str) -> bytes | None:
        """Return the samples around an alarm of a gateway, as `fedgate.config.protocol.samples` has them; None where
        they are not here.
        """
        rows = self._read(select(SAMPLES.c.body).filter_by(gateway=gateway, alarm=alarm))
        return rows[0].body if rows else None

    def read_orders(self, most: int | None = None) -> list[Ordered]:
        """Return the orders that have no answer yet, oldest first, so many at most."""
        waiting = select(ORDERS).where(ORDERS.c.answer.is_(None)).order_by(ORDERS.c.number).limit(most)
        return [Ordered(row.number, row.kind, json.loads(row.body)) for row in self._read(waiting)]

    def read_half_answered(self) -> list[int]:
        """Return the orders that are done and whose answer waited for the broker, oldest first."""
        at_the_broker = select(ORDERS.c.number).where(ORDERS.c.answer == "").order_by(ORDERS.c.number)
        return [int(row.number) for row in self._read(at_the_broker)]

    def answer(self, number: int) -> tuple[str, str] | None:
        """Return what became of an order, and the problem where there was one; None while it waits."""
        rows = self._read(select(ORDERS).where(ORDERS.c.number == number, ORDERS.c.answer.is_not(None)))
        return (rows[0].answer, rows[0].problem) if rows and rows[0].answer else None

    def read_rows(self, name: str, *columns: str) -> list[dict[str, Any]]:
        """Return the named columns (all where none are named) of a table, in the order of its key."""
        table = META.tables[name]
        chosen = [table.c[column] for column in columns] or list(table.c)
        names = [column.name for column in chosen]
        rows = self._read(select(*chosen).order_by(*table.primary_key))
        return [dict(zip(names, row, strict=True)) for row in rows]  # faster than `_asdict`

    def read_newest(self, name: str, count: int, *columns: str, **of: object) -> list[dict[str, Any]]:
        """Return the named columns (all where none are named) of the last `count` rows of a table by the order of its
        key, the last one first; with values of columns those that have them.
        """
        table = META.tables[name]
        chosen = [table.c[column] for column in columns] or list(table.c)
        newest_first = [column.desc() for column in table.primary_key]
        statement = select(*chosen).filter_by(**of).order_by(*newest_first).limit(count)
        names = [column.name for column in chosen]
        return [dict(zip(names, row, strict=True)) for row in self._read(statement)]

    def _read(self, statement: Select[Any]) -> Sequence[Row[Any]]:
        with self._open_transaction("read"):
            return self._db.execute(statement).all()

    def close(self) -> None:
        """Close the database and let others have it."""
        self._db.close()
        self.database.release()
