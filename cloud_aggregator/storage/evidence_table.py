"""Evidence of alarms in the store: one of each alarm, the newest of each gateway, by number and by bytes."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, delete, func, insert, select

from fedgate.cloud_aggregator.events import RecordEvidence
from fedgate.cloud_aggregator.storage.tables import EVIDENCE

KEPT, KEPT_BYTES = 500, 4 * 1024 * 1024  # of one gateway
ROW_BYTES = 256  # that the database adds to a row, and the short columns of it
BETWEEN = 25  # of one gateway, after which all of its rows are looked through


class EvidenceRows:
    """Keeps the evidence of gateways within its bounds."""

    def __init__(self) -> None:
        self._stored = Counter[str]()  # of a gateway since its rows were looked through, by this process

    def apply(self, db: Connection, effect: RecordEvidence) -> None:
        """Store evidence, within the transaction that is open; where there is some of its alarm nothing changes."""
        key = {"gateway": effect.gateway, "alarm": effect.evidence.alarm}
        if db.execute(select(EVIDENCE.c.number).filter_by(**key)).first():
            return
        body = effect.evidence.model_dump_json()
        values = {
            "cause": effect.evidence.cause,
            "t_ns": effect.evidence.t_ns,
            "received_ns": effect.received_ns,
            "body": body,
        }
        db.execute(insert(EVIDENCE).values(**key, **values))
        self._stored[effect.gateway] += 1
        if self._stored[effect.gateway] >= BETWEEN:
            del self._stored[effect.gateway]
            _prune(db, effect.gateway)


def _prune(db: Connection, gateway: str) -> None:
    """Remove the oldest evidence of a gateway beyond so many or so many bytes."""
    newest_first = EVIDENCE.c.number.desc()
    place = func.row_number().over(order_by=newest_first).label("place")
    size = func.sum(func.octet_length(EVIDENCE.c.body) + ROW_BYTES).over(order_by=newest_first, rows=(None, 0))
    kept = select(EVIDENCE.c.number, place, size.label("size_bytes")).filter_by(gateway=gateway).subquery()
    too_many = (kept.c.place > KEPT) | (kept.c.size_bytes > KEPT_BYTES)
    newest_to_go = db.execute(select(func.max(kept.c.number)).where(too_many)).scalar()
    if newest_to_go is not None:
        db.execute(delete(EVIDENCE).where(EVIDENCE.c.gateway == gateway, EVIDENCE.c.number <= newest_to_go))
