"""Models in the store, and how the release of the newest one stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Column, Connection, LargeBinary, Row, Select, Table, delete, func, select, update

from fedgate.cloud_aggregator.events import RecordModel, SaveRollout
from fedgate.cloud_aggregator.releases.releases import UNDER_WAY, Rollout, find_needed
from fedgate.cloud_aggregator.storage.tables import META, MODELS, NUMBER, put
from fedgate.config.protocol.messages import Manifest

MODELS_KEPT = 20  # bodies: the newest, besides those that some gateway may want
MANIFESTS_KEPT = 1_000  # what is said of a model, likewise
ROLLOUT = Table(
    "rollout",
    META,
    Column("id", NUMBER, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)


def apply(db: Connection, effect: RecordModel | SaveRollout) -> None:
    """Store one of these, within the transaction that is open."""
    match effect:
        case RecordModel(manifest=manifest, body=body):
            rest = {"digest": manifest.model.digest, "manifest": manifest.model_dump_json(), "body": body}
            put(db, MODELS, {"version": manifest.version}, rest)
            _prune(db)
        case SaveRollout(body=body, now_ns=now_ns):
            put(db, ROLLOUT, {"id": 1}, {"body": body})
            for version, column in _find_reached(body):
                is_first = (MODELS.c.version == version) & MODELS.c[column].is_(None)
                db.execute(update(MODELS).where(is_first).values({column: now_ns}))


def _find_reached(body: bytes) -> list[tuple[int, str]]:
    """Return what models have come to by a stored release: version, and the column that says when."""
    held = json.loads(body)
    stage = held["rollout"]
    given = [(held.get("candidate"), "canary_ns")] if stage["canaries"] else []
    given += [(held.get("recall"), "canary_ns")] if stage["recalled"] else []
    given += [(stage["version"], "stopped_ns")] if stage["stage"] == "stopped" else []
    return [(version, column) for version, column in [(held["everywhere"], "released_ns"), *given] if version]


def state_of(row: Mapping[str, Any], body: bytes | None, latest: int) -> str:
    """Return how a stored model stands, by its row and the stored release: `everywhere`, `waits`, `canary`, `stopped`,
    `given back` (to the canaries of one that was stopped), `replaced` or `not released`. `latest` is the highest
    version, which all have where nothing was ever staged.
    """
    held: dict[str, Any] = json.loads(body) if body else {"everywhere": latest, "rollout": asdict(Rollout())}
    stage, version = held["rollout"], row["version"]
    states = (
        ("everywhere", version == held["everywhere"]),
        ("waits", version == held.get("waiting")),
        ("canary", stage["stage"] in UNDER_WAY and version == held.get("candidate")),
        ("stopped", row["stopped_ns"] is not None),
        ("replaced", row["released_ns"] is not None),
        ("given back", row["canary_ns"] is not None),
    )
    return next((state for state, holds in states if holds), "not released")


def _prune(db: Connection) -> None:
    """Empty the bodies of models that are neither new nor of use, and forget those that are older still. What the
    release at hand is about changes later in the transaction, to what is stored of it already and to the newest.
    """
    newest = select(MODELS.c.version).order_by(MODELS.c.version.desc()).limit(MODELS_KEPT)
    kept = {*db.execute(newest).scalars(), *find_needed(db.execute(select(ROLLOUT.c.body)).scalar())}
    is_old = MODELS.c.version.not_in(kept) & (func.length(MODELS.c.body) > 0)
    db.execute(update(MODELS).where(is_old).values(body=b""))
    by_version = select(MODELS.c.version).order_by(MODELS.c.version.desc())
    latest_to_go = db.execute(by_version.offset(MANIFESTS_KEPT).limit(1)).scalar()
    if latest_to_go is not None:
        db.execute(delete(MODELS).where(MODELS.c.version <= latest_to_go, MODELS.c.version.not_in(kept)))


class Models:
    """What can be read of models, by a function that carries out a statement."""

    def __init__(self, read: Callable[[Select[Any]], Sequence[Row[Any]]]) -> None:
        self._read = read

    def read_latest(self) -> tuple[Manifest, bytes] | None:
        """Return the newest model, if any."""
        return self._read_first(select(MODELS).order_by(MODELS.c.version.desc()).limit(1))

    def read_version(self, version: int) -> tuple[Manifest, bytes] | None:
        """Return a model by its version, if there is one and its body is kept."""
        return self._read_first(select(MODELS).where(MODELS.c.version == version, func.length(MODELS.c.body) > 0))

    def read_rollout(self) -> bytes | None:
        """Return how the release at hand stands, if one was ever staged."""
        rows = self._read(select(ROLLOUT.c.body))
        return rows[0].body if rows else None

    def _read_first(self, statement: Select[Any]) -> tuple[Manifest, bytes] | None:
        rows = self._read(statement)
        return (Manifest.model_validate_json(rows[0].manifest), rows[0].body) if rows else None
