"""The registry in the store: rows in, rows out."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.enrolment import (
    Certificate,
    ForgetCertificates,
    ForgetGateway,
    ForgetPasses,
    RecordCertificate,
    Recorded,
    RecordPass,
    Token,
)
from fedgate.cloud_aggregator.storage.tables import CERTIFICATES, GATEWAYS, PASSES


def apply(db: Connection, effect: Recorded) -> None:
    """Make one change of the registry true, within the transaction that is open."""
    match effect:
        case RecordCertificate(certificate=one):
            rest = {name: value for name, value in vars(one).items() if name != "serial"}
            if db.execute(update(CERTIFICATES).filter_by(serial=one.serial).values(**rest)).rowcount == 0:
                db.execute(insert(CERTIFICATES).values(serial=one.serial, **rest))
        case ForgetCertificates(serials=serials):
            db.execute(delete(CERTIFICATES).where(CERTIFICATES.c.serial.in_(serials)))
        case RecordPass(token=one):
            rest = {name: value for name, value in vars(one).items() if name != "digest"}
            if db.execute(update(PASSES).filter_by(digest=one.digest).values(**rest)).rowcount == 0:
                db.execute(insert(PASSES).values(digest=one.digest, **rest))
        case ForgetPasses(digests=digests):
            db.execute(delete(PASSES).where(PASSES.c.digest.in_(digests)))
        case ForgetGateway(gateway=gateway):
            db.execute(delete(GATEWAYS).where(GATEWAYS.c.gateway == gateway))


def read(db: Connection) -> Registry:
    """Return what is stored of it."""
    certificates = [Certificate(**_fields(row)) for row in db.execute(select(CERTIFICATES))]
    passes = [Token(**_fields(row)) for row in db.execute(select(PASSES))]
    return Registry({one.serial: one for one in certificates}, {one.digest: one for one in passes})


def _fields(row: Row[Any]) -> dict[str, Any]:
    return row._asdict()
