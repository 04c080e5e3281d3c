"""Tombstones, scores and alarms that are over in the store: the newest of each gateway."""

from __future__ import annotations

from sqlalchemy import Connection, Table, delete, func, insert, literal_column, select, update

from cloud_aggregator.events import RecordLoss, RecordScores
from cloud_aggregator.tables import ALARMS, LOSSES, SCORES

LOSSES_KEPT = 1_000  # of one gateway
SCORES_KEPT = 10_000  # messages of one gateway: weeks without a link at a window every five seconds
ALARMS_KEPT = 10_000  # that are over, of one gateway
PRUNED_EVERY = 100  # rows: there is no index to find the oldest by


def prune_alarms(db: Connection, gateway: str) -> None:
    """Remove the oldest alarms of a gateway that are over, beyond so many; one that stands stays."""
    newest = db.execute(select(func.max(literal_column("rowid"))).select_from(ALARMS)).scalar()
    if newest is None or newest % PRUNED_EVERY:
        return
    over = (ALARMS.c.gateway == gateway) & ALARMS.c.cleared_ns.is_not(None)
    ordered = select(ALARMS.c.received_ns).where(over).order_by(ALARMS.c.received_ns.desc())
    latest_to_go = db.execute(ordered.offset(ALARMS_KEPT).limit(1)).scalar()
    if latest_to_go is not None:
        db.execute(delete(ALARMS).where(over, ALARMS.c.received_ns <= latest_to_go))


def apply(db: Connection, effect: RecordLoss | RecordScores) -> None:
    """Store one message, within the transaction that is open; one that is here already changes nothing."""
    match effect:
        case RecordLoss():
            _loss(db, effect)
        case RecordScores(gateway=gateway, item=item, scores=scores):
            if db.execute(select(SCORES.c.number).filter_by(gateway=gateway, item=item)).first():
                return
            values = {"t_ns": scores.t_ns, "windows": len(scores.scores), "body": scores.model_dump_json()}
            values |= {"gateway": gateway, "item": item, "received_ns": effect.received_ns}
            db.execute(insert(SCORES).values(**values))
            _pruned(db, SCORES, gateway, SCORES_KEPT)


def _loss(db: Connection, effect: RecordLoss) -> None:
    """Of several tombstones of one id the one with the most items is the whole truth."""
    stone = effect.tombstone
    key = {"gateway": effect.gateway, "id": stone.id, "kind": stone.kind}
    held = db.execute(select(LOSSES.c["items"]).filter_by(**key)).scalar()
    values = {name: getattr(stone, name) for name in ("items", "size_bytes", "first_ns", "last_ns")}
    values |= {"why": " ".join(stone.why), "received_ns": effect.received_ns}
    if held is None:
        db.execute(insert(LOSSES).values(**key, **values))
        _pruned(db, LOSSES, effect.gateway, LOSSES_KEPT)
    elif held < stone.items:
        db.execute(update(LOSSES).filter_by(**key).values(**values))


def _pruned(db: Connection, table: Table, gateway: str, kept: int) -> None:
    """Remove the oldest rows of a gateway beyond so many."""
    of_gateway = select(table.c.number).filter_by(gateway=gateway).order_by(table.c.number.desc())
    newest_to_go = db.execute(of_gateway.offset(kept).limit(1)).scalar()
    if newest_to_go is not None:
        db.execute(delete(table).where(table.c.gateway == gateway, table.c.number <= newest_to_go))
