"""Tombstones, scores and alarms that are over in the store: the newest of each gateway, by number and by bytes."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, LargeBinary, cast, delete, func, insert, select, update

from cloud_aggregator.events import RecordLoss, RecordScores
from cloud_aggregator.tables import ALARMS, LOSSES, SCORES

LOSSES_KEPT = 1_000  # of one gateway
ROW_BYTES = 256  # that the database adds to a row, and the short columns of it
SCORES_BYTES = 16 * 1024 * 1024  # of one gateway: weeks without a link at a window every five seconds
ALARMS_KEPT, ALARMS_BYTES = 10_000, 16 * 1024 * 1024  # that are over, of one gateway
PRUNED_EVERY = 100  # alarms of a gateway: each time all of them are looked through
TEXTS = ("id", "text", "feature", "rule", "boot_id", "model_digest", "store_id")  # of an alarm, that can be long


class AlarmTable:
    """The alarms of gateways within their bounds; a process looks after every so many of one gateway."""

    def __init__(self) -> None:
        self._since = Counter[str]()  # alarms of a gateway that were stored since it was looked through

    def prune(self, db: Connection, gateway: str) -> None:
        """Remove the oldest alarms of a gateway that are over, beyond so many or so many bytes; one that stands stays.

        Call it once for each alarm that was stored, within the transaction that is open.
        """
        self._since[gateway] += 1
        if self._since[gateway] < PRUNED_EVERY:
            return
        del self._since[gateway]
        over = (ALARMS.c.gateway == gateway) & ALARMS.c.cleared_ns.is_not(None)
        newest_first = (ALARMS.c.received_ns.desc(), ALARMS.c.onset_ns.desc(), ALARMS.c.id)
        place = func.row_number().over(order_by=newest_first)
        texts = sum((func.coalesce(func.length(cast(ALARMS.c[name], LargeBinary)), 0) for name in TEXTS), ROW_BYTES)
        of_newer = func.sum(texts).over(order_by=newest_first, rows=(None, 0))
        kept = select(ALARMS.c.id, place.label("place"), of_newer.label("size_bytes")).where(over).subquery()
        to_go = select(kept.c.id).where((kept.c.place > ALARMS_KEPT) | (kept.c.size_bytes > ALARMS_BYTES))
        db.execute(delete(ALARMS).where(ALARMS.c.gateway == gateway, ALARMS.c.id.in_(to_go)))


def apply(db: Connection, effect: RecordLoss | RecordScores) -> None:
    """Store one message, within the transaction that is open; one that is here already changes nothing."""
    match effect:
        case RecordLoss():
            _loss(db, effect)
        case RecordScores(gateway=gateway, item=item, scores=scores):
            if db.execute(select(SCORES.c.number).filter_by(gateway=gateway, item=item)).first():
                return
            body = scores.model_dump_json()
            values = {"t_ns": scores.t_ns, "windows": len(scores.scores), "body": body}
            values |= {"gateway": gateway, "item": item, "received_ns": effect.received_ns}
            before = db.execute(select(func.max(SCORES.c.total_bytes)).filter_by(gateway=gateway)).scalar()
            total_bytes = (before or 0) + len(body.encode()) + ROW_BYTES
            db.execute(insert(SCORES).values(**values, total_bytes=total_bytes))
            is_old = SCORES.c.total_bytes <= total_bytes - SCORES_BYTES
            db.execute(delete(SCORES).where(SCORES.c.gateway == gateway, is_old))


def _loss(db: Connection, effect: RecordLoss) -> None:
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
