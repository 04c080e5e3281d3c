"""Gateways that lie, for evaluations and tests: what they send in place of what they learned.

A lie is told where an update is made, so that whatever stands between it and the model is what stands there in service.
Data says who lies: it holds `LIAR`, which no honest gateway's does. Liars know nothing of one another or of the others,
but for those who collude: these know what every honest gateway asks for, and all ask for the same, no farther from the
honest mean than an honest gateway usually is, and back along it. So did Baruch et al. 2019, "A Little Is Enough", arXiv
1902.06156, in every coordinate; the length is ours. Nobody adapts to the defence; who does can pull farther.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedgate.models.arrays import LABELS, Arrays, generator
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, Algorithm, Phase
from fedgate.models.federated.protocol.namespace import prefixed, split
from fedgate.models.federated.protocol.schema import Schema, named

LIAR = "liar"  # in the data of a gateway that lies; any array
FIRST = "first."  # in the state of one that replays: its first update
LARGEST = 0.99  # of the longest change that every algorithm admits by itself, `largest_change`

Lie = Literal[
    "sign flip",
    "times 10, flipped",
    "largest, flipped",
    "times 1e6",
    "not a number",
    "label noise",
    "replay",
    "colluding",
    "claims the most",
]
# What a change is multiplied by; of other lies, that of rows among them, it stays what it is.
FACTORS: dict[Lie, float] = {
    "sign flip": -1.0,
    "times 10, flipped": -10.0,
    "times 1e6": 1e6,
    "not a number": float("nan"),
}


def lying(algorithm: Algorithm, lie: Lie, *, largest_change: float = 1e3, honest: Sequence[Arrays] = ()) -> Algorithm:
    """Return the algorithm with gateways that lie where they are marked.

    `honest` are the data of the honest gateways, which only liars that collude must know. Raises `ValueError` for more
    than a phase, or for colluding liars who know nobody.
    """
    if len(algorithm.phases) != 1:
        raise ValueError(f"{len(algorithm.phases)} exchanges a round given, expected an algorithm of one")
    (phase,) = algorithm.phases
    if lie != "colluding":
        return algorithm._replace(phases=(_lying(phase, lie, largest_change),))
    if not honest:
        raise ValueError("lie 'colluding' given without data of honest gateways, expected those of one or more")
    return algorithm._replace(phases=(_colluding(phase, honest),))


def _lying(phase: Phase, lie: Lie, largest_change: float) -> Phase:
    def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        if LIAR not in data:
            return phase.train(shared, own, data, rng)
        rows = {name: array for name, array in data.items() if name != LIAR}
        if lie == "label noise":
            rows[LABELS] = np.asarray(1 - np.minimum(rows[LABELS], 1))
        own, before = split(own, FIRST)
        own, update = phase.train(shared, own, rows, rng)
        first = before or update
        own |= prefixed(FIRST, first)
        return own, first if lie == "replay" else _falsify(phase.schema, update, lie, largest_change)

    return phase._replace(learn=learn)


def _colluding(phase: Phase, honest: Sequence[Arrays]) -> Phase:
    agreed: dict[bytes, Arrays] = {}  # on the latest model alone, or every liar would train for every honest gateway

    def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        if LIAR not in data:
            return phase.train(shared, own, data, rng)
        key = b"".join(shared[name].tobytes() for name in sorted(shared))
        if key not in agreed:
            agreed.clear()
            updates = [phase.train(shared, {}, rows, generator(0, 0, "colluding"))[1] for rows in honest]
            agreed[key] = _near(phase.schema, updates)
        return own, dict(agreed[key])

    return phase._replace(learn=learn)


def _near(schema: Schema, updates: Sequence[Arrays]) -> Arrays:
    """Return the mean of honest updates, moved back along itself as far as they lie from it (root mean square)."""
    claims = named(schema, "weight")
    names = sorted(name for name in updates[0] if name not in claims)
    weights = np.array([_weight(schema, update) for update in updates])
    changes = np.stack([np.concatenate([np.ravel(each[name]) for name in names]) for each in updates])
    changes = changes / weights[:, None]  # (n, D)
    mean = changes.mean(axis=0)
    spread, length = float(np.sqrt(((changes - mean) ** 2).sum(axis=1).mean())), float(np.linalg.norm(mean))
    lie = mean - (spread / length if length > 0.0 else 0.0) * mean
    parts = np.split(weights.mean() * lie, np.cumsum([updates[0][name].size for name in names])[:-1])
    sent = {name: np.asarray(part.reshape(updates[0][name].shape)) for name, part in zip(names, parts, strict=True)}
    claimed = {name: np.full_like(array, weights.mean()) for name, array in updates[0].items() if name in claims}
    return sent | claimed


def _weight(schema: Schema, update: Arrays) -> float:
    return next((float(update[name].item()) for name in named(schema, "weight")), 1.0)


def _falsify(schema: Schema, update: Arrays, lie: Lie, largest_change: float) -> Arrays:
    weights, weight = named(schema, "weight"), _weight(schema, update)
    if lie == "claims the most":  # of a usual length: every sum grows as the rows that are claimed
        factor = MAX_SAMPLES / weight
        return {name: np.asarray((factor if name in weights else -factor) * array) for name, array in update.items()}
    factor = FACTORS.get(lie, 1.0)
    if lie == "largest, flipped":
        longest = max(float(np.linalg.norm(np.ravel(array))) for name, array in update.items() if name not in weights)
        factor = -LARGEST * largest_change * weight / longest
    return {name: array if name in weights else np.asarray(factor * array) for name, array in update.items()}
