"""Models in the store, and how the release of the newest one stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Integer, LargeBinary, Row, Select, Table, insert, select, update

from cloud_aggregator.events import RecordModel, SaveRollout
from cloud_aggregator.tables import META, MODELS
from config.messages import Manifest

ROLLOUT = Table("rollout", META, Column("id", Integer, primary_key=True), Column("body", LargeBinary, nullable=False))


def apply(db: Connection, effect: RecordModel | SaveRollout) -> None:
    """Store one of these, within the transaction that is open."""
    match effect:
        case RecordModel(manifest=manifest, body=body):
            rest = {"digest": manifest.model.digest, "manifest": manifest.model_dump_json(), "body": body}
            _put(db, MODELS, {"version": manifest.version}, rest)
        case SaveRollout(body=body):
            _put(db, ROLLOUT, {"id": 1}, {"body": body})


def _put(db: Connection, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    if db.execute(update(table).filter_by(**key).values(**values)).rowcount == 0:
        db.execute(insert(table).values(**key, **values))


class Models:
    """What can be read of models, by a function that carries out a statement."""

    def __init__(self, read: Callable[[Select[Any]], Sequence[Row[Any]]]) -> None:
        self._read = read

    def latest(self) -> tuple[Manifest, bytes] | None:
        """Return the newest model, if any."""
        return self._first(select(MODELS).order_by(MODELS.c.version.desc()).limit(1))

    def of(self, version: int) -> tuple[Manifest, bytes] | None:
        """Return a model by its version, if there is one."""
        return self._first(select(MODELS).filter_by(version=version))

    def rollout(self) -> bytes | None:
        """Return how the release at hand stands, if one was ever staged."""
        rows = self._read(select(ROLLOUT.c.body))
        return rows[0].body if rows else None

    def _first(self, statement: Select[Any]) -> tuple[Manifest, bytes] | None:
        rows = self._read(statement)
        return (Manifest.model_validate_json(rows[0].manifest), rows[0].body) if rows else None
