"""The registry in the store: rows in, rows out."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.enrolment import Certificate, ForgetGateway, Recorded, RecordRegistry, Token
from fedgate.cloud_aggregator.storage.tables import CERTIFICATES, GATEWAYS, PASSES, put


def apply(db: Connection, effect: Recorded) -> None:
    """Make one change of the registry true, within the transaction that is open."""
    match effect:
        case ForgetGateway(gateway=gateway):
            db.execute(delete(GATEWAYS).where(GATEWAYS.c.gateway == gateway))
        case RecordRegistry():
            for one in effect.certificates:
                put(db, CERTIFICATES, {"serial": one.serial}, vars(one))
            for token in effect.passes:
                put(db, PASSES, {"digest": token.digest}, vars(token))
            db.execute(delete(CERTIFICATES).where(CERTIFICATES.c.serial.in_(effect.old_certificates)))
            db.execute(delete(PASSES).where(PASSES.c.digest.in_(effect.old_passes)))


def read(db: Connection) -> Registry:
    """Return what is stored of it."""
    certificates = [Certificate(**row._asdict()) for row in db.execute(select(CERTIFICATES))]
    passes = [Token(**row._asdict()) for row in db.execute(select(PASSES))]
    return Registry({one.serial: one for one in certificates}, {one.digest: one for one in passes})
