"""Tombstones and scores in the store: one row a message, the newest of each gateway."""

from __future__ import annotations

from sqlalchemy import Connection, Table, delete, insert, select, update

from cloud_aggregator.events import RecordLoss, RecordScores
from cloud_aggregator.tables import LOSSES, SCORES

LOSSES_KEPT = 1_000  # of one gateway
SCORES_KEPT = 10_000  # messages of one gateway: weeks without a link at a window every five seconds


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
