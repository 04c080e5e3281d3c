"""What a store holds, in numbers that can be compared with those of another day."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, func, select

from fedgate.cloud_aggregator.backup.archive import Facts
from fedgate.cloud_aggregator.storage import training_table
from fedgate.cloud_aggregator.storage.tables import ALARMS, CERTIFICATES, GATEWAYS, MODELS, ROUNDS

COUNTED = {"models": MODELS, "alarms": ALARMS, "gateways": GATEWAYS, "rounds": ROUNDS}


def read_facts(db: Connection) -> Facts:
    """Return what a store holds, within the transaction that is open."""
    is_good, names = CERTIFICATES.c.reason == "", func.count(CERTIFICATES.c.gateway.distinct())
    training = training_table.read_meta(db)
    return Facts(
        **{name: _number(db, func.count(), table) for name, table in COUNTED.items()},
        model_version=_number(db, func.coalesce(func.max(MODELS.c.version), 0), MODELS),
        enrolled=_number(db, names, CERTIFICATES, is_good),
        revoked=_number(db, func.count(), CERTIFICATES, ~is_good),
        training=0 if training is None else training.get("training", 0),
    )


def count_alarms_since(db: Connection, t_ns: int) -> int:
    """Return how many alarms a store has received after a moment."""
    return _number(db, func.count(), ALARMS, ALARMS.c.received_ns > t_ns)


def _number(db: Connection, what: Any, table: Table, *where: ColumnElement[bool]) -> int:
    return int(db.execute(select(what).select_from(table).where(*where)).scalar_one())


def describe_facts(facts: Facts) -> str:
    """Return the facts of a store as one line."""
    return (
        f"{facts.models} models, the newest {facts.model_version}; {facts.alarms} alarms; {facts.gateways} gateways, "
        f"{facts.enrolled} names enrolled, {facts.revoked} certificates over; {facts.rounds} rounds"
    )
