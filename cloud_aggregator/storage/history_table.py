"""Tombstones, scores, summaries of features, evidence, who was there when, alarms that are over and what was done
about them: of each gateway the newest, by number and by bytes.
"""

from __future__ import annotations

import json
from collections import Counter

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    RecordDenied,
    RecordEvidence,
    RecordLoss,
    RecordPresence,
    RecordScores,
    RecordSummary,
)
from fedgate.cloud_aggregator.storage.availability_table import AvailabilityRows
from fedgate.cloud_aggregator.storage.evidence_table import EvidenceRows
from fedgate.cloud_aggregator.storage.tables import ALARM_EVENTS, ALARMS, LOSSES, SCORES, SUMMARIES
from fedgate.config.protocol.feature_summary import FeatureSummary
from fedgate.config.protocol.scores import Scores

LOSSES_KEPT = 1_000  # of one gateway
ROW_BYTES = 256  # that the database adds to a row, and the short columns of it
# Of one gateway: scores of weeks without a link at a window every five seconds, and as much of summaries.
BATCHES_BYTES = 16 * 1024 * 1024
ALARMS_KEPT, ALARMS_BYTES = 10_000, 16 * 1024 * 1024  # that are over, of one gateway
EVENTS_KEPT, EVENTS_BETWEEN = 20_000, 100  # of one gateway; those of alarms that stand stay beyond that
REPEATED_KEPT = 50  # of the service about one alarm, and about one cause: of these the last say all
# Of one gateway, after which all of its rows are looked through: an index for it would be written with each row.
ALARMS_BETWEEN, BATCHES_BYTES_BETWEEN = 100, 1024 * 1024
TEXTS = ("id", "text", "feature", "rule", "boot_id", "model_digest", "store_id")  # of an alarm, that can be long


class History:
    """Keeps what was stored of gateways within its bounds."""

    def __init__(self) -> None:
        # What was stored of a gateway since its rows were looked through, by this process.
        self._alarms, self._events = Counter[str](), Counter[str]()
        self._batch_bytes = Counter[tuple[str, str]]()  # by table and gateway
        self._evidence, self._availability = EvidenceRows(), AvailabilityRows()

    def prune_alarms(self, db: Connection, gateway: str) -> None:
        """Remove the oldest alarms of a gateway that are over, beyond so many or so many bytes.

        One that stands stays, and the latest of each cause, of which the register bounds the number: by it a service
        that is started knows under which causes a broker retains something.

        Call it once for each alarm that was stored, within the transaction that is open.
        """
        self._alarms[gateway] += 1
        if self._alarms[gateway] < ALARMS_BETWEEN:
            return
        del self._alarms[gateway]
        over = (ALARMS.c.gateway == gateway) & ALARMS.c.cleared_ns.is_not(None)
        newest_first = (ALARMS.c.received_ns.desc(), ALARMS.c.onset_ns.desc(), ALARMS.c.id)
        place = func.row_number().over(order_by=newest_first)
        texts = sum((func.coalesce(func.octet_length(ALARMS.c[name]), 0) for name in TEXTS), ROW_BYTES)
        of_newer = func.sum(texts).over(order_by=newest_first, rows=(None, 0))
        of_cause = func.row_number().over(partition_by=ALARMS.c.cause, order_by=newest_first)
        columns = (place.label("place"), of_cause.label("of_cause"), of_newer.label("size_bytes"))
        kept = select(ALARMS.c.id, *columns).where(over).subquery()
        is_too_old = (kept.c.place > ALARMS_KEPT) | (kept.c.size_bytes > ALARMS_BYTES)
        to_go = select(kept.c.id).where(is_too_old, kept.c.of_cause > 1)
        db.execute(delete(ALARMS).where(ALARMS.c.gateway == gateway, ALARMS.c.id.in_(to_go)))

    def apply(
        self,
        db: Connection,
        effect: RecordLoss | RecordScores | RecordSummary | RecordEvidence | AlarmEvent | RecordPresence | RecordDenied,
    ) -> None:
        """Store one message, within the transaction that is open; one that is here already changes nothing."""
        match effect:
            case RecordEvidence():
                self._evidence.apply(db, effect)
            case RecordPresence() | RecordDenied():
                self._availability.apply(db, effect)
            case RecordLoss():
                _put_loss(db, effect)
            case AlarmEvent(gateway=gateway):
                db.execute(insert(ALARM_EVENTS).values(**vars(effect) | {"body": json.dumps(effect.body)}))
                self._events[gateway] += 1
                if self._events[gateway] >= EVENTS_BETWEEN:
                    del self._events[gateway]
                    _prune_events(db, gateway)
            case RecordScores(scores=scores):
                self._put_batch(db, SCORES, effect, scores, {"windows": len(scores.scores)})
            case RecordSummary(summary=summary):
                self._put_batch(db, SUMMARIES, effect, summary, {})

    def _put_batch(
        self,
        db: Connection,
        table: Table,
        effect: RecordScores | RecordSummary,
        batch: Scores | FeatureSummary,
        values: dict[str, int],
    ) -> None:
        """Store what a gateway gathered, under the name of its message, with other values beside it."""
        key = {"gateway": effect.gateway, "item": effect.item}
        if db.execute(select(table.c.number).filter_by(**key)).first():
            return
        body = batch.model_dump_json()
        values |= {"t_ns": batch.t_ns, "received_ns": effect.received_ns}
        db.execute(insert(table).values(**key, **values, body=body))
        of_gateway = (table.name, effect.gateway)
        self._batch_bytes[of_gateway] += len(body) + ROW_BYTES
        if self._batch_bytes[of_gateway] >= BATCHES_BYTES_BETWEEN:
            del self._batch_bytes[of_gateway]
            _prune_batches(db, table, effect.gateway)


def _prune_events(db: Connection, gateway: str) -> None:
    """Remove the oldest events of a gateway beyond so many, of its alarms that are over, and of its causes and
    maintenance windows.
    """
    of_service = (ALARM_EVENTS.c.alarm != "") & (ALARM_EVENTS.c.who == "")
    for chosen, about in ((of_service, ALARM_EVENTS.c.alarm), (ALARM_EVENTS.c.cause != "", ALARM_EVENTS.c.cause)):
        place = func.row_number().over(partition_by=about, order_by=ALARM_EVENTS.c.number.desc()).label("place")
        rows = select(ALARM_EVENTS.c.number, place).where(ALARM_EVENTS.c.gateway == gateway, chosen).subquery()
        repeated = select(rows.c.number).where(rows.c.place > REPEATED_KEPT)
        db.execute(delete(ALARM_EVENTS).where(ALARM_EVENTS.c.number.in_(repeated)))
    stands = select(ALARMS.c.id).where(ALARMS.c.gateway == gateway, ALARMS.c.cleared_ns.is_(None))
    for chosen in (ALARM_EVENTS.c.alarm == "", ALARM_EVENTS.c.alarm.not_in(stands) & (ALARM_EVENTS.c.alarm != "")):
        of_gateway = select(ALARM_EVENTS.c.number).where(ALARM_EVENTS.c.gateway == gateway, chosen)
        newest_first = of_gateway.order_by(ALARM_EVENTS.c.number.desc())
        newest_to_go = db.execute(newest_first.offset(EVENTS_KEPT).limit(1)).scalar()
        if newest_to_go is not None:
            old = of_gateway.where(ALARM_EVENTS.c.number <= newest_to_go)
            db.execute(delete(ALARM_EVENTS).where(ALARM_EVENTS.c.number.in_(old)))


def _prune_batches(db: Connection, table: Table, gateway: str) -> None:
    """Remove the oldest rows of a gateway beyond so many bytes."""
    size = func.octet_length(table.c.body) + ROW_BYTES
    of_newer = func.sum(size).over(order_by=table.c.number.desc(), rows=(None, 0))
    kept = select(table.c.number, of_newer.label("size_bytes")).filter_by(gateway=gateway).subquery()
    newest_to_go = db.execute(select(func.max(kept.c.number)).where(kept.c.size_bytes > BATCHES_BYTES)).scalar()
    if newest_to_go is not None:
        db.execute(delete(table).where(table.c.gateway == gateway, table.c.number <= newest_to_go))


def _put_loss(db: Connection, effect: RecordLoss) -> None:
    """Of several tombstones of one id the one with the most items is the whole truth."""
    stone = effect.tombstone
    key = {"gateway": effect.gateway, "id": stone.id, "kind": stone.kind}
    held = db.execute(select(LOSSES.c["items"]).filter_by(**key)).scalar()
    values = {name: getattr(stone, name) for name in ("items", "size_bytes", "first_ns", "last_ns")}
    values |= {"why": " ".join(stone.why), "received_ns": effect.received_ns}
    if held is None:
        db.execute(insert(LOSSES).values(**key, **values))
        _prune_losses(db, effect.gateway)
    elif held < stone.items:
        db.execute(update(LOSSES).filter_by(**key).values(**values))


def _prune_losses(db: Connection, gateway: str) -> None:
    """Remove the oldest tombstones of a gateway beyond so many."""
    of_gateway = select(LOSSES.c.number).filter_by(gateway=gateway).order_by(LOSSES.c.number.desc())
    newest_to_go = db.execute(of_gateway.offset(LOSSES_KEPT).limit(1)).scalar()
    if newest_to_go is not None:
        db.execute(delete(LOSSES).where(LOSSES.c.gateway == gateway, LOSSES.c.number <= newest_to_go))
