"""Gateways that lie, for evaluations and tests: what they send in place of what they learned.

A lie is told where an update is made, so that whatever stands between it and the model is what stands there in service.
Data says who lies: it holds `LIAR`, which no honest gateway's does. The liars of an evaluation do not conspire, know
nothing of the others, and do not adapt to the defence; who does can pull farther.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from models.arrays import LABELS, Array, Arrays
from models.federated.algorithm import Algorithm, Phase
from models.federated.alone import WEIGHTS

LIAR = "liar"  # in the data of a gateway that lies; any array
FIRST = "first."  # in the state of one that replays: its first update
LARGEST = 0.99  # of the longest change that every algorithm admits by itself, `largest_change`
FAR = 1e6

Lie = Literal[
    "sign flip", "times 10, flipped", "largest, flipped", "times 1e6", "not a number", "label noise", "replay"
]


def lying(algorithm: Algorithm, lie: Lie, *, largest_change: float = 1e3) -> Algorithm:
    """Return the algorithm with gateways that lie where they are marked; raises `ValueError` for more than a phase."""
    if len(algorithm.phases) != 1:
        raise ValueError(f"{len(algorithm.phases)} exchanges a round given, expected an algorithm of one")
    return algorithm._replace(phases=(_lying(algorithm.phases[0], lie, largest_change),))


def _lying(phase: Phase, lie: Lie, largest_change: float) -> Phase:
    def train(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        if LIAR not in data:
            return phase.train(shared, own, data, rng)
        rows = {name: array for name, array in data.items() if name != LIAR}
        if lie == "label noise":
            rows[LABELS] = np.asarray(1 - np.minimum(rows[LABELS], 1))
        before = {name.removeprefix(FIRST): array for name, array in own.items() if name.startswith(FIRST)}
        own = {name: array for name, array in own.items() if not name.startswith(FIRST)}
        own, update = phase.train(shared, own, rows, rng)
        first = before or update
        own |= {FIRST + name: array for name, array in first.items()}
        return own, first if lie == "replay" else _told(update, lie, largest_change)

    return phase._replace(train=train)


def _told(update: Arrays, lie: Lie, largest_change: float) -> Arrays:
    weights = {name: array for name, array in update.items() if name in WEIGHTS}
    factor = _factor(update, weights, lie, largest_change)
    return {name: array if name in weights else np.asarray(factor * array) for name, array in update.items()}


def _factor(update: Arrays, weights: Arrays, lie: Lie, largest_change: float) -> float:
    match lie:
        case "sign flip":
            return -1.0
        case "times 10, flipped":
            return -10.0
        case "largest, flipped":
            return -LARGEST * largest_change / _longest(update, weights)
        case "times 1e6":
            return FAR
        case "not a number":
            return float("nan")
        case _:
            return 1.0  # the lie is in the rows


def _longest(update: Arrays, weights: Arrays) -> float:
    """Return the length of the longest array of a change per sample."""
    counted = next((float(array.item()) for array in weights.values()), 1.0)
    return max(float(np.linalg.norm(_flat(array))) for name, array in update.items() if name not in weights) / counted


def _flat(array: Array) -> Array:
    return np.ravel(array)
