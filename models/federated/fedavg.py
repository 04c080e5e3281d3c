"""Federated averaging (McMahan et al. 2017, Algorithm 1) of anything that trains by gradient descent.

A gateway starts from the shared weights, runs local epochs and sends n·Δw and n; the cloud adds rate · ΣnΔw / Σn. What
is sent is a sum over gateways, so it may travel masked. Nothing of the data stays in the cloud; centre and scale stay
on the gateway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from models.arrays import FEATURES, Arrays
from models.detectors import linear
from models.federated.algorithm import (
    Algorithm,
    Count,
    Phase,
    Positive,
    Server,
    Share,
    UpdateError,
    checked,
    normalise,
    personal_tensors,
)
from models.federated.tally import SUM

SAMPLES = "samples"
# Larger steps leave the border of the one-class loss unsettled; smaller ones leave the logistic loss untrained.
LEARNING_RATES = {"one-class": 0.01, "logistic": 1.0}


def averaging(
    descend: Callable[[Arrays, Arrays, np.random.Generator], Arrays],
    trained: tuple[str, ...],
    *,
    rate: float,
    max_samples: int,
    normalisation: str,
) -> Phase:
    """Return the one phase of FedAvg around a local trainer `descend(params, data, rng) -> params`.

    `trained` names the arrays that move; all others in `shared` are constants of the training. One gateway counts for
    at most `max_samples` rows, whatever it claims.
    """

    def train(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        count = len(data[FEATURES])
        if count == 0:
            return own, {}
        own, z = normalise(own, data, normalisation)
        moved = descend(shared, {**data, FEATURES: z}, rng)
        weight = float(min(count, max_samples))
        update = {name: np.asarray(weight * (moved[name] - shared[name])) for name in trained}
        return own, {**update, SAMPLES: np.array(weight)}

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        step = {name: np.asarray(server.shared[name] + rate * total[name] / total[SAMPLES]) for name in trained}
        return server._replace(shared={**server.shared, **step})

    def admit(server: Server, update: Arrays) -> Arrays:
        shapes = {name: server.shared[name].shape for name in trained} | {SAMPLES: ()}
        wide = checked(update, shapes)
        count = float(wide[SAMPLES])
        if not 1 <= count <= max_samples:
            raise UpdateError(f"samples: expected 1 to {max_samples}, got {count:g}")
        return wide

    return Phase(train, SUM, advance, admit)


def fedavg(
    feature_count: Count,
    *,
    loss: Literal["one-class", "logistic"] = "one-class",
    components: Annotated[int, Field(ge=0)] = 256,
    gamma: Positive | None = None,
    nu: Share = 0.1,
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-3,
    epochs: Count = 5,
    batch: Count = 32,
    learning_rate: Positive | None = None,
    rate: Positive = 1.0,
    rounds: Count = 20,
    max_samples: Count = 100_000,
    normalisation: Literal["own", "none"] = "own",
) -> Algorithm:
    """Federated averaging of the linear detector.

    :param loss: `one-class` without labels, `logistic` with them.
    :param components: size M of the random Fourier map, 0 for none.
    :param learning_rate: step of the gateways, where not given 0.01 for `one-class` and 1 for `logistic`.
    :param rate: step of the server along the averaged change; 1 is plain averaging.
    """

    step = LEARNING_RATES[loss] if learning_rate is None else learning_rate

    def descend(params: Arrays, data: Arrays, rng: np.random.Generator) -> Arrays:
        return linear.descend(
            params, data, rng, loss=loss, nu=nu, decay=decay, epochs=epochs, batch=batch, learning_rate=step
        )

    def start(rng: np.random.Generator) -> Server:
        return Server(shared=linear.initial(rng, feature_count, components, gamma, loss), kept={})

    phase = averaging(descend, linear.TRAINED, rate=rate, max_samples=max_samples, normalisation=normalisation)
    return Algorithm("linear", start, (phase,), rounds, personal_tensors(normalisation))
