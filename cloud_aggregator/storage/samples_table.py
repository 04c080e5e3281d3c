"""Raw samples around alarms in the store: one clip of each alarm that was asked for; the newest, by bytes."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select, update

from fedgate.cloud_aggregator.events import RecordFetch, RecordFetched
from fedgate.cloud_aggregator.storage.tables import SAMPLES
from fedgate.config.protocol.transfer import digest_of

KEPT = 1_000  # requests, with an answer or without


def apply(db: Connection, effect: RecordFetch | RecordFetched) -> None:
    """Store a request or its answer, within the transaction that is open."""
    key = {"gateway": effect.gateway, "alarm": effect.alarm}
    if isinstance(effect, RecordFetch):
        db.execute(delete(SAMPLES).filter_by(**key))
        db.execute(insert(SAMPLES).values(**key, requested_ns=effect.number, problem=""))
        newest_first = select(SAMPLES.c.number).order_by(SAMPLES.c.number.desc())
        newest_to_go = db.execute(newest_first.offset(KEPT).limit(1)).scalar()
        if newest_to_go is not None:
            db.execute(delete(SAMPLES).where(SAMPLES.c.number <= newest_to_go))
        return
    values = {"received_ns": effect.received_ns, "problem": effect.problem}
    if effect.body is None:
        db.execute(update(SAMPLES).filter_by(**key).values(**values))
        return
    # With a number of its own, for which of the clips came first is not for a clock to say.
    for requested_ns in db.scalars(delete(SAMPLES).filter_by(**key).returning(SAMPLES.c.requested_ns)).all():
        values |= {"body": effect.body, "digest": digest_of(effect.body), "size_bytes": len(effect.body)}
        db.execute(insert(SAMPLES).values(**key, requested_ns=requested_ns, **values))
    of_gateway, of_all = effect.bounds
    _prune(db, {"gateway": effect.gateway}, of_gateway)
    _prune(db, {}, of_all)


def _prune(db: Connection, whose: dict[str, str], most: int) -> None:
    """Remove the clips that came first, of one gateway or of all, beyond so many bytes."""
    of_newer = func.sum(SAMPLES.c.size_bytes).over(order_by=SAMPLES.c.number.desc(), rows=(None, 0))
    has_body = SAMPLES.c.size_bytes.is_not(None)
    kept = select(SAMPLES.c.number, of_newer.label("bytes_kept")).filter_by(**whose).where(has_body).subquery()
    to_go = select(kept.c.number).where(kept.c.bytes_kept > most)
    db.execute(delete(SAMPLES).where(SAMPLES.c.number.in_(to_go)))
