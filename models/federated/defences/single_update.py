"""What one update would do alone, which is all that a defence may look at: the others' are sums by the time it could
(ours).

An update of an averaging algorithm holds n·Δ of what it `moves` in `global_state`, and n; alone it moves that by Δ,
whatever part of the way the server then goes. Any other update alone makes the model that the server would make of it
with the sums that are kept of earlier rounds: one that says what has changed means nothing without them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server
from fedgate.models.federated.protocol.schema import Schema, UpdateError, judged, moving, named, weight_of


def counted_once(schema: Schema, update: Arrays) -> Arrays:
    """Return an admitted update as it is with a weight of one.

    What it holds of sums stays as it is: it adds up over rows, or is to be taken back in the same units.
    """
    weight, means = weight_of(schema, update), named(schema, "delta", "full", "metric")
    names = [*means, *named(schema, "weight")] if means else []
    return {name: np.asarray(array / weight) if name in names else array for name, array in update.items()}


def change_of(schema: Schema, update: Mapping[str, Array]) -> Floats:
    """Return as one vector (P,) what an update says per unit of weight: what it asks for, else means of its sums."""
    parts = [np.ravel(update[name]) for name in judged(schema)]
    return np.asarray(np.concatenate(parts) / (abs(weight_of(schema, update)) or 1.0))


def model_of(algorithm: Algorithm, phase: Phase, server: Server, update: Arrays) -> Arrays:
    """Return `global_state` as an admitted update alone would make it; raises `UpdateError` where that is no model."""
    weight, global_state = weight_of(phase.schema, update), server.global_state
    names = moving(phase.schema) if weight > 0.0 else []
    if names:
        return {**global_state, **{name: np.asarray(global_state[name] + update[name] / weight) for name in names}}
    after = phase.advance(server, update)
    if why := algorithm.lacking(after):
        raise UpdateError(f"expected an update that makes a model with what was counted before, got none: {why}")
    return after.global_state
