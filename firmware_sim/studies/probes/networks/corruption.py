"""What a bad gateway trains on: its own rows with noise, stuck channels or labels the wrong way round, on purpose.

Pure functions of training data, for the simulation of bad gateways; whoever shows a result must say what was injected.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedgate.config.settings import settings
from fedgate.models.arrays import FEATURES, LABELS, Arrays
from fedgate.models.federated.defences.discriminator import with_noise

STUCK_SHARE = 0.5  # of the features, drawn at random


class Attack(settings.Table):
    """What bad gateways do to their rows; `amount` is that of the noise, in deviations of each feature."""

    kind: Literal["none", "noise", "stuck", "flipped"] = "none"
    amount: float = 0.0


def corrupt(data: Arrays, attack: Attack, rng: np.random.Generator) -> Arrays:
    """Return the data of a bad gateway: with noise; with half of the features never leaving their first value; or with
    normal rows labelled as anomalies (1) and anomalies as normal, unlabelled rows as they were.
    """
    if attack.kind == "noise":
        return with_noise(data, attack.amount, rng)
    if attack.kind == "stuck":
        x = np.array(data[FEATURES], dtype=np.float64)
        columns = rng.permutation(x.shape[1])[: round(STUCK_SHARE * x.shape[1])]
        x[:, columns] = x[:1, columns]
        return {**data, FEATURES: x}
    labels = np.asarray(data[LABELS])
    turned = np.where(labels < 0, labels, (labels == 0).astype(labels.dtype))
    return {**data, LABELS: turned} if attack.kind == "flipped" else data
