"""The training at hand in the store: a row of what is known of the round, and each array in a row of its own, so that a
step writes the arrays that it has changed and no others.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import Connection, delete, select

from fedgate.cloud_aggregator.events import SaveTraining
from fedgate.cloud_aggregator.storage.tables import TRAINING, TRAINING_ARRAYS, put
from fedgate.config.protocol import wire
from fedgate.models.arrays import Arrays


class TrainingRows:
    """What this process has written of a training; another one, such as after a commit that failed, knows nothing."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] | None = None  # of each array as it is stored

    def save(self, db: Connection, training: SaveTraining) -> None:
        """Make the rows say this, within the transaction that is open."""
        put(db, TRAINING, {"id": 1}, {"meta": json.dumps(training.meta)})
        stored = self._digests or {}
        bodies = {name: wire.encode({name: array}) for name, array in training.arrays.items()}
        digests = {name: hashlib.blake2b(body).digest() for name, body in bodies.items()}
        if self._digests is None or stored.keys() - bodies.keys():
            db.execute(delete(TRAINING_ARRAYS).where(TRAINING_ARRAYS.c.name.not_in(bodies)))
        for name, body in bodies.items():
            if stored.get(name) != digests[name]:
                put(db, TRAINING_ARRAYS, {"name": name}, {"body": body})
        self._digests = digests


def read(db: Connection) -> SaveTraining | None:
    """Return the stored training, if any, within the transaction that is open."""
    meta, arrays = read_meta(db), Arrays()
    for row in db.execute(select(TRAINING_ARRAYS.c.body).order_by(TRAINING_ARRAYS.c.name)):
        arrays |= wire.decode(row.body, size_max=len(row.body))[0]
    return None if meta is None else SaveTraining(arrays, meta)


def read_meta(db: Connection) -> dict[str, Any] | None:
    """Return what is stored of the round at hand, if any."""
    found = db.execute(select(TRAINING.c.meta)).scalar()
    meta: dict[str, Any] | None = None if found is None else json.loads(found)
    return meta
