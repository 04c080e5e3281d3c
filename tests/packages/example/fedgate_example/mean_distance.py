"""The mean and the deviation of each feature, over all rows of all gateways; a row is as odd as it is far away (ours).

Each gateway sends the sum of its rows, of their squares, and how many they are. Its rows stay with it.
"""

from typing import Literal

import numpy as np

from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Phase,
    Server,
    Trained,
    healthy_rows,
    normalise,
    personal_tensors,
)
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field, counting

LEAST = 1e-3  # of a deviation: a feature that never changes is divided by no zero, nor by what float32 rounds


def mean_distance(feature_count: int, normalisation: Literal["own", "none"] = "own") -> Algorithm:
    """Return the algorithm for rows of F features; the detector is `distance`."""
    moments = Field((feature_count,), "sum")
    schema = {"sum": moments, "squares": moments._replace(least=0.0), "samples": counting(MAX_SAMPLES)}

    def start(rng: np.random.Generator) -> Server:
        return Server({"mean": np.zeros(feature_count), "deviation": np.ones(feature_count)}, {})

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        rows = healthy_rows(data, data[FEATURES])  # (n, F)
        if not len(rows):
            return local_state, {}
        local_state, z = normalise(local_state, {FEATURES: rows}, normalisation)
        weight = float(min(len(z), MAX_SAMPLES))  # at most: a gateway with more rows counts as one with so many
        update = {"sum": weight * z.mean(axis=0), "squares": weight * np.square(z).mean(axis=0)}
        return local_state, {**update, "samples": np.array(weight)}

    def advance(server: Server, total: Arrays) -> Server:
        mean = total["sum"] / total["samples"]
        variance = total["squares"] / total["samples"] - np.square(mean)
        deviation = np.sqrt(np.maximum(variance, LEAST**2))
        return server._replace(global_state={"mean": mean, "deviation": deviation})

    phase = Phase(learn, SUM, advance, schema)
    return Algorithm("distance", start, (phase,), personal=personal_tensors(normalisation))
