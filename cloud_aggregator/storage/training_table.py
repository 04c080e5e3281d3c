"""The training at hand in the store: a row of what is known of the round, and each array in a row of its own, so that a
step writes the arrays that it has changed and no others.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, delete, func, select

from fedgate.cloud_aggregator.events import SaveTraining
from fedgate.cloud_aggregator.storage.tables import TRAINING, TRAINING_ARRAYS, put
from fedgate.config.protocol import wire
from fedgate.models.arrays import Arrays

NUMBER_BYTES = 1_024  # of a single number at most, with its name


class TrainingRows:
    """What this process has written of a training; another one, such as after a commit that failed, knows nothing."""

    def __init__(self) -> None:
        self._stored: Arrays | None = None

    def save(self, db: Connection, training: SaveTraining) -> None:
        """Make the rows say this, within the transaction that is open. An array that is the same object is the same:
        what is in a state is never changed.
        """
        put(db, TRAINING, {"id": 1}, {"meta": json.dumps(training.meta)})
        stored = self._stored or {}
        if self._stored is None or stored.keys() - training.arrays.keys():
            db.execute(delete(TRAINING_ARRAYS).where(TRAINING_ARRAYS.c.name.not_in(training.arrays)))
        for name, array in training.arrays.items():
            if stored.get(name) is not array:
                put(db, TRAINING_ARRAYS, {"name": name}, {"body": wire.encode({name: array})})
        self._stored = training.arrays


def read(db: Connection, *, only_numbers: bool = False) -> SaveTraining | None:
    """Return the stored training, if any, within the transaction that is open; where that is wanted without its large
    arrays.
    """
    meta, arrays = read_meta(db), Arrays()
    bodies = select(TRAINING_ARRAYS.c.body).order_by(TRAINING_ARRAYS.c.name)
    if only_numbers:
        bodies = bodies.where(func.length(TRAINING_ARRAYS.c.body) <= NUMBER_BYTES)
    for row in db.execute(bodies):
        arrays |= wire.decode(row.body, size_max=len(row.body))[0]
    return None if meta is None else SaveTraining(arrays, meta)


def read_meta(db: Connection) -> dict[str, Any] | None:
    """Return what is stored of the round at hand, if any."""
    found = db.execute(select(TRAINING.c.meta)).scalar()
    meta: dict[str, Any] | None = None if found is None else json.loads(found)
    return meta
