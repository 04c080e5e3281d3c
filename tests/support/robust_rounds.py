"""One round of an average of a linear model, in which the gateways ask for changes that a test chooses."""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats, generator
from fedgate.models.federated.protocol.algorithm import Algorithm

CLAIMED = 50.0  # rows of each gateway


def asked(count: int) -> Floats:
    """Return changes (n, 4) of three weights and a border, around one that is not zero."""
    return np.asarray(np.random.default_rng(5).normal(size=(count, 4)) + np.array([1.0, -2.0, 0.5, 0.0]))


def one_round(algorithm: Algorithm, changes: Array) -> Floats:
    """Return how far (4,) the model moves where each gateway asks for a row of `changes` (n, 4)."""
    (phase,), total = algorithm.phases, Arrays()
    server = algorithm.start(generator(0, 0, "cloud"))
    for place, row in enumerate(changes):
        claimed = CLAIMED + place  # of unlike numbers of rows, which must not matter
        update = {"weights": claimed * row[None, :3], "intercept": claimed * row[3:]}
        total = phase.reducer.merge(total, phase.admit(server, {**update, "samples": np.array([claimed])}))
    after = phase.advance(server, phase.reducer.closed(total)).global_state
    moved = [np.atleast_1d(after[name] - server.global_state[name]) for name in ("weights", "intercept")]
    return np.asarray(np.concatenate(moved), dtype=np.float64)
