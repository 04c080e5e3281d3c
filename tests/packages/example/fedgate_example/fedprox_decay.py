"""Federated one-class SVM on random Fourier features with a proximal term that decays over the rounds (ours; that of
Li et al. 2020 is constant).

In round t each gateway descends along 1/2 |w|² + mean(max(0, 1 - w·φ)) / ν + µ_t/2 |w - w_t|², µ_t = µ_0 / (1 + t), and
sends n·Δw, n·Δborder and n. Its rows, centre and scale stay with it.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedgate.models.arrays import Arrays
from fedgate.models.detectors.base import linear
from fedgate.models.federated.averaging.averaging import STEP, averaging
from fedgate.models.federated.averaging.local_linear import Descent, begin, on_a_map
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Positive,
    Share,
    Trained,
    personal_tensors,
)

EPOCHS, BATCH, MOST_ROWS = 5, 32, 2_000
SQUARE = 1.0  # mean square length of a row of the map


def fedprox_decay(
    feature_count: Count,
    mu_0: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0,
    nu: Share = 0.1,
    components: Count = 256,
    gamma: Positive | None = None,
    rounds: Count = 20,
    normalisation: Literal["own", "none"] = "own",
) -> Algorithm:
    """Return the algorithm for rows of F features; the detector is `linear`."""
    base = Descent(
        loss="one-class",
        nu=nu,
        decay=0.0,
        epochs=EPOCHS,
        batch=BATCH,
        learning_rate=None,
        most_rows=MOST_ROWS,
        proximity=0.0,
        square=SQUARE,
    )

    def improve(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        now = base._replace(proximity=mu_0 / (1.0 + int(global_state[STEP])))
        return now.improve(global_state, local_state, data, rng)

    phase = averaging(improve, base.judge, linear.TRAINED, max_samples=MAX_SAMPLES, normalisation=normalisation)
    start = begin(feature_count, components, gamma, "one-class")
    algorithm = Algorithm("linear", start, (phase,), rounds, personal_tensors(normalisation))
    return on_a_map(algorithm, gamma, components, normalisation)
