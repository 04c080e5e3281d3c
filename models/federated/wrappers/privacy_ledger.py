"""What a gateway has spent of its privacy, under names of its own: it belongs to its data and not to one training
(ours).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import Array, Arrays

LEDGER = "privacy."
# How many updates were made, the sum of 1 / multiplier² over them, and what follows from it.
RELEASES, SPENT, EPSILON = f"{LEDGER}releases", f"{LEDGER}spent", f"{LEDGER}epsilon"

# In `server_state`: what the cloud's own noise is drawn from. It follows from the seed, until an aggregator puts in a
# real one.
NOISE_SECRET = f"{LEDGER}secret"


def ledger_of(local_state: Mapping[str, Array]) -> Arrays:
    """Return what a gateway's own tensors say of the privacy that it has spent."""
    return {name: array for name, array in local_state.items() if name.startswith(LEDGER)}


def lost_ledger() -> Arrays:
    """Return the ledger of a gateway that no longer knows what it has spent: there is no budget that it has left."""
    return {RELEASES: np.array(0, np.int64), SPENT: np.array(np.inf), EPSILON: np.array(np.inf)}
