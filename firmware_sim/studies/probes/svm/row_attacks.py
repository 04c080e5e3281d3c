"""How well who sees an update, or the released model, can tell a row that trained from a fresh one.

Federation keeps rows at home, but support vectors are rows. An attack gives every row a score, higher where it looks
more like one that trained; what it is worth is measured on rows that trained and on others of the same distribution.
An area of 0.5 is guessing. Since few rows become support vectors, the area alone can look harmless while those few are
as good as published: the share that is found with next to no false claim stands beside it (Carlini et al. 2022,
"Membership Inference Attacks From First Principles", ask for it).

The attacks are simple ones, by distance and by score. One that knows more of the distribution, or trains models of its
own to compare with, may find more: every figure says what an attacker learns at least.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.metrics import roc_auc
from fedgate.models.arrays import Array, Floats
from fedgate.models.detectors.svm.kernel import squared_distances

FALSE_CLAIMS = 0.01


class Attack(NamedTuple):
    """What an attack is worth: the area under its ROC curve, and the share of members it finds while it takes
    `FALSE_CLAIMS` of the fresh rows for members.
    """

    auc: float
    found: float


NOTHING_FOUND = Attack(0.5, 0.0)  # what guessing is worth that claims nobody


def attack(members: Floats, fresh: Floats) -> Attack:
    """Judge the scores of rows that trained (m,) against those of fresh rows (n,), higher meaning "trained".

    Raises `ValueError` where a score is nan. Without rows of either kind both figures are nan.
    """
    if not len(members) or not len(fresh):
        return Attack(float("nan"), float("nan"))
    labels = np.repeat(np.array([1, 0]), [len(members), len(fresh)])
    level = np.quantile(fresh, 1.0 - FALSE_CLAIMS, method="higher")
    return Attack(roc_auc(labels, np.concatenate([members, fresh])), float((members > level).mean()))


def nearness(rows: Array, sent: Array) -> Floats:
    """Return for each row (n, F) minus its distance to the nearest of the vectors (S, F) that were sent."""
    return np.asarray(-np.sqrt(squared_distances(rows, sent).min(axis=1)))


def traced(sent: Array, originals: Array, rows: Array) -> float:
    """Return the share of sent vectors (S, F) whose nearest row of the training data (n, F) is the one they came from.

    `originals` (S, F) are those rows, NaN for a vector that came from none; it counts as not traced. No vector: nan.
    """
    if not len(sent):
        return float("nan")
    nearest = rows[squared_distances(sent, rows).argmin(axis=1)]
    return float((nearest == originals).all(axis=1).mean())
