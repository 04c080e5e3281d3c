"""What a bad gateway trains on: its own rows with noise, stuck channels or labels the wrong way round, on purpose.

Pure functions of training data, for the simulation of bad gateways; whoever shows a result must say what was injected.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedgate.models.arrays import FEATURES, LABELS, Arrays
from fedgate.models.federated.defences.discriminator import with_noise

Kind = Literal["none", "noise", "stuck", "flipped"]
STUCK_SHARE = 0.5


def corrupted(data: Arrays, kind: Kind, amount: float, rng: np.random.Generator) -> Arrays:
    """Return the data of a bad gateway; `amount` is that of the noise, in deviations of each feature."""
    if kind == "noise":
        return with_noise(data, amount, rng)
    if kind == "stuck":
        return stuck(data, STUCK_SHARE, rng)
    return flipped(data) if kind == "flipped" else data


def stuck(data: Arrays, share: float, rng: np.random.Generator) -> Arrays:
    """Return data in which a share of the features, drawn at random, never leaves its first value."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share {share} given, expected the share of the features that are stuck, from 0 to 1")
    x = np.array(data[FEATURES], dtype=np.float64)
    columns = rng.permutation(x.shape[1])[: round(share * x.shape[1])]
    x[:, columns] = x[:1, columns]
    return {**data, FEATURES: x}


def flipped(data: Arrays) -> Arrays:
    """Return data in which normal rows are labelled as anomalies (1) and anomalies as normal; unlabelled rows stay."""
    labels = np.asarray(data[LABELS])
    return {**data, LABELS: np.where(labels < 0, labels, (labels == 0).astype(labels.dtype))}
