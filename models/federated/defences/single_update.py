"""What one update would do alone, which is all that a defence may look at: the others' are sums by the time it could
(ours).

An update of an averaging algorithm holds n·Δ under the name of what it moves in `global_state`, and n; alone it moves
that by Δ, whatever part of the way the server then goes. Any other update alone makes the model that the server would
make of it with the sums that are kept of earlier rounds: one that says what has changed means nothing without them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.federated.protocol.algorithm import Phase, Server, UpdateError, lacking

WEIGHTS = ("samples", "weight_sum")  # under which an update says how much it counts
HEADS = ("gateways", "members")  # under which it says that it is one


def weight_of(update: Mapping[str, Array]) -> float:
    """Return how much an update counts, one where it does not say."""
    return next((float(update[name]) for name in WEIGHTS if name in update), 1.0)


def moving(global_state: Mapping[str, Array], update: Mapping[str, Array]) -> list[str]:
    """Return the names of what an update moves, none where its algorithm does not average."""
    return sorted(name for name in update if name in global_state and global_state[name].shape == update[name].shape)


def counted_once(phase: Phase, global_state: Mapping[str, Array], update: Arrays) -> Arrays:
    """Return an admitted update of an average as it is with a weight of one, any other as it is.

    Sums of more than an average (`bears` nothing) are an average of what they move alone, and of nothing where they
    move nothing: what they hold besides adds up over rows, or is to be taken back in the same units.
    """
    names = [name for name in update if name not in HEADS]
    if phase.reducer.bears == "nothing":
        names = [*moved, *WEIGHTS] if (moved := moving(global_state, update)) else []
    weight = weight_of(update)
    return {name: np.asarray(array / weight) if name in names else array for name, array in update.items()}


def change_of(global_state: Mapping[str, Array], update: Mapping[str, Array]) -> Floats:
    """Return as one vector (P,) what an update says per unit of weight: Δ of what it moves, else means of its sums."""
    names = moving(global_state, update) or sorted(name for name in update if update[name].ndim > 0)
    parts = [np.ravel(update[name]) for name in names]
    return np.asarray(np.concatenate(parts) / (abs(weight_of(update)) or 1.0))


def model_of(phase: Phase, server: Server, update: Arrays) -> Arrays:
    """Return `global_state` as an admitted update alone would make it; raises `UpdateError` where that is no model."""
    weight = weight_of(update)
    names = moving(server.global_state, update) if weight > 0.0 else []
    moved = {name: np.asarray(server.global_state[name] + update[name] / weight) for name in names}
    if moved:
        return {**server.global_state, **moved}
    made = phase.advance(server, update)
    if why := lacking(made):
        raise UpdateError(f"expected an update that makes a model with what was counted before, got none: {why}")
    return made.global_state
