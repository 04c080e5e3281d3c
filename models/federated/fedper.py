"""FedPer (Arivazhagan et al. 2019, arXiv 1912.00818) of the one-class SVM: base weights are averaged, the others stay.

The paper splits a network into base layers and personalisation layers. A linear detector on a random map has one layer,
so it is split by components: the weights of the first `share` of them are averaged as in FedAvg, those of the rest stay
with each gateway, which trains both together and scores with `{**shared, **own}`. The components are random, so one
block of them is as good as another. A gateway sends n·Δw of the shared block, n·Δb and n; `home`, centre, scale and
multipliers stay. With `share` 1 it is FedAvg.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedgate.models.arrays import Arrays
from fedgate.models.detectors import linear
from fedgate.models.detectors.training import MOST_ROWS
from fedgate.models.federated.algorithm import MAX_SAMPLES, Algorithm, Count, Positive, Server, Share, personal_tensors
from fedgate.models.federated.fedavg import OneClass, averaging, begin, on_a_map
from fedgate.models.federated.tally import CONTRIBUTIONS


def fedper(
    feature_count: Count,
    *,
    share: Share = 0.5,
    components: Count = 256,
    gamma: Positive | None = None,
    nu: Share = 0.1,
    epochs: Count = 5,
    rate: Positive = 1.0,
    rounds: Count = 20,
    max_samples: Count = MAX_SAMPLES,
    most_rows: Count = MOST_ROWS,
    normalisation: Literal["own", "none"] = "own",
) -> Algorithm:
    """FedPer of the one-class SVM; all settings but `share` are those of `fedavg`.

    :param share: of the components whose weights are averaged.
    """
    shared_count = max(round(share * components), 1)
    one_class = OneClass(nu, epochs, most_rows)

    def improve(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        own, moved = one_class.improve(shared, own, data, rng)
        weights, home = np.split(moved["weights"], [shared_count])
        return {**own, linear.HOME: home}, {**moved, "weights": weights}

    def start(rng: np.random.Generator) -> Server:
        server: Server = begin(feature_count, components, gamma, "one-class")(rng)
        nothing = np.zeros(components)
        split = {"weights": nothing[:shared_count], linear.HOME: nothing[shared_count:]}
        return server._replace(shared={**server.shared, **split})

    phase = averaging(
        improve,
        one_class.judge,
        linear.TRAINED,
        rate=rate,
        max_samples=max_samples,
        normalisation=normalisation,
        tally=CONTRIBUTIONS,
    )
    algorithm = Algorithm("linear", start, (phase,), rounds, (*personal_tensors(normalisation), linear.HOME))
    return on_a_map(algorithm, gamma, components, normalisation)
